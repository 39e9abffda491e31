"""A connection to an agent: frames out, frames in. Every byte that arrives is treated as hostile.

Rules:
1. An agent has its frames taken as fast as its caller takes them: UNREAD_FRAMES wait decoded, besides what was read at
   once with them. Then it is not read from any more.
2. Whoever takes frames has turns (`turns`), however fast they come.
3. A command waits for its turn in a session at most once, before it says anything, and only while an operation of that
   session that began before it is under way; or for QUEUE_GRACE, which is what that one's end may take.
4. What comes unasked ends the connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from atoll.protocol.calls import misbehaved
from atoll.protocol.commands import Turn
from atoll.protocol.errors import AgentMisbehavedError, AtollError, ErrorCode, error
from atoll.protocol.files import is_about_files
from atoll.protocol.frames import (
    QUEUEING,
    Frame,
    FrameDecoder,
    FrameError,
    FrameKind,
    decode_lost,
    encode_frame,
    encode_header,
)
from atoll.supervisor.agent_failures import failure_in, kept_waiting, not_running, silent
from atoll.supervisor.patience import Patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.supervisor.agent_link import AgentLink

SENT_AHEAD = 1024 * 1024  # the kernel gives twice its default at most
UNREAD_FRAMES = 16  # frames that wait for the caller before the agent has to
INPUT_CHUNK = 64 * 1024
QUEUE_GRACE = 30.0
# How a stream that can tell says that its peer is gone and has not read everything: while we write, and once we have.
UNREAD = (BrokenPipeError, ConnectionResetError)
NO_TURN = Turn(may_wait=False)


class AgentConnection(asyncio.Protocol):
    """A connection; `is_free` between operations."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._transport: asyncio.Transport | None = None
        self._calls = self._last_lost = 0  # counted from 1
        self.idle_since = 0.0
        self.is_about_files = False  # what it is used for
        self.session: str | None = None  # in whose queue the operation at hand may wait
        self._turn = NO_TURN  # of the operation at hand
        self._queue_timer: asyncio.TimerHandle | None = None
        self._is_busy = False
        self._is_answered = False
        self._is_paused = False
        self._has_input = False
        self._has_answer = False
        self._is_unread = False

    @property
    def is_free(self) -> bool:
        return not (
            self._is_busy
            or self._failure
            or self._frames
            or self._decoder.is_mid_frame
            or (self._transport and self._transport.is_closing())
        )

    def begin(self, message: bytes, session: str | None = None, more: bytes = b"") -> None:
        """A call; `more` are frames of its input, which go out with it."""
        self._calls += 1
        self._is_busy = True
        self.session = session
        self._turn = Turn(may_wait=session is not None)
        self._is_answered = self._has_answer = False
        self._has_input = bool(more)
        self._write(b"".join((encode_header(FrameKind.CALL, len(message)), message, more)))

    async def send_input(self, data: bytes) -> None:
        """All of a command's standard input, and its end."""
        self._has_input = True
        for start in range(0, len(data), INPUT_CHUNK):
            await self._can_write.wait()
            self._write(encode_frame(FrameKind.INPUT, data[start : start + INPUT_CHUNK]))
        self._write(encode_frame(FrameKind.INPUT))

    @asynccontextmanager
    async def fed(self, stdin: bytes) -> AsyncIterator[None]:
        """Standard input goes out beside what is done in the block."""
        feeder = asyncio.create_task(self.send_input(stdin))
        try:
            yield
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)

    async def send_frame(self, frame: Frame) -> None:
        self._has_input = True
        await self._can_write.wait()
        if self._transport and not self._transport.is_closing():
            # Apart, so that what may be large is not copied once more.
            self._transport.writelines((encode_header(frame.kind, len(frame.payload)), frame.payload))

    async def ping(self) -> None:
        await self._link.ping()

    @property
    def has_frame(self) -> bool:
        """Whether the next one need not be waited for."""
        return bool(self._frames)

    async def frames(self, patience: float | None = None) -> AsyncIterator[Frame]:
        """The frames of the operation's answer; DONE is the last. A failed operation raises its error.

        The agent may be waited for `patience` seconds in all, and for longer while others of the session come first.
        """
        waits = Patience(patience)
        while self._is_busy:
            yield await self.next_of_answer(waits)

    async def next_of_answer(self, waits: Patience) -> Frame:
        """The next frame, but for what is said of a command's turn."""
        while True:
            if not self._frames and not self._turn.is_waiting:
                await waits.wait_for(self.wait_for_frame())
            frame = await self.next_frame()
            if frame.kind not in QUEUEING:
                return frame

    async def wait_for_frame(self) -> None:
        while not self._frames:
            await self._wait()

    async def frame_comes(self, seconds: float) -> bool:
        """Whether there is a frame in so many seconds."""
        if not self._frames:
            alarm = asyncio.get_running_loop().call_later(seconds, self._wake)
            try:
                await self._wait()
            finally:
                alarm.cancel()
        return bool(self._frames)

    async def _wait(self) -> None:
        """Until somebody wakes us. If that was the end of the connection, say so."""
        if not self._failure:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._failure and not self._frames:
            raise self._reason()

    async def next_frame(self) -> Frame:
        if not self._frames:
            await self.wait_for_frame()
        if self._link.turns.is_over:
            await self._link.turns.next()
        frame = self._frames.popleft()
        if frame.kind is FrameKind.DONE:
            self._is_busy = False
        if len(self._frames) < UNREAD_FRAMES // 2 and (self._is_paused or self._decoder.is_mid_frame):
            self._go_on_reading()
        if frame.kind is FrameKind.FAILED:  # perhaps the last words on this connection: it is not used again
            raise failure_in(frame)
        return frame

    async def rest(self) -> None:
        """Let others have their turn, if this sandbox has had its own: for who takes long with one frame."""
        if self._link.turns.is_over:
            await self._link.turns.next()

    def _go_on_reading(self) -> None:
        self._decode()
        if self._is_paused and len(self._frames) < UNREAD_FRAMES // 2 and self._transport:
            self._is_paused = False
            self._transport.resume_reading()

    def look_at_queue(self) -> None:
        """If nobody is left whom the command could wait for, it is not to wait for long."""
        if self._turn.is_waiting and self._queue_timer is None and not self._link.has_elder(self):
            self._queue_timer = asyncio.get_running_loop().call_later(QUEUE_GRACE, self._waited_for_nobody)

    def _waited_for_nobody(self) -> None:
        self._fail(kept_waiting(QUEUE_GRACE))
        self.abort()
        self._wake()

    def end(self) -> None:
        """Of the operation at hand, whole or not."""
        self._turn = NO_TURN
        self._stop_queue_timer()

    def _stop_queue_timer(self) -> None:
        if self._queue_timer:
            self._queue_timer.cancel()
            self._queue_timer = None

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    def give_up(self, seconds: float) -> None:
        self._fail(silent(seconds))
        self.abort()
        self._wake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own
        peer = transport.get_extra_info("socket")
        if peer.family == socket.AF_UNIX:  # TCP finds its own measure
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)

    def data_received(self, data: bytes) -> None:
        self._has_answer = True
        self._decoder.push(data)
        self._decode()
        if len(self._frames) >= UNREAD_FRAMES and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def _decode(self) -> None:
        """As many frames as may wait. What is left of a read stays as it came, which takes a tenth of the memory."""
        try:
            while len(self._frames) < UNREAD_FRAMES and not self._failure and (frame := self._decoder.pop()):
                self._take(frame)
        except FrameError as cause:
            self._fail(misbehaved(str(cause)))
            self.abort()
        except AgentMisbehavedError as problem:
            self._fail(problem)
            self.abort()

    def connection_lost(self, cause: Exception | None) -> None:
        self._is_unread = self._link.tells_unread and isinstance(cause, UNREAD)
        self._fail(error(ErrorCode.AGENT_LOST, self._link.ending.message, remedy=self._link.ending.remedy))
        self._can_write.set()
        self._wake()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def _take(self, frame: Frame) -> None:
        if frame.kind in (FrameKind.CALL, FrameKind.INPUT):
            raise FrameError(f"an agent does not send {frame.kind.name}")
        if frame.kind is FrameKind.LOST:
            self._take_lost(frame.payload)
            return
        if not self._is_busy and frame.kind is FrameKind.FAILED:
            self._fail(failure_in(frame))  # turned away before we could ask
            return
        if not self._is_busy:
            raise FrameError(f"a {frame.kind.name} frame came unasked")
        self._follow(frame.kind)
        self._is_answered = frame.kind in (FrameKind.DONE, FrameKind.FAILED)
        self._frames.append(frame)

    def _follow(self, kind: FrameKind) -> None:
        """A command that waits says so first, and then that it begins, each once."""
        self._turn.take(kind)
        if kind is FrameKind.WAITING:
            self.look_at_queue()
        elif kind is FrameKind.STARTED:
            self._stop_queue_timer()

    def _take_lost(self, payload: bytes) -> None:
        """Of the latest call or the one before, and each once: there is no third that could be in doubt."""
        number, problem = decode_lost(payload)
        if not max(self._last_lost, self._calls - 2) < number <= self._calls:
            raise FrameError(f"call {number} of {self._calls} cannot be lost")
        self._last_lost = number
        if number == self._calls and self._is_busy and not self._is_answered:
            self._take(Frame(FrameKind.FAILED, problem))

    def _write(self, data: bytes) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(data)

    def _reason(self) -> Exception:
        """Why there is no frame. An agent acts on whole frames: a call of which it left something unread did nothing.

        Behind a call that was read there may be input that was not, and that looks the same.
        """
        if self._is_unread and not self._has_input and not self._has_answer:
            return not_running("the sandbox ended before its agent took this call, so nothing of it was done")
        assert self._failure
        return self._failure

    def _fail(self, failure: AtollError) -> None:
        if self._link.sandbox:
            failure = failure.about(sandbox=self._link.sandbox)
        self._failure = self._failure or failure

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)


class Exchange:
    """An exchange with an agent, on a connection that is kept for the next only if this one came to its end.

    `more` are frames of input that go out with the call.
    """

    def __init__(self, link: AgentLink, message: bytes, session: str | None, more: bytes = b"") -> None:
        self._link = link
        self._message = message
        self._session = session
        self._more = more

    async def __aenter__(self) -> AgentConnection:
        if self._link.may_be_old:
            await self._link.check(self._message)
        return await self.begin()

    async def begin(self) -> AgentConnection:
        self._connection = await self._link.connection(is_about_files=is_about_files(self._message))
        self._link.take(self._connection)
        self._connection.begin(self._message, self._session, self._more)
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        self._link.take_back(self._connection)


async def first_frame(agent: AgentConnection) -> None:
    """Wait until something of the answer is here."""
    await agent.wait_for_frame()


async def any_sign_of_life(agent: AgentConnection) -> None:
    """Wait until its agent answers anything, on another connection: for a call that says nothing before its input."""
    await agent.ping()


async def nothing(agent: AgentConnection) -> None:
    """For a call that may be silent for long, and whose caller is to be told that it is under way."""
