# Generated from client/commands.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Commands: run to their end, or event by event."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from atoll.client_sync.plumbing.feeds import Feed
from atoll.client_sync.plumbing.network import NotYet
from atoll.client_sync.plumbing.remote_sandbox import Frames, RemoteSandbox
from atoll.client_sync.plumbing.waiting import CANCELLATIONS, is_readable, settle
from atoll.protocol.arguments import check_callback, check_count, check_directory, check_variables, wrong_argument
from atoll.protocol.commands import CommandFold, CommandText, Exec, ExecDone, ExecShell
from atoll.protocol.durations import parse_duration
from atoll.protocol.errors import AtollError, ErrorCode, error, shown
from atoll.protocol.frames import Frame
from atoll.protocol.sessions import DEFAULT_SESSION
from atoll.values.commands import ExecEvent, ExecResult

MAX_OUTPUT = 64 * 2**20  # of each stream, for `exec` without max_output: it keeps everything in memory
INPUT_CHUNK = 64 * 1024

Command = str | Sequence[str]
Bytes = bytes | bytearray | memoryview
Stdin = str | Bytes | Iterable[str | Bytes]
OnOutput = Callable[[str, str], object]
Environment = Mapping[str, str | None]


class Commands:
    """The commands of a sandbox or a session, run in one shell."""

    def __init__(self, sandbox: RemoteSandbox, session_id: str = DEFAULT_SESSION) -> None:
        self._sandbox = sandbox
        self._session_id = session_id

    def exec(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Environment | None = None,
        timeout: float | str | None = None,
        stdin: Stdin | None = None,
        on_output: OnOutput | None = None,
        max_output: int | None = None,
    ) -> ExecResult:
        """Run a command and return its result, whatever its exit code.

        `command` is a string for the session's shell, which keeps its directory, variables and functions from one
        to the next, or a list of words that no shell touches. `cwd` and `env` hold for this command alone; None as a
        value takes a variable away. Strings of one session run one at a time; a list runs at once, where the last
        finished command left the session, and with its variables. `timeout` is in seconds or "30s", "5m", "1h", from
        the call on; what it ends has exit code 124, and if a string's turn has not come by then, it is SESSION_BUSY,
        which is a TimeoutError: nothing ran. `stdin` is text, bytes, or an iterable of either,
        such as a file; a pipe that was opened for bytes is passed on as it comes, and may outlast the command.
        `on_output("stdout" or "stderr", text)` is called with output as it comes. Each stream is kept up to
        `max_output` bytes, 64 MiB if not given.
        """
        allowed = MAX_OUTPUT if max_output is None else max_output
        check_callback(on_output, "on_output")
        call = make_call(self._session_id, command, cwd, env, timeout, stdin is not None, allowed)
        started = datetime.now(UTC)
        frames = self._sandbox.call(call, None if stdin is None else input_chunks(stdin))
        fold = CommandFold(call)
        try:
            if on_output is None:
                while fold.take(frames.next()):
                    pass
            else:
                _tell_all(frames, fold, on_output)
        finally:
            frames.close()
        output = fold.output
        done = output.done
        return ExecResult(
            exit_code=done.exit_code,
            stdout_bytes=output.stdout,
            stderr_bytes=output.stderr,
            command=command if isinstance(command, str) else list(command),
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
        cwd: str | None = None,
        env: Environment | None = None,
        timeout: float | str | None = None,
        stdin: Stdin | None = None,
        max_output: int | None = None,
    ) -> CommandStream:
        """Run a command and iterate over what happens, as it happens:

            for event in sandbox.exec_stream("make"):
                print(event.data, end="")

        The arguments are those of `exec`; output is not kept, and not limited unless `max_output` says so. A command
        that cannot be run gives an `error` event, and then raises its error. Leaving the loop ends the command.
        """
        call = make_call(self._session_id, command, cwd, env, timeout, stdin is not None, max_output)
        return CommandStream(self._sandbox, call, None if stdin is None else input_chunks(stdin))


class CommandStream(Feed[ExecEvent]):
    """The events of one command. Dropping it, closing it or leaving its `with` block ends the command.

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

    def _advance(self) -> None:
        try:
            super()._advance()
        except CANCELLATIONS:
            # There may be nobody left who will close it, and a command that nobody waits for must end.
            self._was_interrupted = True
            self.close()
            raise

    def _receive(self) -> None:
        if self._failure:
            raise self._failure
        if self._frames is None:
            self._frames = self._sandbox.call(self._call, self._stdin, scope=self._scope)
        self._take(self._frames.next())

    def _fail(self, failure: AtollError) -> None:
        """A failure is an event first, and raised when another is asked for."""
        if self._failure:
            super()._fail(failure)
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


def _tell_all(frames: Frames[ExecDone], fold: CommandFold, on_output: OnOutput) -> None:
    """Text as it comes, to the end."""
    text = CommandText()
    while piece := fold.take(frames.next()):
        if whole := text.take(piece):
            settle(on_output(piece.stream, whole.decode(errors="replace")))
    for piece in text.rest():
        settle(on_output(piece.stream, piece.data.decode(errors="replace")))


def make_call(
    session_id: str,
    command: Command,
    cwd: str | None,
    env: Environment | None,
    timeout: float | str | None,
    has_stdin: bool,
    max_output: int | None,
) -> Exec | ExecShell:
    variables, cwd = check_variables(env), check_directory(cwd)
    if max_output is not None:
        check_count(max_output, "max_output")
    seconds = None if timeout is None else parse_duration(timeout)
    if isinstance(command, str):
        return ExecShell(
            command=command,
            session_id=session_id,
            cwd=cwd,
            env=variables,
            stdin=has_stdin,
            timeout=seconds,
            max_output=max_output,
        )
    if isinstance(command, list | tuple) and command and all(isinstance(word, str) for word in command):
        return Exec(
            argv=list(command),
            session_id=session_id,
            cwd=cwd,
            env=variables,
            stdin=has_stdin,
            timeout=seconds,
            max_output=max_output,
        )
    raise error(
        ErrorCode.INVALID_COMMAND,
        f"{shown(command, 200)} is not a command",
        remedy="Give a string for the shell, or a list of at least one word.",
        field="command",
        value=shown(command, 200),
    )


def input_chunks(stdin: Stdin) -> Iterator[bytes | NotYet]:
    """Standard input in pieces of a size that fits a frame. An empty one would mean its end."""
    if isinstance(stdin, str | Bytes):
        return _pieces([stdin])
    if sys.platform == "win32" and isinstance(stdin, io.FileIO | io.BufferedReader):
        return _pumped(stdin)
    if isinstance(stdin, io.FileIO):
        return _as_it_comes(stdin)
    if isinstance(stdin, io.BufferedReader) and isinstance(stdin.raw, io.FileIO) and not stdin.seekable():
        return _as_it_comes(stdin.raw, _take_buffered(stdin))
    if isinstance(stdin, Iterable):
        return _pieces(stdin)
    raise _no_input(stdin)


def _pieces(stdin: Iterable[str | Bytes]) -> Iterator[bytes]:
    for piece in stdin:
        if not isinstance(piece, str | Bytes):
            raise _no_input(piece)
        try:
            data = memoryview(piece.encode() if isinstance(piece, str) else piece).cast("B")
        except UnicodeEncodeError as cause:
            raise _no_input(piece) from cause
        for start in range(0, len(data), INPUT_CHUNK):
            yield bytes(data[start : start + INPUT_CHUNK])


def _take_buffered(stdin: io.BufferedReader) -> bytes:
    """The bytes that a reader has read ahead of whoever reads it, without waiting for more."""
    if sys.platform == "win32":  # where a thread reads
        return b""
    blocks = os.get_blocking(stdin.fileno())
    os.set_blocking(stdin.fileno(), False)
    try:
        return stdin.read1(len(stdin.peek()))
    finally:
        os.set_blocking(stdin.fileno(), blocks)


def _as_it_comes(stdin: io.FileIO, first: bytes = b"") -> Iterator[bytes | NotYet]:
    """A pipe or a socket may be silent for long, and the command be done without it."""
    yield from _pieces([first])
    while True:
        while not is_readable(stdin.fileno()):
            yield NotYet(stdin.fileno())
        data = stdin.read(INPUT_CHUNK)
        if data is None:  # another process read it first
            continue
        if not data:
            return
        yield data


def _pumped(stdin: io.FileIO | io.BufferedReader) -> Iterator[bytes | NotYet]:
    """Standard input where only sockets can be waited for, as on Windows: a thread moves it into one.

    What it has read ahead when the command is done is lost.
    """
    near, far = socket.socketpair()
    failures: list[OSError] = []
    threading.Thread(target=_pump, args=(stdin, far, failures), daemon=True).start()
    with near:
        while True:
            while not is_readable(near.fileno()):
                yield NotYet(near.fileno())
            data = near.recv(INPUT_CHUNK)
            if not data:
                break
            yield data
    if failures:
        raise failures[0]


def _pump(stdin: io.FileIO | io.BufferedReader, far: socket.socket, failures: list[OSError]) -> None:
    read = stdin.read1 if isinstance(stdin, io.BufferedReader) else stdin.read
    with far:
        while True:
            try:
                data = read(INPUT_CHUNK)
            except OSError as cause:
                failures.append(cause)
                return
            if not data:
                return
            try:
                far.sendall(data)
            except OSError:  # the command is done, and nobody reads
                return


def _no_input(stdin: object) -> AtollError:
    remedy = "Give text that can be UTF-8, bytes, or an iterable of either, such as a file."
    return wrong_argument("stdin", stdin, "cannot be standard input", remedy)


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
