"""`atoll run`: a command in a sandbox of its own, which is gone afterwards."""

from __future__ import annotations

import click

from atoll.cli.ending import hold_signals
from atoll.cli.live_command import AfterwardsError, CommandWithWords, How, command_options, run_command, to_command
from atoll.cli.making import Making, making_options
from atoll.cli.options import server_options
from atoll.cli.preparations import telling_preparations
from atoll.client_sync.sandbox import Sandbox, temporary_sandbox
from atoll.protocol.errors import AtollError, ErrorCode

NOTHING_WAS_MADE = (ErrorCode.SERVER_NOT_REACHABLE, ErrorCode.NOT_ROOT, ErrorCode.INVALID_API_KEY)


@click.command(cls=CommandWithWords, short_help="Run a command in a new sandbox, gone afterwards.")
@command_options
@making_options
@server_options
@click.pass_context
def run(
    context: click.Context,
    making: Making,
    words: tuple[str, ...],
    cwd: str | None,
    env: tuple[tuple[str, str], ...],
    timeout: str | None,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Run a command in a new sandbox, which is destroyed afterwards, also after an error, Ctrl-C or SIGTERM.

    One word is a line for a shell. Several are a program and its arguments, which no shell touches; put -- before them.

    \b
      atoll run 'echo $HOME; id -un'
      atoll run -- python3 -c 'print(2 + 2)'
      tar c src | atoll run -- sh -c 'tar x && make -C src'

    Output comes as it is written; standard input is passed on unless it is a terminal; the exit code is the command's.
    It is 124 after --timeout, 127 if there is no such program, 126 if it cannot be executed, 125 if Atoll failed
    before it ran, and 255 if Atoll failed later, so that it may have run. Ctrl-C ends the command.
    """
    sandbox = temporary_sandbox(**making.arguments(url, api_key))
    how = How(cwd=cwd, env=dict(env), timeout=timeout)
    with telling_preparations(url, api_key):
        code = run_once(sandbox, words, how, as_json=as_json)
    context.exit(code)


def run_once(sandbox: Sandbox, words: tuple[str, ...], how: How, *, as_json: bool) -> int:
    failure: AtollError | None = None
    try:
        try:
            return run_command(sandbox, to_command(words), how, as_json=as_json)
        except AtollError as problem:
            failure = problem
            raise
        finally:
            # A signal in here still leads to the other `finally`, and is the last that is heard.
            hold_signals()
    finally:
        if failure is None or failure.code not in NOTHING_WAS_MADE:
            remove(sandbox, failure)
        sandbox.close()


def remove(sandbox: Sandbox, failure: AtollError | None) -> None:
    """Destroy the sandbox. An error from before is told rather than one of this, which is added to it."""
    try:
        sandbox.destroy()
    except AtollError as problem:
        if failure is None:
            raise AfterwardsError(problem) from problem
        left = f"Sandbox {sandbox.id} is left, since {problem.message}; `atoll rm {sandbox.id}` removes it."
        failure.remedy = f"{failure.remedy}\n{left}".strip()
