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
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import FRAMES, Frame, FrameDecoder, FrameError, FrameKind, encode_frame, encode_header
from atoll.protocol.messages import encode_message, session_of
from atoll.server.connections import Departure, departure_of
from atoll.server.problems import log_if_ours, problem_response
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.agent_link import AgentLink, Operation
from atoll.supervisor.roster import Roster

BATCH_BYTES = 256 * 1024
BATCH_FRAMES = 1024  # in one piece of an answer: each takes more memory than what it holds, if that is little
TURN_FRAMES = 256  # of a client that are passed on before others get their turn: they may be empty, and wait for nobody
BEGIN_SECONDS = 1.0  # most calls are done before, and need no more than one piece


class Relay:
    """POST /v1/sandboxes/{id}/call"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(send)
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
        requests = Requests(receive, departure_of(scope))
        call = await requests.next()
        if call is None or call.kind is not FrameKind.CALL:
            raise error(
                ErrorCode.INVALID_REQUEST, "the body begins with no CALL frame", remedy="Use the SDK, or /exec."
            )
        actor = roster.actor(scope["path_params"]["id"])
        await actor.do(scope["caller"], partial(exchange, call.payload, requests, answer))


async def exchange(message: bytes, requests: Requests, answer: Answer, link: AgentLink) -> None:
    async with Operation(link, message, session_of(message)) as agent:
        feeder = asyncio.create_task(requests.feed(agent))
        try:
            # What the client sends is not read while its standard input is backed up; its departure must be seen.
            with requests.departure.calls(agent.abort):
                await answer.pass_on(agent, requests)
        except AtollError:
            if feeder.done() and (cause := feeder.exception()):  # which is why the agent was left
                raise cause from None
            raise
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)


class Requests:
    """The frames in a request's body."""

    def __init__(self, receive: Receive, departure: Departure) -> None:
        self.departure = departure
        self._receive = receive
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self.is_over = False  # whether all of the body has come

    async def next(self) -> Frame | None:
        while not self._frames and not self.is_over:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self.is_over = not message.get("more_body", False)
            try:
                self._frames += self._decoder.feed(message.get("body", b""))
            except FrameError as cause:
                raise error(ErrorCode.INVALID_REQUEST, str(cause), remedy="Use the SDK, or /exec.") from cause
        return self._frames.popleft() if self._frames else None

    async def feed(self, agent: AgentConnection) -> None:
        """Standard input, as it comes; then the client's departure is all that is waited for."""
        try:
            passed = 0
            while frame := await self.next():
                if frame.kind is not FrameKind.INPUT:
                    message = f"a {frame.kind.name} frame follows the call"
                    raise error(ErrorCode.INVALID_REQUEST, message, remedy="Use the SDK, or /exec.")
                await agent.send_frame(frame)
                passed += 1
                if passed % TURN_FRAMES == 0:
                    await asyncio.sleep(0)
            while (await self._receive())["type"] != "http.disconnect":
                pass
            raise ClientDisconnect
        except (AtollError, ClientDisconnect):
            agent.abort()
            raise


class Answer:
    """The response. What is there at once goes out at once, as a whole."""

    def __init__(self, send: Send) -> None:
        self.has_begun = False
        self._send = send
        self._has_frames = False

    async def pass_on(self, agent: AgentConnection, requests: Requests) -> None:
        await self._begin_unless_quick(agent, requests)
        is_last = False
        while not is_last:
            body, is_last = await self._next_batch(agent)
            self._has_frames = True
            if not self.has_begun:
                await self._begin(len(body) if is_last else None)
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def fail(self, problem: AtollError) -> None:
        """The only frame of an answer that has begun."""
        body = encode_frame(FrameKind.FAILED, encode_message(problem.to_body()))
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _begin_unless_quick(self, agent: AgentConnection, requests: Requests) -> None:
        while not self.has_begun:
            try:
                async with asyncio.timeout(BEGIN_SECONDS):
                    await agent.wait_for_frame()
                return
            except TimeoutError:
                if requests.is_over:
                    await self._begin(None)

    async def _next_batch(self, agent: AgentConnection) -> tuple[bytes, bool]:
        """All frames that have come, and whether the last of the operation is among them."""
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                frame = await agent.next_frame()
                parts += (encode_header(frame.kind, len(frame.payload)), frame.payload)
                size += len(frame.payload)
                if frame.kind is FrameKind.DONE:
                    return b"".join(parts), True
                if not agent.has_frame or size > BATCH_BYTES or len(parts) > 2 * BATCH_FRAMES:
                    return b"".join(parts), False
        except AtollError as problem:
            if not parts and not self._has_frames:
                raise
            parts.append(encode_frame(FrameKind.FAILED, encode_message(problem.to_body())))
            return b"".join(parts), True

    async def _begin(self, length: int | None) -> None:
        self.has_begun = True
        headers = [(b"content-type", FRAMES.encode())]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
