"""`atoll start`: a background process in a sandbox."""

from __future__ import annotations

import re

import click

from atoll.cli.live_command import CommandWithWords, command_options, to_command
from atoll.cli.options import id_argument, server_options
from atoll.cli.tables import print_document
from atoll.client_sync.commands import Command
from atoll.client_sync.sandbox import get_sandbox
from atoll.protocol.processes import RestartPolicy, parse_restart

PROGRAM = re.compile(r"[A-Za-z0-9_.+@%,:/-]+")  # nothing in it means anything to a shell


@click.command(cls=CommandWithWords, short_help="Start a background process in a sandbox.")
@id_argument
@click.option("--name", metavar="PROC", help="The id of the process; it gets one if not given.")
@click.option("--restart", type=click.Choice([policy.value for policy in RestartPolicy]), help="Start it again then.")
@command_options
@server_options
def start(
    sandbox_id: str,
    name: str | None,
    restart: str | None,
    words: tuple[str, ...],
    cwd: str | None,
    env: tuple[tuple[str, str], ...],
    timeout: str | None,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Start a process in the sandbox ID that goes on in the background, and print its id.

    One word is a line for a shell, several are a program and its arguments, which no shell touches; put -- before them.
    A word that is nothing but a program's name is that program.

    \b
      atoll start user-123 --name web -- python3 -m http.server 8080
      atoll logs -f user-123 web

    Ends with 127 if there is no such program, 126 if it cannot be executed, and 125 if Atoll failed to start it.
    """
    with get_sandbox(sandbox_id, url=url, api_key=api_key) as sandbox:
        process = sandbox.start_process(
            to_process(words), process_id=name, cwd=cwd, env=dict(env), timeout=timeout, restart=parse_restart(restart)
        )
    if as_json:
        print_document(process.info)
    else:
        click.echo(process.id)


def to_process(words: tuple[str, ...]) -> Command:
    """A shell that is given only the name of a program starts, and finds out later that there is none."""
    if len(words) == 1 and PROGRAM.fullmatch(words[0]):
        return [words[0]]
    return to_command(words)
