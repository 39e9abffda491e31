"""Facts of the server itself: which one this is."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from atoll.protocol.sandboxes import ServerInfo
from atoll.server.api_route import ApiRoute, Reach
from atoll.server.problems import json_response
from atoll.telemetry.preparations import under_way


async def get_server(request: Request) -> Response:
    return json_response(msgspec.structs.replace(request.app.state.info, preparing=under_way()))


ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/server",
        handler=get_server,
        summary="Which server this is",
        tag="server",
        reach=Reach.KEY,
        answers={200: ServerInfo},
    ),
)
