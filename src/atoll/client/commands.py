"""Commands: run to their end, or event by event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import SupportsIndex

from atoll.client.plumbing.feeds import AsyncFeed
from atoll.client.plumbing.network import NotYet
from atoll.client.plumbing.remote_sandbox import Frames, RemoteSandbox
from atoll.client.plumbing.waiting import CANCELLATIONS, settle
from atoll.client.standard_input import Stdin, input_chunks
from atoll.protocol.arguments import (
    Directory,
    Word,
    check_callback,
    check_command,
    check_count,
    check_directory,
    check_variables,
)
from atoll.protocol.commands import CommandFold, CommandText, Exec, ExecDone, ExecShell
from atoll.protocol.durations import Duration, parse_duration
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import Frame
from atoll.protocol.sessions import DEFAULT_SESSION
from atoll.values.commands import ExecEvent, ExecResult

MAX_OUTPUT = 64 * 2**20  # of each stream, for `exec` without max_output: it keeps everything in memory

Command = str | Sequence[Word]
OnOutput = Callable[[str, str], object]
Environment = Mapping[str, str | None]


class AsyncCommands:
    """The commands of a sandbox or a session, run in one shell."""

    def __init__(self, sandbox: RemoteSandbox, session_id: str = DEFAULT_SESSION) -> None:
        self._sandbox = sandbox
        self._session_id = session_id

    async def exec(
        self,
        command: Command,
        *,
        cwd: Directory | None = None,
        env: Environment | None = None,
        timeout: Duration | None = None,
        stdin: Stdin | None = None,
        on_output: OnOutput | None = None,
        max_output: SupportsIndex | None = None,
    ) -> ExecResult:
        """Run a command and return its result, whatever its exit code.

        `command` is a string for the session's shell, which keeps its directory, variables and functions from one
        to the next, or a list of words that no shell touches. `cwd` and `env` hold for this command alone; None as a
        value takes a variable away. Strings of one session run one at a time; a list runs at once, where the last
        finished command left the session, and with its variables. `timeout` is in seconds, a timedelta, or "30s", "5m",
        "1h30m", from the call on; what it ends has exit code 124, and if a string's turn has not come by then, it is
        SESSION_BUSY, which is a TimeoutError: nothing ran. `stdin` is text, bytes, or an iterable of either, such as a
        file; a pipe that was opened for bytes is passed on as it comes, and may outlast the command. An iterator works
        in a thread of its own, and nothing waits for it but the command.
        `on_output("stdout" or "stderr", text)` is called with output as it comes. Each stream is kept up to
        `max_output` bytes, 64 MiB if not given.
        """
        allowed = MAX_OUTPUT if max_output is None else max_output
        check_callback(on_output, "on_output")
        call = make_call(self._session_id, command, cwd, env, timeout, stdin is not None, allowed)
        started = datetime.now(UTC)
        frames = await self._sandbox.call(call, None if stdin is None else input_chunks(stdin))
        fold = CommandFold(call)
        try:
            if on_output is None:
                while fold.take(await frames.next()):
                    pass
            else:
                await _tell_all(frames, fold, on_output)
        finally:
            frames.close()
        output = fold.output
        done = output.done
        return ExecResult(
            exit_code=done.exit_code,
            stdout_bytes=output.stdout,
            stderr_bytes=output.stderr,
            command=call.command if isinstance(call, ExecShell) else call.argv,
            duration=done.duration,
            timestamp=started,
            session_id=self._session_id,
            session_ended=done.session_ended,
            timed_out=done.timed_out,
            truncated=done.truncated,
            state_lost=done.state_lost,
        )

    def exec_stream(
        self,
        command: Command,
        *,
        cwd: Directory | None = None,
        env: Environment | None = None,
        timeout: Duration | None = None,
        stdin: Stdin | None = None,
        max_output: SupportsIndex | None = None,
    ) -> AsyncCommandStream:
        """Run a command and iterate over what happens, as it happens:

            async for event in sandbox.exec_stream("make"):
                print(event.data, end="")

        The arguments are those of `exec`; output is not kept, and not limited unless `max_output` says so. A command
        that cannot be run gives an `error` event, and then raises its error. Leaving the loop ends the command.
        """
        call = make_call(self._session_id, command, cwd, env, timeout, stdin is not None, max_output)
        return AsyncCommandStream(self._sandbox, call, None if stdin is None else input_chunks(stdin))


class AsyncCommandStream(AsyncFeed[ExecEvent]):
    """The events of one command. Dropping it, closing it or leaving its `async with` block ends the command.

    So does cancelling whoever waits for an event, or Ctrl-C: what is asked for afterwards is an error.
    """

    def __init__(self, sandbox: RemoteSandbox, call: Exec | ExecShell, stdin: Iterator[bytes | NotYet] | None) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._call = call
        self._stdin = stdin
        self._fold, self._text = CommandFold(call, keeps=False), CommandText()
        self._frames: Frames[ExecDone] | None = None
        self._failure: AtollError | None = None
        self._items.append(_event("start"))

    def _interrupted(self) -> AtollError:
        return error(
            ErrorCode.INVALID_REQUEST,
            "whoever waited for the command's next event was cancelled, and that ended the command",
            remedy="Give it a timeout=, or read it in a task that nobody cancels. exec_stream() runs it once more.",
        )

    async def _advance(self) -> None:
        try:
            await super()._advance()
        except CANCELLATIONS:
            # There may be nobody left who will close it, and a command that nobody waits for must end.
            self._was_interrupted = True
            await self.aclose()
            raise

    async def _receive(self) -> None:
        if self._failure:
            raise self._failure
        if self._frames is None:
            self._frames = await self._sandbox.call(self._call, self._stdin, scope=self._scope)
        self._take(await self._frames.next())

    async def _fail(self, failure: AtollError) -> None:
        """A failure is an event first, and raised when another is asked for."""
        if self._failure:
            await super()._fail(failure)
        self._failure = failure
        self._items.append(_event("error", error=failure))
        if self._frames:
            self._frames.close()

    def _take(self, frame: Frame) -> None:
        if piece := self._fold.take(frame):
            self._items.append(_event(piece.stream, data_bytes=piece.data, text_bytes=self._text.take(piece)))
        elif done := self._fold.done:
            self._is_over = True
            self._items.extend(_event(rest.stream, text_bytes=rest.data) for rest in self._text.rest())
            self._items.append(_completion(done))


async def _tell_all(frames: Frames[ExecDone], fold: CommandFold, on_output: OnOutput) -> None:
    """Text as it comes, to the end."""
    text = CommandText()
    while piece := fold.take(await frames.next()):
        if whole := text.take(piece):
            await settle(on_output(piece.stream, whole.decode(errors="replace")))
    for piece in text.rest():
        await settle(on_output(piece.stream, piece.data.decode(errors="replace")))


def make_call(
    session_id: str,
    command: Command,
    cwd: Directory | None,
    env: Environment | None,
    timeout: Duration | None,
    has_stdin: bool,
    max_output: SupportsIndex | None,
) -> Exec | ExecShell:
    variables, directory = check_variables(env), check_directory(cwd)
    most = None if max_output is None else check_count(max_output, "max_output")
    seconds = None if timeout is None else parse_duration(timeout)
    words = check_command(command)
    if isinstance(words, str):
        return ExecShell(
            command=words,
            session_id=session_id,
            cwd=directory,
            env=variables,
            stdin=has_stdin,
            timeout=seconds,
            max_output=most,
        )
    return Exec(
        argv=words,
        session_id=session_id,
        cwd=directory,
        env=variables,
        stdin=has_stdin,
        timeout=seconds,
        max_output=most,
    )


def _completion(done: ExecDone) -> ExecEvent:
    return _event(
        "complete",
        exit_code=done.exit_code,
        duration=done.duration,
        timed_out=done.timed_out,
        truncated=done.truncated,
        session_ended=done.session_ended,
        state_lost=done.state_lost,
    )


def _event(type: str, **fields: object) -> ExecEvent:
    return ExecEvent(type=type, timestamp=datetime.now(UTC), **fields)  # type: ignore[arg-type]
