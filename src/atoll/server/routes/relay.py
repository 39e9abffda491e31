"""The relay: passes a call on to the agent of a sandbox, and its answer back.

Of the call only its session is looked at.

Rules:
1. The agent is read only as fast as the client reads, and the client as fast as the command.
2. A client that hangs up ends the operation: its connection to the agent is closed, which is how the agent learns.
3. An error before the first frame is an HTTP error; after that it is the stream's last frame, or its early end.
4. How long an agent may be silent, only the client knows. So the answer begins when the agent has all of the request
   and says nothing at first: from then on it is the agent that the client waits for. Not before: a client that still
   sends takes an answer for a refusal.
5. What an agent says is passed on unopened, but for errors: kinds of frames, their sizes and their order are checked
   here, what is in them by whoever opens it, with the decoders of `atoll.protocol`.
6. Content goes on in the pieces in which it was read, each a frame of its own, and is copied nowhere but out of a read
   that holds more than it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from atoll.protocol.commands import session_in
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import (
    FRAMES,
    Frame,
    FrameDecoder,
    FrameError,
    FrameKind,
    encode_frame,
    encode_header,
)
from atoll.protocol.messages import encode_message
from atoll.server.api_route import SANDBOX, ApiRoute
from atoll.server.connections import Body, Departure, Wire, departure_of, wire_of
from atoll.server.observer import Sight, sight_of
from atoll.server.permissions import permitted_call
from atoll.server.problems import log_if_ours, problem_response
from atoll.supervisor.agent_connection import AgentConnection, Exchange
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.roster import Roster

CALL = SANDBOX + "/call"
BATCH_BYTES = 256 * 1024
SMALL_INPUT, SMALL_FRAMES = 128 * 1024, 16  # go to the agent in one piece with their call
BATCH_FRAMES = 1024  # in one piece of an answer: each takes more memory than what it holds, if that is little
TURN_FRAMES = 256  # of a client that are passed on before others get their turn: they may be empty, and wait for nobody
BEGIN_SECONDS = 1.0  # most calls are done before, and need no more than one piece


class Relay:
    """POST /v1/sandboxes/{id}/call"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(send, wire_of(scope), sight_of(scope))
        try:
            await self._relay(scope, receive, answer)
        except AtollError as problem:
            log_if_ours(problem, scope)
            if answer.has_begun:
                await answer.fail(problem)
            else:
                await problem_response(problem)(scope, receive, send)
        except ClientDisconnect:
            pass

    async def _relay(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        roster: Roster = scope["app"].state.roster
        requests = Requests(receive, wire_of(scope).take_body, departure_of(scope))
        call = await requests.next()
        if call is None or call.kind is not FrameKind.CALL:
            raise error(
                ErrorCode.INVALID_REQUEST, "the body begins with no CALL frame", remedy="Use the SDK, or /exec."
            )
        message = permitted_call(call.payload, scope)
        actor = roster.actor(scope["path_params"]["id"])
        await actor.do(scope["caller"], partial(exchange, message, requests, answer))


async def exchange(message: bytes, requests: Requests, answer: Answer, link: AgentLink) -> None:
    async with Exchange(link, message, session_in(message), requests.take_small_input()) as agent:
        # What the client sends is not read while its standard input is backed up; its departure must be seen.
        with requests.departure.calls(agent.abort):
            try:
                if requests.is_over:
                    await answer.pass_on(agent, requests)
                else:
                    async with requests.fed_to(agent):
                        await answer.pass_on(agent, requests)
            except AtollError:
                if requests.departure.has_happened:
                    raise ClientDisconnect from None
                raise


class Requests:
    """The frames in a request's body."""

    def __init__(self, receive: Receive, take_body: Callable[[], Body], departure: Departure) -> None:
        self.departure = departure
        self.is_over = False  # whether all of the body has come, and been taken
        self._receive = receive
        self._take_body = take_body
        self._body: Body | None = None
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._has_come = False  # all of the body
        self._small_input: bytes | None = None

    async def next(self) -> Frame | None:
        while not self._frames and not self._has_come:
            piece = await self._next_piece()
            try:
                self._frames += self._decoder.feed(piece)
            except FrameError as cause:
                raise error(ErrorCode.INVALID_REQUEST, str(cause), remedy="Use the SDK, or /exec.") from cause
        frame = self._frames.popleft() if self._frames else None
        self.is_over = self._has_come and not self._frames
        return frame

    async def _next_piece(self) -> bytes:
        if self._body:
            piece = await self._body.next()
            self._has_come = not piece
            return piece
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if message.get("more_body", False):
            self._body = self._take_body()
        else:
            self._has_come = True
        body: bytes = message.get("body", b"")
        return body

    def take_small_input(self) -> bytes:
        """All of the input as it is to be sent, if it is here and little: then it goes out with the call, each time."""
        if self._small_input is None:
            is_small = self._has_come and len(self._frames) <= SMALL_FRAMES and self._size() <= SMALL_INPUT
            frames = self._frames if is_small else ()
            self._small_input = b"".join(encode_frame(check_input(frame).kind, frame.payload) for frame in frames)
            if is_small:
                self._frames.clear()
                self.is_over = True
        return self._small_input

    def _size(self) -> int:
        return sum(len(frame.payload) for frame in self._frames)

    @asynccontextmanager
    async def fed_to(self, agent: AgentConnection) -> AsyncIterator[None]:
        """Pieces go on to `agent` beside what is done in the block."""
        feeder = asyncio.create_task(self.feed(agent))
        try:
            yield
        except AtollError:
            if feeder.done() and (cause := feeder.exception()):  # which is why the agent was left
                raise cause from None
            raise
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)

    async def feed(self, agent: AgentConnection) -> None:
        """Standard input, as it comes."""
        try:
            passed = 0
            while frame := await self.next():
                await agent.send_frame(check_input(frame))
                passed += 1
                if passed % TURN_FRAMES == 0:
                    await asyncio.sleep(0)
        except (AtollError, ClientDisconnect):
            agent.abort()
            raise


def check_input(frame: Frame) -> Frame:
    if frame.kind is not FrameKind.INPUT:
        message = f"a {frame.kind.name} frame follows the call"
        raise error(ErrorCode.INVALID_REQUEST, message, remedy="Use the SDK, or /exec.")
    return frame


class Answer:
    """The response. What is there at once goes out at once."""

    def __init__(self, send: Send, wire: Wire, sight: Sight) -> None:
        self.has_begun = False
        self._sight = sight
        self._send = send
        self._wire = wire
        self._has_frames = False

    async def pass_on(self, agent: AgentConnection, requests: Requests) -> None:
        await self._begin_unless_quick(agent, requests)
        is_last = False
        while not is_last:
            parts, is_last = await self._next_batch(agent)
            self._has_frames = True
            if not self.has_begun:
                await self._begin(sum(map(len, parts)) if is_last else None)
                if is_last:
                    await self._end(b"".join(parts))
                    return
            await self._wire.write(parts)
        await self._end()

    async def fail(self, problem: AtollError) -> None:
        """The only frame of an answer that has begun."""
        await self._end(encode_frame(FrameKind.FAILED, encode_message(problem.to_body())))

    async def _begin_unless_quick(self, agent: AgentConnection, requests: Requests) -> None:
        while not self.has_begun and not await agent.frame_comes(BEGIN_SECONDS):
            if requests.is_over:
                await self._begin(None)

    async def _next_batch(self, agent: AgentConnection) -> tuple[list[bytes], bool]:
        """All frames that have come, and whether the last of the operation is among them."""
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                frame = await agent.next_frame()
                parts += (encode_header(frame.kind, len(frame.payload)), frame.payload)
                size += len(frame.payload)
                if frame.kind is FrameKind.DONE:
                    return parts, True
                if not agent.has_frame or size > BATCH_BYTES or len(parts) > 2 * BATCH_FRAMES:
                    return parts, False
        except AtollError as problem:
            if not parts and not self._has_frames:
                raise
            self._sight.code = problem.code
            parts.append(encode_frame(FrameKind.FAILED, encode_message(problem.to_body())))
            return parts, True

    async def _begin(self, length: int | None) -> None:
        self.has_begun = True
        headers = [(b"content-type", FRAMES.encode())]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _end(self, body: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


ROUTES = (
    ApiRoute(
        method="POST",
        path=CALL,
        handler=Relay(),
        operation_id="call_agent",
        summary="What the SDK uses: a call to the agent and its answer, in frames",
        tag="commands",
        is_call=True,
        body=bytes,
        body_type=FRAMES,
        answers={200: bytes},
        answer_type=FRAMES,
    ),
)
