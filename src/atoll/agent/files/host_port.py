"""The host's connection, while a worker has it: input comes in, frames go out, and then comes the next call.

It does not block, since PID 1 has the same one in its event loop; so whoever waits here waits by `poll`.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.agent.files.progress import Phase, Progress
from atoll.protocol.frames import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    FrameError,
    FrameKind,
    decode_header,
    encode_frame,
    encode_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_CALL = 8 * 1024  # with its header, of those that come without PID 1
UNSENT_BYTES = 64 * 1024
SENT_AS_ONE = 16 * 1024  # bytes that a Unix socket takes all or not at all, as one buffer of the kernel's


class Cancelled(BaseException):
    """The host has left: nobody wants the result. Passes every handler but those that tidy up."""


class HostPort:
    """The port to the host: frames are kept until there are enough of them, or `flush`."""

    def __init__(self, fd: int, unread: bytes, buffer: memoryview, progress: Progress) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self._buffer = buffer
        self._progress = progress
        self._unsent = bytearray()
        self._received = memoryview(unread)
        self._left = 0  # of the payload that is being received
        self._to_be_closed: int | None = None

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def send(self, kind: FrameKind, payload: bytes) -> None:
        self._unsent += encode_frame(kind, payload)
        if len(self._unsent) >= UNSENT_BYTES:
            self.flush()

    def send_last(self, kind: FrameKind, payload: bytes) -> None:
        """The frame that ends the operation."""
        frame = encode_frame(kind, payload)
        if len(self._unsent) + len(frame) > SENT_AS_ONE:
            self.flush()
        self._unsent += frame
        if len(self._unsent) > SENT_AS_ONE or self._left or self._received:
            self.flush()
        else:
            self._progress.phase = Phase.ANSWERING
            self._send_all(self._unsent)
            self._unsent.clear()

    def close_after_answer(self, fd: int | None) -> None:
        """Have a descriptor closed when nobody waits any more, as that takes the kernel a while."""
        self._to_be_closed = fd

    def tidy_up(self) -> None:
        """After an answer."""
        if self._to_be_closed is not None:
            os.close(self._to_be_closed)
            self._to_be_closed = None

    def send_data(self, data: bytes | memoryview) -> None:
        """A DATA frame, which is not copied if it is large, or as many as it takes."""
        if len(data) > MAX_PAYLOAD:
            view = memoryview(data)
            for start in range(0, len(view), MAX_PAYLOAD):
                self.send_data(view[start : start + MAX_PAYLOAD])
            return
        self._unsent += encode_header(FrameKind.DATA, len(data))
        if len(data) < UNSENT_BYTES:
            self._unsent += data
        else:
            self._write(self._unsent, more=True)
            self._write(data)
            self._unsent.clear()

    def flush(self) -> None:
        if self._unsent:
            self._write(self._unsent)
            self._unsent.clear()

    def receive(self) -> Iterator[memoryview]:
        """The input of this operation, until the host says that this is all. Each view is good until the next."""
        while True:
            self._left, kind = decode_header(self._read_header())
            if kind is not FrameKind.INPUT:
                raise FrameError(f"a {kind.name} frame has no place here")
            if not self._left:
                return
            while self._left:
                if not self._received:
                    self._refill()
                view = self._received[: self._left]
                self._received = self._received[len(view) :]
                self._left -= len(view)
                yield view

    def wait_for_call(self, control: socket.socket, seconds: float) -> bytes | None:
        """The next call, if it comes, and as a whole. None if something else comes, also from `control`.

        It is not read before it is taken: until then, whoever else has the connection finds it there.
        """
        if self._left or self._received:
            return None
        self._progress.phase = Phase.KEPT
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(self._socket, select.POLLIN | select.POLLRDHUP)
        if poll.poll(seconds * 1000) != [(self.fd, select.POLLIN)]:
            return None
        try:
            return _call_in(self._socket.recv(LONGEST_CALL, socket.MSG_PEEK))
        except OSError:
            return None

    def take_call(self, message: bytes) -> None:
        """The call that was waited for."""
        self._progress.phase = Phase.BETWEEN_FRAMES
        self._progress.take_call(message)
        self._refill()
        self._received = self._received[HEADER_SIZE + len(message) :]

    def unread(self) -> bytes:
        """The bytes that were received and belong to nothing yet; of a frame that was begun, the rest, as a frame."""
        rest = encode_header(FrameKind.INPUT, self._left) if self._left else b""
        return rest + self._received

    def wait_until_writable(self) -> None:
        self._wait(select.POLLOUT)

    def hang_up(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _read_header(self) -> bytes:
        header = b""
        while True:
            taken = self._received[: HEADER_SIZE - len(header)]
            self._received = self._received[len(taken) :]
            header += taken
            if len(header) == HEADER_SIZE:
                return header
            self._refill()

    def _refill(self) -> None:
        self.flush()
        while True:
            try:
                count = self._socket.recv_into(self._buffer)
                break
            except BlockingIOError:
                self._wait(select.POLLIN)
            except OSError:
                raise Cancelled from None
        if not count:
            raise Cancelled
        self._received = self._buffer[:count]

    def _write(self, data: bytes | bytearray | memoryview, *, more: bool = False) -> None:
        """All of it. Between two calls with `more` a frame is unfinished."""
        self._progress.phase = Phase.MID_FRAME
        self._send_all(data, socket.MSG_MORE if more else 0)
        if not more:
            self._progress.phase = Phase.BETWEEN_FRAMES

    def _send_all(self, data: bytes | bytearray | memoryview, flags: int = 0) -> None:
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                try:
                    sent += self._socket.send(view[sent:], flags)
                except BlockingIOError:
                    self._wait(select.POLLOUT)
                except OSError:
                    raise Cancelled from None

    def _wait(self, what: int) -> None:
        poll = select.poll()
        poll.register(self._socket, what)
        poll.poll()


def _call_in(received: bytes) -> bytes | None:
    """The call with which this begins, if it is there as a whole."""
    if len(received) < HEADER_SIZE:
        return None
    try:
        length, kind = decode_header(received)
    except FrameError:
        return None
    call = received[HEADER_SIZE : HEADER_SIZE + length]
    return call if kind is FrameKind.CALL and len(call) == length else None
