"""The streams of a command: what it reads and writes, on its way from and to the host.

A command's streams exist before it does, since its input may arrive while it waits for its turn, and its pipes come
with `open`. The rules of commands.py about output are kept here.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.protocol.frames import FrameKind

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from atoll.agent.operations import Owner

READ_SIZE = 64 * 1024
MAX_DRAINED_PIPES = 256
INPUT_HELD = 256 * 1024
MAX_LEFT_IN_PIPE = 2**20  # the largest a pipe may be made without privileges


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


class Drains:
    """Pipes that only background children still write to: read, and dropped, until nobody can."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pipes: list[int] = []

    def take(self, fd: int) -> None:
        if read_now(fd) == b"":
            os.close(fd)
            return
        if len(self._pipes) >= MAX_DRAINED_PIPES:
            self._close(self._pipes[0])
        self._pipes.append(fd)
        self.loop.add_reader(fd, self._drop, fd)

    def _drop(self, fd: int) -> None:
        if read_now(fd) == b"":
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._pipes.remove(fd)
        self.loop.remove_reader(fd)
        os.close(fd)


def read_now(fd: int) -> bytes | None:
    """Up to READ_SIZE bytes; none at the end of the file; None if there is nothing yet."""
    with suppress(BlockingIOError):
        return os.read(fd, READ_SIZE)
    return None
