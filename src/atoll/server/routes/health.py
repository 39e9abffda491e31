"""Health of a server, for whoever decides whether to send it requests. No key is asked for, and nothing is told that a
stranger may not know.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from atoll.server.api_route import ApiRoute, Reach
from atoll.server.problems import json_response
from atoll.server.routes.sandboxes import roster_of

PATH = "/health"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` is the code of what keeps sandboxes from being made or used; the server's log says more."""

    status: str
    problem: str | None = None


async def get_health(request: Request) -> Response:
    problem = roster_of(request).workshop.storage.problem()
    if problem:
        return json_response(Health(status="failing", problem=problem.code), 503)
    return json_response(Health(status="ok"))


ROUTES = (
    ApiRoute(
        method="GET",
        path=PATH,
        handler=get_health,
        summary="Whether sandboxes can be made and used; 503 if not. Needs no key",
        tag="server",
        reach=Reach.ANYBODY,
        answers={200: Health},
    ),
)
