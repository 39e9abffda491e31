"""Which server this is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from atoll.server.problems import json_response


async def get_server(request: Request) -> Response:
    return json_response(request.app.state.info)
