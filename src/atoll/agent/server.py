"""The agent's side of a connection: one operation at a time, kept open for the next, cancelled when it closes."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.agent.descriptors import FEW_LEFT, limit
from atoll.agent.operations import Loan
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import FrameDecoder, FrameError, FrameKind, encode_frame, encode_lost
from atoll.protocol.messages import decode_call, encode_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.operations import Calls, Operation
    from atoll.agent.secret import Secret
    from atoll.protocol.calls import Call

MAX_CONNECTIONS = 512
ACCEPTED_PER_TURN = 64
SENT_AHEAD = 140 * 1024  # of which the kernel makes twice as much: 256 KB of content go without a wait
ACCEPT_PAUSE_SECONDS = 0.5
UNSENT_BYTES = 256 * 1024  # output that waits for the host before the command's pipe is left alone

_PEER_CREDENTIALS = struct.Struct("3i")


class AgentServer:
    """Takes connections, and has what they share. `admits` says who may connect, and `secret` what they say first."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: Calls,
        admits: Callable[[socket.socket], bool],
        secret: Secret | None = None,
    ) -> None:
        self.loop = loop
        self.calls = calls
        self.admits = admits
        self._secret = secret
        self.connections = 0
        self._greetings: set[asyncio.Task[object]] = set()

    def listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self.loop.add_reader(listener, self._accept)

    def close(self) -> None:
        self.loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                peer, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors, say; whoever waits can wait a little longer
                self.loop.remove_reader(self._listener)
                self.loop.call_later(ACCEPT_PAUSE_SECONDS, self.listen, self._listener)
                return
            limit.note(peer.fileno())  # now: before they are greeted, more of them may have come than there is room for
            greeting = self.loop.create_task(self._greet(peer))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)

    async def _greet(self, peer: socket.socket) -> None:
        if self._secret and not await self._is_trusted(peer, self._secret):
            peer.close()
            return
        try:
            await self.loop.connect_accepted_socket(lambda: HostConnection(self), peer)
        except OSError:  # it is gone again
            peer.close()

    async def _is_trusted(self, peer: socket.socket, secret: Secret) -> bool:
        """Strangers may come in any number, so few of them are listened to at once."""
        peer.setblocking(False)
        return len(self._greetings) <= MAX_CONNECTIONS and await secret.is_said(peer)


class HostConnection(asyncio.Protocol):
    """A connection from the host. Anyone else is turned away before a byte is read."""

    def __init__(self, server: AgentServer) -> None:
        self._server = server
        self._is_full = self._is_dismissed = self._is_lent = False
        self._decoder = FrameDecoder()
        self._calls = 0  # that came, with the one under way
        self._operation: Operation | None = None
        self._call: Call[Any] | None = None  # while it is not answered
        self._hang_up: HangUpWatch | None = None  # kept once it is there: every operation on files pauses reading
        self._is_paused = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._server.connections += 1
        self._transport = transport
        peer = transport.get_extra_info("socket")
        if not self._server.admits(peer):
            transport.abort()
        elif not limit.has_room_after(peer.fileno()):
            self._dismiss(_no_descriptors(FEW_LEFT))
        elif self._server.connections > MAX_CONNECTIONS:
            busy = f"the sandbox already has {MAX_CONNECTIONS} operations under way"
            self._dismiss(error(ErrorCode.AGENT_BUSY, busy, remedy="Wait for some to end.", limit=MAX_CONNECTIONS))
        else:
            transport.set_write_buffer_limits(high=UNSENT_BYTES)
            if peer.family == socket.AF_UNIX:  # TCP finds its own measure
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)

    def data_received(self, data: bytes) -> None:
        if self._is_dismissed:
            return
        self._decoder.push(data)
        self._decode()

    def _decode(self) -> None:
        try:
            while self._is_listening and (frame := self._decoder.pop()):
                self._on_frame(frame.kind, frame.payload)
        except FrameError as cause:
            self._dismiss(error(ErrorCode.INVALID_REQUEST, str(cause), remedy="Open a new connection."))
        except AtollError as cause:
            self._dismiss(cause)

    @property
    def _is_listening(self) -> bool:
        return not (self._is_lent or self._is_dismissed or self._transport is None or self._transport.is_closing())

    def connection_lost(self, cause: Exception | None) -> None:
        self._server.connections -= 1
        self._stop_watching()
        self._cancel()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._operation:
            self._operation.pause()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._operation:
            self._operation.resume()

    def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(encode_frame(kind, payload))

    def done(self, result: msgspec.Struct) -> None:
        self._operation = self._call = None
        self.input_drained()
        self.send(FrameKind.DONE, encode_message(result))

    def fail(self, cause: AtollError) -> None:
        self._operation = None
        self.input_drained()
        self._say(cause)

    def input_drained(self) -> None:
        if self._is_paused and self._transport:
            self._is_paused = False
            self._transport.resume_reading()

    def lend(self) -> Loan:
        assert self._transport
        if self._transport.get_write_buffer_size():
            remedy = "Read the answer before the next call."
            raise error(ErrorCode.AGENT_BUSY, "the answers before this call have not been read", remedy=remedy)
        self._stop_reading()
        self._is_lent = True
        return Loan(self._transport.get_extra_info("socket").fileno(), self._decoder.take_rest())

    def catch_up(self, calls: int, latest: bytes | None) -> None:
        if calls:
            self._calls += calls
            self._call = None if latest is None else decode_call(latest)

    def take_back(self, unread: bytes, cause: AtollError | None = None) -> None:
        self._operation = None
        self._is_lent = False
        if cause:
            self._say(cause)
        self._call = None
        self.input_drained()
        if unread:
            self._decoder.push(unread)
            self._server.loop.call_soon(self._decode)  # not now: many calls that fail at once would nest

    def take_back_in_doubt(self, cause: AtollError) -> None:
        problem = self._about_call(cause)
        self.take_back(b"")
        self.send(FrameKind.LOST, encode_lost(self._calls, encode_message(problem.to_body())))

    def give_up(self, cause: AtollError) -> None:
        self._is_lent = False
        self.input_drained()
        self._operation = None
        self._dismiss(cause)

    def hang_up(self) -> None:
        self._operation = None
        if self._transport:
            self._transport.abort()

    def _on_frame(self, kind: FrameKind, payload: bytes) -> None:
        match kind:
            case FrameKind.CALL if self._operation is None:
                self._on_call(payload)
            case FrameKind.INPUT if self._operation is not None:
                if not self._operation.feed(payload):
                    self._stop_reading()
            case FrameKind.INPUT:
                pass  # the operation ended while its input was on the way
            case _:
                raise FrameError(f"a {kind.name} frame has no place here")

    def _on_call(self, payload: bytes) -> None:
        self._calls += 1
        try:
            call = self._call = decode_call(payload)
            if begin := self._server.calls.operations.get(type(call)):
                self._begin(begin(call, self))
            else:
                self.done(self._server.calls.answers[type(call)](call))
        except AtollError as cause:
            self.fail(cause)
        except msgspec.MsgspecError as cause:
            message = f"the agent cannot read this call: {cause}"
            self._say(error(ErrorCode.INVALID_REQUEST, message, remedy="Use the SDK of the same version."))

    def _begin(self, operation: Operation) -> None:
        self._operation = operation
        if self._is_full:  # the host has not read the answer before this one
            operation.pause()
        operation.begin()

    def _say(self, cause: AtollError) -> None:
        self.send(FrameKind.FAILED, encode_message(self._about_call(cause).to_body()))

    def _about_call(self, cause: AtollError) -> AtollError:
        call, self._call = self._call, None
        return cause if call is None else cause.about(**call.subject)

    def _dismiss(self, cause: AtollError) -> None:
        """Say why, and nothing more. The peer closes: if we did, with bytes of its own unread, it might miss it."""
        self._is_dismissed = True
        self._cancel()
        self._say(cause)
        if self._transport:
            self._transport.write_eof()

    def _cancel(self) -> None:
        if self._operation:
            self._operation.cancel()
            self._operation = None

    def _stop_reading(self) -> None:
        """The operation reads slowly; the host shall wait. Only its departure must still be noticed."""
        if self._transport is None or self._is_paused:
            return
        if self._hang_up is None:
            peer = self._transport.get_extra_info("socket").fileno()
            try:
                self._hang_up = HangUpWatch(self._server.loop, peer, self._on_hang_up)
            except OSError as cause:
                raise _no_descriptors(cause.strerror) from cause
        self._is_paused = True
        self._transport.pause_reading()
        if self._hang_up.has_hung_up:
            self._transport.abort()

    def _on_hang_up(self) -> None:
        if self._is_paused and self._transport:
            self._transport.abort()

    def _stop_watching(self) -> None:
        if self._hang_up:
            self._hang_up.close()
            self._hang_up = None


class HangUpWatch:
    """Calls `act` when the peer is gone, also while nobody reads from it, which asyncio alone would not see."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, act: Callable[[], None]) -> None:
        self.has_hung_up = False
        self._loop = loop
        self._act = act
        self._epoll = select.epoll(1)
        self._fd = os.dup(fd)  # a registration ends with its descriptor, and asyncio may close its own first
        self._epoll.register(self._fd, select.EPOLLRDHUP)
        loop.add_reader(self._epoll.fileno(), self._on_hang_up)

    def _on_hang_up(self) -> None:
        self.has_hung_up = True
        self._loop.remove_reader(self._epoll.fileno())  # it would say so again and again
        self._act()

    def close(self) -> None:
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            os.close(self._fd)


def _no_descriptors(why: str | None) -> AtollError:
    message = f"the sandbox can take no further operation: {why}"
    remedy = "Wait for some to end, or raise the limit with `ulimit -n`."
    return error(ErrorCode.AGENT_BUSY, message, remedy=remedy, reason=why)


def comes_from_outside(peer: socket.socket) -> bool:
    """Whether the peer lives outside our PID namespace: the kernel then has no number for it here, and says 0."""
    return pid_of(peer) == 0


def pid_of(peer: socket.socket) -> int:
    """Of who connected."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, _, _ = _PEER_CREDENTIALS.unpack(credentials)
    return int(pid)
