"""The host's side of an agent's socket. Every byte that arrives is treated as hostile.

Rules:
1. One operation per connection at a time; a free connection is kept for the next.
2. An operation that is left early closes its connection, which is how the agent learns to cancel it.
3. Nothing the agent sends is kept beyond what the caller allowed, and nothing is awaited for ever: an agent has the
   command's own timeout and a grace period to answer, or, where output is passed on, for each silence. Its time does
   not run while others of its session come first.
4. An agent that stands still takes no call's time alone: whoever has operations under way looks now and then whether it
   answers (`is_waited_for`, `ping`), and gives up on all of them if it does not.
5. An agent that cannot tell whether it answered a call says LOST, with the call's number: that concerns no later one.
6. SANDBOX_NOT_RUNNING means that the call was not taken, so it can be made again; AGENT_LOST, that nobody knows.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from atoll.protocol.calls import encode_call
from atoll.protocol.errors import (
    AgentLostError,
    AgentTimeoutError,
    AtollError,
)
from atoll.protocol.frames import Frame, FrameDecoder, FrameError, FrameKind, decode_lost, encode_frame, encode_header
from atoll.protocol.messages import (
    Call,
    CreateSession,
    DeleteSession,
    Exec,
    ExecDone,
    ExecShell,
    ListSessions,
    Ping,
    Pong,
    SessionInfo,
    SetEnvironment,
    decode_exec_done,
    decode_pong,
    decode_session,
    decode_sessions,
)
from atoll.supervisor.agent_failures import (
    WHEN_ENDED,
    decode,
    failure_in,
    misbehaved,
    not_running,
    silent,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

IDLE_CONNECTIONS = 8
UNREAD_FRAMES = 16  # frames that wait for the caller before the agent has to
CONNECT_TIMEOUT = 10.0
ANSWER_GRACE = 30.0  # on top of a command's own timeout
INPUT_CHUNK = 64 * 1024
MAX_OUTPUT_KEPT = 64 * 2**20
CONNECT_PAUSE = 0.005
# How a Unix socket says that its peer is gone and has not read everything: while we write, and once we have written.
UNREAD = (BrokenPipeError, ConnectionResetError)
SENT_AHEAD = 2**20  # the kernel gives twice its default at most: large files go twice as far without a wait


T = TypeVar("T")


class CommandOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished command with all it wrote."""

    stdout: bytes
    stderr: bytes
    done: ExecDone


class AgentLink:
    """All connections to one agent, that of `sandbox` if errors are to name it."""

    def __init__(self, socket_path: Path, sandbox: str | None = None) -> None:
        try:
            self._directory = os.open(socket_path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as cause:
            raise unreachable(cause) from cause
        # A socket's path may have 107 bytes; through a descriptor of its directory it always fits.
        self._path = f"/proc/self/fd/{self._directory}/{socket_path.name}"
        self._idle: list[AgentConnection] = []
        self._busy: set[AgentConnection] = set()
        self.sandbox = sandbox
        self.ending = WHEN_ENDED  # what operations are told that it takes along
        self.has_ended = False  # the sandbox, by itself; set by whoever watches it

    async def __aenter__(self) -> AgentLink:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    async def ping(self) -> Pong:
        return await self.ask(Ping(), decode_pong)

    async def create_session(self, call: CreateSession) -> SessionInfo:
        return await self.ask(call, decode_session)

    async def delete_session(self, session_id: str) -> SessionInfo:
        return await self.ask(DeleteSession(session_id=session_id), decode_session)

    async def list_sessions(self) -> list[SessionInfo]:
        return (await self.ask(ListSessions(), decode_sessions)).sessions

    async def set_environment(self, env: dict[str, str | None]) -> None:
        await self.ask(SetEnvironment(env=env), decode_sessions)

    async def ask(self, call: Call, decoder: Callable[[bytes], T]) -> T:
        """A call that is answered at once, with one frame."""
        async with self.operation(call) as connection, deadline(ANSWER_GRACE):
            frame = await connection.next_frame()
            if frame.kind is not FrameKind.DONE:
                raise misbehaved(f"the agent answered with {frame.kind.name}")
            return decode(decoder, frame)

    async def run(self, call: Exec | ExecShell, stdin: bytes | None = None) -> CommandOutput:
        """Run a command to its end and keep what it wrote: `max_output` of each stream, or MAX_OUTPUT_KEPT."""
        if stdin is not None:
            call = msgspec.structs.replace(call, stdin=True)
        if call.max_output is None:
            call = msgspec.structs.replace(call, max_output=MAX_OUTPUT_KEPT)
        async with self.operation(call) as connection, deadline(patience_with(call)) as time:
            turns = time if call.session_id else None
            if stdin is None:
                return await collect(connection, call.max_output, turns)
            async with connection.fed(stdin):
                return await collect(connection, call.max_output, turns)

    def operation(self, call: Call) -> Operation:
        """A connection on which `call` has been sent, as a context manager."""
        return Operation(self, encode_call(call))

    @property
    def is_waited_for(self) -> bool:
        """Whether anything is under way."""
        return bool(self._busy)

    def give_up(self) -> None:
        """On all that is under way: the agent does not answer."""
        for connection in list(self._busy):
            connection.give_up()

    def take(self, connection: AgentConnection) -> None:
        self._busy.add(connection)

    def take_back(self, connection: AgentConnection) -> None:
        """Keep a connection for the next operation, if it is fit for one."""
        self._busy.discard(connection)
        if connection.is_free and len(self._idle) < IDLE_CONNECTIONS and self._directory >= 0:
            self._idle.append(connection)
        else:
            connection.abort()

    async def connection(self) -> AgentConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free:
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._connect()
        except TimeoutError as cause:
            raise AgentTimeoutError(
                f"the agent did not take a connection within {CONNECT_TIMEOUT:g} seconds",
                remedy="The sandbox may be out of cpu; try again, or stop it.",
            ) from cause
        except OSError as cause:
            raise unreachable(cause) from cause

    async def _connect(self) -> AgentConnection:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)
            while True:
                try:
                    peer.connect(self._path)
                    break
                except BlockingIOError:  # so many wait already; a Unix socket cannot tell us when there is room
                    await asyncio.sleep(CONNECT_PAUSE)
            _, protocol = await asyncio.get_running_loop().create_unix_connection(
                lambda: AgentConnection(self), sock=peer
            )
        except BaseException:
            peer.close()
            raise
        return protocol


class Operation:
    """One operation on a connection, which is kept for the next only if this one came to its end."""

    def __init__(self, link: AgentLink, message: bytes) -> None:
        self._link = link
        self._message = message

    async def __aenter__(self) -> AgentConnection:
        self._connection = await self._link.connection()
        self._link.take(self._connection)
        self._connection.begin(self._message)
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        self._link.take_back(self._connection)


class AgentConnection(asyncio.Protocol):
    """One connection; `is_free` between operations."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._transport: asyncio.Transport | None = None
        self._calls = 0  # that were made on it
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

    def begin(self, message: bytes) -> None:
        self._calls += 1
        self._is_busy = True
        self._is_answered = self._has_input = self._has_answer = False
        self._write(encode_frame(FrameKind.CALL, message))

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

    @property
    def has_frame(self) -> bool:
        """Whether the next one need not be waited for."""
        return bool(self._frames)

    async def frames(self, patience: float | None = None) -> AsyncIterator[Frame]:
        """The operation's frames; DONE is the last. A failed operation raises its error.

        The agent may be silent for `patience` seconds, and for longer while others of the session come first.
        """
        is_queueing = False
        while self._is_busy:
            async with deadline(None if is_queueing else patience):
                frame = await self.next_frame()
            if frame.kind in (FrameKind.WAITING, FrameKind.STARTED):
                is_queueing = frame.kind is FrameKind.WAITING
            yield frame

    async def wait_for_frame(self) -> None:
        while not self._frames:
            if self._failure:
                raise self._reason()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def next_frame(self) -> Frame:
        if not self._frames:
            await self.wait_for_frame()
        frame = self._frames.popleft()
        if self._is_paused and len(self._frames) < UNREAD_FRAMES // 2 and self._transport:
            self._is_paused = False
            self._transport.resume_reading()
        if frame.kind is FrameKind.DONE:
            self._is_busy = False
        if frame.kind is FrameKind.FAILED:  # perhaps the last words on this connection: it is not used again
            raise failure_in(frame)
        return frame

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    def give_up(self) -> None:
        self._fail(silent(ANSWER_GRACE))
        self.abort()
        self._wake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own

    def data_received(self, data: bytes) -> None:
        self._has_answer = True
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
        except FrameError as cause:
            self._fail(misbehaved(f"the agent broke the protocol: {cause}"))
            self.abort()
        self._wake()

    def connection_lost(self, cause: Exception | None) -> None:
        self._is_unread = isinstance(cause, UNREAD)
        self._fail(AgentLostError(self._link.ending.message, remedy=self._link.ending.remedy))
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
        self._is_answered = frame.kind in (FrameKind.DONE, FrameKind.FAILED)
        self._frames.append(frame)
        if len(self._frames) >= UNREAD_FRAMES and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()

    def _take_lost(self, payload: bytes) -> None:
        number, problem = decode_lost(payload)
        if number > self._calls:
            raise FrameError(f"call {number} of {self._calls} cannot be lost")
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


async def collect(connection: AgentConnection, allowed: int | None, time: deadline | None) -> CommandOutput:
    """All output and the result of the command under way; an agent that sends more than was allowed is cut off.

    `time` stands still while the command waits; a command without a session waits for nobody.
    """
    output = {FrameKind.STDOUT: bytearray(), FrameKind.STDERR: bytearray()}
    left = dict.fromkeys(output, allowed)
    while (frame := await connection.next_frame()).kind is not FrameKind.DONE:
        if frame.kind not in output:
            note_turn(frame, time)
            continue
        if not frame.payload:  # it costs nothing to send, and would be read for ever
            raise misbehaved("the agent sent output without a byte in it")
        quota = left[frame.kind]
        if quota is not None:
            left[frame.kind] = quota = quota - len(frame.payload)
            if quota < 0:
                raise misbehaved("the agent sent more output than was allowed")
        output[frame.kind] += frame.payload
    done = decode(decode_exec_done, frame)
    stdout, stderr = (bytes(data) for data in output.values())
    return CommandOutput(stdout=stdout, stderr=stderr, done=done)


def patience_with(call: Exec | ExecShell) -> float | None:
    return None if call.timeout is None else call.timeout + ANSWER_GRACE


def note_turn(frame: Frame, time: deadline | None) -> None:
    if time is None or frame.kind not in (FrameKind.WAITING, FrameKind.STARTED):
        raise misbehaved(f"the agent sent {frame.kind.name} for a command")
    if frame.kind is FrameKind.WAITING:
        time.stand_still()
    else:
        time.run()


class deadline:
    """Gives an agent so many seconds, or all the time in the world, to finish what is in the block."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout = None if seconds is None else asyncio.timeout(seconds)
        self._stands_still = False

    async def __aenter__(self) -> deadline:
        if self._timeout:
            await self._timeout.__aenter__()
        return self

    def stand_still(self) -> None:
        if self._timeout:
            self._stands_still = True
            self._timeout.reschedule(None)

    def run(self) -> None:
        """Count from the beginning, after a stand-still."""
        if self._timeout and self._seconds is not None and self._stands_still:
            self._stands_still = False
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

    async def __aexit__(self, *failure: Any) -> None:
        try:
            if self._timeout:
                await self._timeout.__aexit__(*failure)
        except TimeoutError as cause:
            assert self._seconds is not None, "without a time there is no time-out"
            raise silent(self._seconds) from cause
