"""A worker's own side: it waits for a job, does it, says that it is done. Plain code that blocks where it must.

The host's connection comes with the job. It does not block, since PID 1 has the same one in its event loop; so
whoever uses it here waits by `poll`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    FrameError,
    FrameKind,
    decode_header,
    encode_frame,
    encode_header,
)
from atoll.protocol.messages import decode_call, encode_message

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Sequence

    from atoll.protocol.messages import AnyCall

    Perform = Callable[[Any, bytes, "HostPort"], msgspec.Struct]

RECEIVED_AT_ONCE = 128 * 1024
UNSENT_BYTES = 64 * 1024
SENT_AS_ONE = 16 * 1024  # bytes that a Unix socket takes all or not at all, as one buffer of the kernel's
MAX_INLINE = 64 * 1024  # of a packet; what is longer travels in a file without a name
MAX_DESCRIPTORS = 2


_INLINE, _IN_FILE = b".", b"F"


class Phase(IntEnum):
    """How far an operation is, in a byte that PID 1 can read when the worker is gone."""

    NOT_BEGUN = 0
    BETWEEN_FRAMES = 1
    MID_FRAME = 2
    ANSWERING = 3  # the last frame has been sent, or has not: nobody can say. Nothing was read beyond the operation.


class Job(msgspec.Struct, frozen=True, array_like=True):
    """An operation. `unread` is what has already been read from the connection after the call."""

    call: bytes
    directory: bytes
    unread: bytes


class Cancelled(BaseException):
    """The host has left: nobody wants the result. Passes every handler but those that tidy up."""


encode_job = msgspec.msgpack.Encoder().encode
_decode_job = msgspec.msgpack.Decoder(Job).decode


class WorkerProcess:
    """`control` leads to PID 1; the first byte of `phase` is seen there too. `perform` does what is asked."""

    def __init__(self, control: int, phase: mmap.mmap | bytearray, perform: Perform) -> None:
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, control)
        self._phase = phase
        self._perform = perform
        self._buffer = memoryview(bytearray(RECEIVED_AT_ONCE))

    def serve(self) -> NoReturn:
        """Until PID 1 hangs up, or a host does in the middle of an operation."""
        with suppress(Cancelled):
            signal.signal(signal.SIGTERM, _cancel)
            while self.serve_one():
                pass
        os._exit(0)

    def serve_one(self) -> bool:
        packet = receive_packet(self._control)
        if packet is None:
            return False
        self._phase[0] = Phase.BETWEEN_FRAMES
        job = _decode_job(packet.payload)
        port = HostPort(packet.fds[0], job.unread, self._buffer, self._phase)
        self._answer(job, port)
        send_packet(self._control, port.unread())
        port.close()
        return True

    def close(self) -> None:
        """For rehearsals; a worker proper ends as a process."""
        self._control.close()

    def _answer(self, job: Job, port: HostPort) -> None:
        call = decode_call(job.call)
        try:
            result = self._perform(call, job.directory, port)
            port.send_last(FrameKind.DONE, encode_message(result))
        except AtollError as cause:
            self._fail(cause, call, port)
        except FrameError as cause:
            self._fail(error(ErrorCode.INVALID_REQUEST, str(cause), remedy="Open a new connection."), call, port)
            port.hang_up()
        except Exception as cause:  # ours, or memory ran out: the one who asked shall hear of it
            message = f"{type(cause).__name__}: {cause!s:.200}"
            self._fail(error(ErrorCode.INTERNAL_ERROR, message, remedy="Report this."), call, port)

    def _fail(self, cause: AtollError, call: AnyCall, port: HostPort) -> None:
        port.send_last(FrameKind.FAILED, encode_message(cause.about(**call.subject).to_body()))


class HostPort:
    """The host's connection for one operation. What is sent is kept until there is enough of it, or `flush`."""

    def __init__(self, fd: int, unread: bytes, buffer: memoryview, phase: mmap.mmap | bytearray) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        self._buffer = buffer
        self._phase = phase
        self._unsent = bytearray()
        self._received = memoryview(unread)
        self._left = 0  # of the payload that is being received

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def send(self, kind: FrameKind, payload: bytes) -> None:
        self._unsent += encode_frame(kind, payload)
        if len(self._unsent) >= UNSENT_BYTES:
            self.flush()

    def send_last(self, kind: FrameKind, payload: bytes) -> None:
        """The frame that ends the operation. What follows on the connection is none of ours."""
        frame = encode_frame(kind, payload)
        if len(self._unsent) + len(frame) > SENT_AS_ONE:
            self.flush()
        self._unsent += frame
        if len(self._unsent) > SENT_AS_ONE or self._left or self._received:
            self.flush()
        else:
            self._phase[0] = Phase.ANSWERING
            self._send_all(self._unsent)

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
        self._phase[0] = Phase.MID_FRAME
        self._send_all(data, socket.MSG_MORE if more else 0)
        if not more:
            self._phase[0] = Phase.BETWEEN_FRAMES

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


class Packet(NamedTuple):
    payload: bytes
    fds: list[int]


def send_packet(control: socket.socket, payload: bytes, fds: Sequence[int] = ()) -> None:
    if len(payload) <= MAX_INLINE:
        socket.send_fds(control, [_INLINE + payload], fds)
        return
    file = os.memfd_create("packet", os.MFD_CLOEXEC)
    try:
        os.write(file, payload)
        socket.send_fds(control, [_IN_FILE], [*fds, file])
    finally:
        os.close(file)


def receive_packet(control: socket.socket) -> Packet | None:
    """None if the other side has hung up."""
    packet, fds, _, _ = socket.recv_fds(control, len(_INLINE) + MAX_INLINE, MAX_DESCRIPTORS)
    if not packet:
        return None
    if packet != _IN_FILE:
        return Packet(packet[len(_INLINE) :], fds)
    *fds, file = fds
    try:
        return Packet(os.pread(file, os.fstat(file).st_size, 0), fds)
    finally:
        os.close(file)


def _cancel(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what tidies up shall not be interrupted
    raise Cancelled
