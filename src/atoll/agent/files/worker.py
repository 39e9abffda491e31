"""A worker's own side: it waits for a job and does it. Plain code that blocks where it must.

The host's connection comes with the job, and is kept for further calls about files, with which PID 1 has nothing to do.
It is given back, with what was read of a call that was not taken, when that is another kind of call, or counts from
another session or from where that may not be any more; when PID 1 asks for it; when nothing has come for KEEP_SECONDS.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from atoll.agent.files.host_port import Cancelled, HostPort
from atoll.agent.files.progress import Phase, Progress
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.files import FileCall, WatchFiles
from atoll.protocol.frames import FrameError, FrameKind
from atoll.protocol.messages import decode_call, encode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.protocol.messages import AnyCall

    Perform = Callable[[Any, bytes, HostPort], msgspec.Struct]

RECEIVED_AT_ONCE = 128 * 1024
KEEP_SECONDS = 2.0
MAX_INLINE = 64 * 1024  # of a packet; what is longer travels in a file without a name
MAX_DESCRIPTORS = 2

_INLINE, _IN_FILE = b".", b"F"


class Job(msgspec.Struct, frozen=True, array_like=True):
    """An operation. `unread` is what has already been read from the connection after the call."""

    call: bytes
    directory: bytes
    unread: bytes


encode_job = msgspec.msgpack.Encoder().encode
_decode_job = msgspec.msgpack.Decoder(Job).decode


class WorkerProcess:
    """`control` leads to PID 1, which also sees the progress. `perform` does what is asked."""

    def __init__(
        self, control: int, progress: Progress, perform: Perform, *, keep_seconds: float = KEEP_SECONDS
    ) -> None:
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, control)
        self._progress = progress
        self._perform = perform
        self._keep_seconds = keep_seconds
        self._buffer = memoryview(bytearray(RECEIVED_AT_ONCE))

    def serve(self) -> NoReturn:
        """Until PID 1 hangs up, or a host does in the middle of an operation."""
        with suppress(Cancelled):
            signal.signal(signal.SIGTERM, _cancel)
            while self.serve_connection():
                pass
        os._exit(0)

    def serve_connection(self) -> bool:
        packet = receive_packet(self._control)
        if packet is None:
            return False
        if not packet.fds:  # we are asked for what we have given back
            return True
        self._progress.phase = Phase.BETWEEN_FRAMES
        job = _decode_job(packet.payload)
        port = HostPort(packet.fds[0], job.unread, self._buffer, self._progress)
        self._serve_calls(decode_call(job.call), job.directory, port)
        send_packet(self._control, port.unread())
        port.close()
        return True

    def _serve_calls(self, call: AnyCall, directory: bytes, port: HostPort) -> None:
        """A call and those that follow."""
        self._answer(call, directory, port)
        if not isinstance(call, FileCall) or isinstance(call, WatchFiles):
            return
        session_id = call.session_id
        while message := port.wait_for_call(self._control, self._keep_seconds):
            further = self._understood(message, session_id)
            if further is None:
                return
            port.take_call(message)
            self._answer(further, directory, port)

    def _understood(self, message: bytes, session_id: str | None) -> AnyCall | None:
        """A call, if it is for us."""
        try:
            call = decode_call(message)
        except msgspec.MsgspecError:
            return None
        is_ours = isinstance(call, FileCall) and not isinstance(call, WatchFiles) and call.session_id == session_id
        return call if is_ours and not self._progress.is_outdated else None

    def close(self) -> None:
        """For rehearsals; a worker proper ends as a process."""
        self._control.close()

    def _answer(self, call: AnyCall, directory: bytes, port: HostPort) -> None:
        try:
            result = self._perform(call, directory, port)
            port.send_last(FrameKind.DONE, encode_message(result))
        except AtollError as cause:
            self._fail(cause, call, port)
        except FrameError as cause:
            self._fail(error(ErrorCode.INVALID_REQUEST, str(cause), remedy="Open a new connection."), call, port)
            port.hang_up()
        except Exception as cause:  # ours, or memory ran out: the one who asked shall hear of it
            message = f"{type(cause).__name__}: {cause!s:.200}"
            self._fail(error(ErrorCode.INTERNAL_ERROR, message, remedy="Report this."), call, port)
        port.tidy_up()

    def _fail(self, cause: AtollError, call: AnyCall, port: HostPort) -> None:
        port.send_last(FrameKind.FAILED, encode_message(cause.about(**call.subject).to_body()))


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
