"""The network of a sandbox over HTTP: what it may reach, and what it tried to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from atoll.protocol.network import Connection, ConnectionList, NetworkChange
from atoll.protocol.sandboxes import SandboxInfo
from atoll.server.api_route import EVENT_STREAM, SANDBOX, ApiRoute
from atoll.server.bodies import read_json, wants
from atoll.server.problems import json_response
from atoll.server.routes.sandboxes import actor_of, caller_of
from atoll.supervisor import network
from atoll.supervisor.info import describe


async def set_network(request: Request) -> Response:
    change = await read_json(request, NetworkChange)
    actor = actor_of(request)
    await network.set_network(actor, change.network, caller_of(request))
    return json_response(describe(actor))


async def list_connections(request: Request) -> Response:
    actor = actor_of(request)
    if wants(request, EVENT_STREAM):
        return StreamingResponse(_as_stream(network.follow(actor)), media_type=EVENT_STREAM)
    return json_response(await network.connections(actor))


async def _as_stream(connections: AsyncGenerator[Connection, None]) -> AsyncIterator[bytes]:
    async with aclosing(connections):
        yield b": those that are known, then each that begins, changes or ends\n\n"
        async for found in connections:
            yield b"event: connection\ndata: %s\n\n" % msgspec.json.encode(found)


ROUTES = (
    ApiRoute(
        method="PUT",
        path=SANDBOX + "/network",
        handler=set_network,
        summary="What it may reach from now on; what is open and no longer allowed ends",
        tag="network",
        body=NetworkChange,
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX + "/connections",
        handler=list_connections,
        summary="What it tried to reach, and what became of it; live as text/event-stream",
        tag="network",
        events=Connection,
        answers={200: ConnectionList},
    ),
)
