"""A command as if it ran here: its input, output and exit code are ours.

1. Output is passed on as it comes, byte by byte as it was written.
2. Standard input is the command's if it is a pipe or a file. A terminal stays ours: the command has no input then.
3. Whatever ends us ends the command: leaving its stream cancels it.
4. A command that was not run has the exit codes that shells, env and timeout use for that. Whoever meets one may try
   again; so where it is not certain that nothing ran the code is another, the one that ssh has for a lost connection.
"""

from __future__ import annotations

import os
import select
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any, TypeVar

import click
import msgspec

from atoll.cli.options import env_option
from atoll.cli.problems import print_to_stderr, tell
from atoll.cli.tables import print_document
from atoll.client_sync.commands import Command, Commands
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.server.command_bodies import ExecResultBody
from atoll.values.commands import ExecResult

STDIN, STDOUT, STDERR = 0, 1, 2
NOT_RUN, NOT_EXECUTABLE, NOT_FOUND, NOT_KNOWN = 125, 126, 127, 255
MAY_HAVE_RUN = (
    ErrorCode.SERVER_LOST,
    ErrorCode.AGENT_LOST,
    ErrorCode.AGENT_TIMEOUT,
    ErrorCode.AGENT_MISBEHAVED,
    ErrorCode.INTERNAL_ERROR,
)

Verb = TypeVar("Verb", bound=Callable[..., Any])


class CommandWithWords(click.Command):
    """A verb that ends with a command. An option it does not know was most likely meant for that."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as problem:
            message = f"{problem.format_message()} If it belongs to the command, put -- before the command."
            raise click.UsageError(message, context) from problem

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except AtollError as problem:
            tell(problem, as_json=context.params["as_json"])
            context.exit(exit_code_of(problem))
        except AfterwardsError as failure:
            tell(failure.problem, as_json=context.params["as_json"])
            context.exit(NOT_KNOWN)
        except OutputError as problem:
            tell(problem, as_json=context.params["as_json"])
            context.exit(NOT_KNOWN)


class AfterwardsError(Exception):
    """Something failed when the command had run."""

    def __init__(self, problem: AtollError) -> None:
        super().__init__(str(problem))
        self.problem = problem


class OutputError(OSError):
    """Output of a sandbox that cannot be written here."""


def exit_code_of(problem: AtollError) -> int:
    if problem.code in MAY_HAVE_RUN:
        return NOT_KNOWN
    if problem.code == ErrorCode.COMMAND_NOT_FOUND:
        return NOT_FOUND
    if problem.code == ErrorCode.PERMISSION_DENIED and "command" in problem.context:  # the program, not its directory
        return NOT_EXECUTABLE
    return NOT_RUN


class How(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is run."""

    cwd: str | None
    env: dict[str, str]
    timeout: str | None


def command_options(verb: Verb) -> Verb:
    """--cwd, --env, --timeout and the command itself."""
    for option in (
        click.argument("words", metavar="CMD...", nargs=-1, required=True),
        click.option("--timeout", metavar="TIME", help="End it after this: 30s, 5m, 1h. Its exit code is then 124."),
        env_option("A variable for this command."),
        click.option("--cwd", metavar="DIR", help="The directory to run it in."),
    ):
        verb = option(verb)
    return verb


def to_command(words: tuple[str, ...]) -> Command:
    return words[0] if len(words) == 1 else list(words)


def run_command(commands: Commands, command: Command, how: How, *, as_json: bool) -> int:
    """Its exit code."""
    with open_stdin() as stdin:
        if as_json:
            result = commands.exec(command, cwd=how.cwd, env=how.env, timeout=how.timeout, stdin=stdin)
            print_document(to_body(result))
            return result.exit_code
        return _run_live(commands, command, how, stdin)


def _run_live(commands: Commands, command: Command, how: How, stdin: FileIO | None) -> int:
    exit_code = None
    with commands.exec_stream(command, cwd=how.cwd, env=how.env, timeout=how.timeout, stdin=stdin) as events:
        for event in events:
            if event.data_bytes:
                write_all(STDOUT if event.type == "stdout" else STDERR, event.data_bytes)
            elif event.type == "complete":
                exit_code = event.exit_code
                if event.state_lost:
                    print_to_stderr(_tell_lost(event.state_lost))
    assert exit_code is not None, "a stream that ends without an error has a result"
    return exit_code


def _tell_lost(commands: int) -> str:
    before = "the command" if commands == 1 else f"the {commands} commands"
    return f"Note: the shell was killed; the directory, variables and functions that {before} before this set are lost."


@contextmanager
def open_stdin() -> Iterator[FileIO | None]:
    if sys.stdin is None or os.isatty(STDIN):
        yield None
    else:
        with FileIO(STDIN, "rb", closefd=False) as stdin:
            yield stdin


def write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # whoever shares it with us has made it so
            select.select([], [descriptor], [])
        except BrokenPipeError:  # which ends us as it ends every program in a pipeline
            raise
        except OSError as cause:
            name = "standard output" if descriptor == STDOUT else "standard error"
            raise OutputError(f"{name} cannot be written: {cause.strerror}") from cause


def to_body(result: ExecResult) -> ExecResultBody:
    return ExecResultBody(
        success=result.success,
        exit_code=result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
        command=result.command,
        duration=result.duration,
        timestamp=result.timestamp,
        session_id=result.session_id,
        timed_out=result.timed_out,
        truncated=result.truncated,
        session_ended=result.session_ended,
        state_lost=result.state_lost,
        stdout_base64=_unless_text(result.stdout_bytes),
        stderr_base64=_unless_text(result.stderr_bytes),
    )


def _unless_text(data: bytes) -> str | None:
    try:
        data.decode()
    except UnicodeDecodeError:
        return b64encode(data).decode()
    return None
