"""Calls made for a request: asked, answered piece by piece, or fed with what the client sends.

A client that hangs up ends what it asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import ClientDisconnect, Request

from atoll.protocol.calls import Answer, Call, result
from atoll.protocol.errors import AtollError
from atoll.protocol.frames import Frame, FrameKind
from atoll.server.bodies import while_client_waits
from atoll.server.routes.sandboxes import actor_of, caller_of
from atoll.supervisor.agent_connection import AgentConnection, any_sign_of_life

INPUT_CHUNK = 256 * 1024


async def ask(request: Request, call: Call[Answer]) -> Answer:
    """The answer to a call that streams nothing. The request's body has been read."""
    return await while_client_waits(request, actor_of(request).ask(caller_of(request), call))


async def frames_of(request: Request, call: Call[Any]) -> AsyncGenerator[Frame, None]:
    """The frames of a call's answer, DONE last. The agent sends them as fast as they are taken."""
    async with actor_of(request).answering(caller_of(request), call) as (agent, _):
        async for frame in agent.frames():
            yield frame


async def feed(request: Request, call: Call[Answer]) -> Answer:
    """The answer to a call that reads the request's body."""
    # Once some of the body has gone, nobody could send it again.
    async with actor_of(request).answering(caller_of(request), call, any_sign_of_life) as (agent, _):
        feeder = asyncio.create_task(_feed(request, agent))
        try:
            return result(call, await agent.next_frame())
        except AtollError:
            if feeder.done() and (cause := feeder.exception()):  # which is why the agent was left
                raise cause from None
            raise
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)


async def _feed(request: Request, agent: AgentConnection) -> None:
    try:
        async for chunk in request.stream():
            for start in range(0, len(chunk), INPUT_CHUNK):
                await agent.send_frame(Frame(FrameKind.INPUT, chunk[start : start + INPUT_CHUNK]))
        await agent.send_frame(Frame(FrameKind.INPUT, b""))
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect
    except ClientDisconnect:
        agent.abort()
        raise
