"""A command under way: its streams, from and to the host; its clock, its end, its result.

A command's streams exist before it does, since its input may arrive while it waits for its turn, and its pipes come
with `open`. Rules:

1. A command is over when its first process has ended. What that process had written is still delivered; what its
   background children write later is drained and dropped, so that they are neither blocked nor killed by SIGPIPE.
2. The pipe is read only while the host takes bytes: back-pressure reaches the writer.
3. Past `max_output` a stream is read on and dropped. The program never notices.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.protocol.commands import TIMED_OUT_EXIT_CODE, ExecDone
from atoll.protocol.frames import FrameKind

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from atoll.agent.commands.drains import Drains
    from atoll.agent.commands.runner import CommandRunner
    from atoll.agent.operations import Owner
    from atoll.protocol.commands import Exec, ExecShell

KILL_GRACE_SECONDS = 0.5
READ_SIZE = 64 * 1024
INPUT_HELD = 256 * 1024
MAX_LEFT_IN_PIPE = 2**20  # the largest a pipe may be made without privileges


class CommandOperation:
    """An operation that is a command. Its streams are there before it starts."""

    def __init__(self, runner: CommandRunner, call: Exec | ExecShell, owner: Owner) -> None:
        self.streams = Streams(runner.drains, owner, call.max_output)

    def pause(self) -> None:
        self.streams.pause()

    def resume(self) -> None:
        self.streams.resume()

    def feed(self, data: bytes) -> bool:
        return self.streams.feed(data)

    def done(self, done: ExecDone) -> None:
        if self.streams.owner:
            self.streams.owner.done(done)


class Execution:
    """A command under way: its clock, its end, its result. How it is made to end is for its kind to say."""

    def __init__(
        self, runner: CommandRunner, call: Exec | ExecShell, streams: Streams, on_done: Callable[[ExecDone], None]
    ) -> None:
        self._runner = runner
        self._loop = runner.loop
        self._streams = streams
        self._on_done = on_done
        self._started = time.monotonic()
        self._timed_out = self._is_ending = self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None
        if call.timeout is not None:
            self._set_timer(call.timeout, self._time_out)
        runner.running.add(self)

    @property
    def is_ending(self) -> bool:
        """Whether it was told to end, and has not yet."""
        return self._is_ending

    def end(self) -> None:
        """Make it end, with all it has started. The result comes as always."""
        if not (self._is_ending or self._has_ended):
            self._is_ending = True
            self._terminate()

    def _terminate(self) -> None:
        raise NotImplementedError

    def _time_out(self) -> None:
        self._timed_out = True
        self.end()

    def _finish(self, exit_code: int, *, session_ended: bool = False) -> None:
        self._has_ended = True
        self._stop_timer()
        self._streams.finish()
        self._runner.running.discard(self)
        self._on_done(
            ExecDone(
                exit_code=TIMED_OUT_EXIT_CODE if self._timed_out else exit_code,
                duration=time.monotonic() - self._started,
                timed_out=self._timed_out,
                truncated=self._streams.truncated,
                session_ended=session_ended,
            )
        )
        self._streams.close()  # after the answer: nobody has to wait for this

    def _set_timer(self, seconds: float, action: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, action)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()


class Streams:
    """Standard input, output and error of one command, and the owner they lead to until it leaves."""

    def __init__(self, drains: Drains, owner: Owner, max_output: int | None) -> None:
        self.owner: Owner | None = owner
        self.truncated = False
        self._loop = drains.loop
        self._drains = drains
        self._is_paused = False
        self._allowance = {FrameKind.STDOUT: max_output, FrameKind.STDERR: max_output}
        self._outputs: dict[int, FrameKind] = {}
        self._input = InputPipe(self._loop, owner.input_drained)
        self._on_silence: Callable[[], None] | None = None

    def open(self, stdout: int, stderr: int, on_silence: Callable[[], None] | None = None) -> None:
        """Our ends of the pipes. `on_silence` is called once nobody can write to either any more."""
        self._outputs = {stdout: FrameKind.STDOUT, stderr: FrameKind.STDERR}
        self._on_silence = on_silence
        if not self._is_paused:
            self.resume()

    @property
    def were_opened(self) -> bool:
        """Whether the other end of a FIFO ever was. If nobody has it open now, poll still tells of who had."""
        poll = select.poll()
        for fd in self._outputs:
            poll.register(fd, select.POLLIN)
        return len(self._outputs) < 2 or bool(poll.poll(0)) or any(read_now(fd) is None for fd in self._outputs)

    def open_input(self, stdin: int | None) -> None:
        """Our end of the pipe, or none for a command that is given nothing."""
        self._input.open(stdin)

    def resume(self) -> None:
        self._is_paused = False
        for fd in self._outputs:
            self._loop.add_reader(fd, self._on_readable, fd)

    def pause(self) -> None:
        self._is_paused = True
        for fd in self._outputs:
            self._loop.remove_reader(fd)

    def feed(self, data: bytes) -> bool:
        """Bytes for standard input, none for its end. False: wait for `input_drained` before sending more."""
        return self._input.feed(data)

    def abandon(self) -> None:
        """The owner is gone, and nobody is left to push back."""
        self.owner = None
        self.resume()

    def finish(self) -> None:
        """The command has ended: deliver what is left of it."""
        for fd, kind in self._outputs.items():
            # Only about what is there now, which a pipe's size bounds: a background child may write for ever.
            allowed = MAX_LEFT_IN_PIPE
            while allowed > 0 and (data := read_now(fd)):
                allowed -= len(data)
                self._deliver(kind, data)

    def close(self) -> None:
        """Nothing more is delivered. What still comes is drained."""
        for fd in self._outputs:
            self._loop.remove_reader(fd)
            self._drains.take(fd)
        self._outputs.clear()
        self._input.close()

    def _on_readable(self, fd: int) -> None:
        if data := read_now(fd):
            self._deliver(self._outputs[fd], data)
        elif data is not None:
            del self._outputs[fd]
            self._loop.call_soon(self._let_go, fd)  # both mostly end together, and then somebody waits for the answer
            if not self._outputs and self._on_silence:
                self._on_silence()

    def _let_go(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        os.close(fd)

    def _deliver(self, kind: FrameKind, data: bytes) -> None:
        allowed = self._allowance[kind]
        if allowed is not None:
            self.truncated |= len(data) > allowed
            data = data[:allowed]
            self._allowance[kind] = allowed - len(data)
        if data and self.owner:
            self.owner.send(kind, data)


class InputPipe:
    """A command's standard input. It holds what the command has not read yet, up to INPUT_HELD bytes and a frame."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_drained: Callable[[], None]) -> None:
        self._loop = loop
        self._fd: int | None = None
        self._on_drained = on_drained
        self._held = bytearray()
        self._ends = self._is_closed = False

    def open(self, fd: int | None) -> None:
        if fd is None:
            self.close()
            return
        self._fd = fd
        if self._held or self._ends:
            self._write()

    def feed(self, data: bytes) -> bool:
        if self._is_closed or self._ends:
            return True  # the reader closed its end: what comes now is for nobody
        self._ends = not data
        self._held += data
        if self._fd is not None:
            self._write()
        return len(self._held) < INPUT_HELD

    def close(self) -> None:
        self._is_closed = True
        self._held.clear()
        if self._fd is not None:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None

    def _write(self) -> None:
        assert self._fd is not None
        was_full = len(self._held) >= INPUT_HELD
        try:
            while self._held:
                del self._held[: os.write(self._fd, self._held[:READ_SIZE])]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._write)
        except BrokenPipeError:
            self.close()
        else:
            self._loop.remove_writer(self._fd)
            if self._ends:
                self.close()
        if was_full and len(self._held) < INPUT_HELD:
            self._on_drained()


def read_now(fd: int) -> bytes | None:
    """Up to READ_SIZE bytes; none at the end of the file; None if there is nothing yet."""
    with suppress(BlockingIOError):
        return os.read(fd, READ_SIZE)
    return None
