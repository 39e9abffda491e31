"""`atoll exec`: a command in a sandbox."""

from __future__ import annotations

from contextlib import suppress

import click

from atoll.cli.live_command import CommandWithWords, How, command_options, run_command, to_command
from atoll.cli.making import Making, making_options
from atoll.cli.options import complete_session, id_argument, server_options
from atoll.cli.preparations import telling_preparations
from atoll.client_sync.commands import Commands
from atoll.client_sync.sandbox import Sandbox, get_sandbox
from atoll.protocol.errors import AlreadyExistsError, NotFoundError


@click.command(cls=CommandWithWords, short_help="Run a command in a sandbox.")
@id_argument
@click.option(
    "--session",
    metavar="NAME",
    help="The shell to run it in; made if there is none of this name.",
    shell_complete=complete_session,
)
@command_options
@making_options
@server_options
@click.pass_context
def exec(
    context: click.Context,
    sandbox_id: str,
    session: str | None,
    making: Making,
    words: tuple[str, ...],
    cwd: str | None,
    env: tuple[tuple[str, str], ...],
    timeout: str | None,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Run a command in the sandbox ID, which is made with the options given if it does not exist.

    One word is a line for the sandbox's shell, which keeps its directory and variables for the next. Several are a
    program and its arguments, which no shell touches; put -- before them.

    \b
      atoll exec user-123 'cd /tmp && ls | wc -l'
      atoll exec user-123 -- python3 -c 'print(2 + 2)'

    Output comes as it is written; standard input is passed on unless it is a terminal; the exit code is the command's.
    It is 124 after --timeout, 127 if there is no such program, 126 if it cannot be executed, 125 if Atoll failed
    before it ran, and 255 if Atoll failed later, so that it may have run. Ctrl-C ends the command.
    """
    with (
        telling_preparations(url, api_key),
        get_sandbox(sandbox_id, **making.arguments(url, api_key)) as sandbox,
    ):
        commands = sandbox if session is None else find_session(sandbox, session)
        how = How(cwd=cwd, env=dict(env), timeout=timeout)
        context.exit(run_command(commands, to_command(words), how, as_json=as_json))


def find_session(sandbox: Sandbox, name: str) -> Commands:
    with suppress(NotFoundError):
        return sandbox.get_session(name)
    with suppress(AlreadyExistsError):  # somebody else was quicker
        return sandbox.create_session(name)
    return sandbox.get_session(name)
