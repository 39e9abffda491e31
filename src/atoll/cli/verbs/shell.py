"""`atoll shell`: a shell in a sandbox, on this terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from atoll.cli.live_command import STDIN, STDOUT, write_all
from atoll.cli.options import complete_terminal, env_option, existing_sandbox, id_argument, server_options
from atoll.cli.own_terminal import FollowedSize, Keys, LeaveError, check_raw_mode, is_terminal, raw_mode, size_of
from atoll.client_sync.sandbox import get_sandbox
from atoll.client_sync.terminals import Terminal
from atoll.protocol.errors import AtollError, ErrorCode, ServerLostError, error


@click.command(short_help="A shell in a sandbox, on your terminal.")
@id_argument
@click.option("--shell", "program", metavar="PROGRAM", help="What to run; the sandbox's bash or sh if not given.")
@click.option("--cwd", metavar="DIR", help="The directory to start in.")
@env_option("A variable for it.")
@click.option(
    "--attach",
    metavar="TERMINAL",
    help="Look at a terminal that runs already, by its id.",
    shell_complete=complete_terminal,
)
@server_options
@click.pass_context
def shell(
    context: click.Context,
    sandbox_id: str,
    program: str | None,
    cwd: str | None,
    env: tuple[tuple[str, str], ...],
    attach: str | None,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """A shell in the sandbox ID, which is made if it does not exist.

    \b
      atoll shell user-123
      atoll shell user-123 --shell python3 --cwd /tmp

    Every key goes to the sandbox, Ctrl-C too; the exit code is the shell's. Enter and then ~. leaves it running, and
    --attach comes back to it. When this program is ended, so is the shell, unless it was attached to.
    """
    if attach is not None and (program or cwd or env):
        raise click.UsageError("--attach is for a terminal that runs already: --shell, --cwd and --env do not apply.")
    check_raw_mode()
    find = get_sandbox if attach is None else existing_sandbox
    with find(sandbox_id, url=url, api_key=api_key) as sandbox:
        if not is_terminal(STDIN):
            raise error(
                ErrorCode.INVALID_REQUEST,
                "standard input is not a terminal",
                remedy="Use `atoll exec`, which takes commands from arguments and input from pipes.",
            )
        cols, rows = size_of(STDIN)
        if attach is None:
            terminal = sandbox.create_terminal(cols, rows, shell=program, cwd=cwd, env=dict(env))
        else:
            terminal = sandbox.get_terminal(attach)
        try:
            exit_code = show(terminal)
        except LeaveError:
            click.echo(
                f"\n{terminal.id} goes on: `atoll shell {sandbox_id} --attach {terminal.id}` comes back", err=True
            )
            return
        except ServerLostError:
            raise
        except BaseException:
            if attach is None:
                with suppress(AtollError):
                    terminal.close()
            raise
        context.exit(exit_code)


def show(terminal: Terminal) -> int:
    """Its exit code, when its program has ended."""
    try:
        with (
            Keys(STDIN) as keys,
            terminal.attach(stdin=keys) as view,
            raw_mode(STDIN),
            FollowedSize(STDIN, terminal.resize),
        ):
            for data in view:
                write_all(STDOUT, data)
    except AtollError:
        if sys.stderr:
            click.echo(err=True)  # whatever was on the screen, the error gets a line of its own
        raise
    assert view.exit_code is not None, "a view that ends without an error has an exit code"
    return view.exit_code
