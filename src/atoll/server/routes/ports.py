"""Ports as JSON: exposed under preview URLs, listed, unexposed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from atoll.preview import exposing
from atoll.preview.front import Previews
from atoll.protocol.ports import ExposedPort, ExposedPorts, ExposeRequest, not_exposed, parse_exposable
from atoll.server.api_route import SANDBOX, ApiRoute
from atoll.server.bodies import read_json
from atoll.server.problems import json_response
from atoll.server.routes.sandboxes import actor_of, caller_of

PATH = SANDBOX + "/ports/{port}"


def previews_of(request: Request) -> Previews:
    previews: Previews = request.app.state.previews
    return previews


def port_of(request: Request) -> int:
    text: str = request.path_params["port"]
    return parse_exposable(int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text)


async def expose_port(request: Request) -> Response:
    port, asked = port_of(request), await read_json(request, ExposeRequest)
    place = await previews_of(request).listen()  # first: what nobody could reach is not exposed
    actor = actor_of(request)
    await exposing.expose(actor, port, asked, caller_of(request))
    previews_of(request).recheck()
    for exposed in exposing.exposed(actor.record(), place):
        if exposed.port == port:
            return json_response(exposed)
    raise not_exposed(actor.name, port)  # somebody else has unexposed it meanwhile


async def unexpose_port(request: Request) -> Response:
    await exposing.unexpose(actor_of(request), port_of(request), caller_of(request))
    previews_of(request).recheck()
    return Response(status_code=204)


async def list_ports(request: Request) -> Response:
    record = actor_of(request).record()
    if not record.ports:
        return json_response(ExposedPorts(ports=[]))
    return json_response(ExposedPorts(ports=exposing.exposed(record, await previews_of(request).listen())))


ROUTES = (
    ApiRoute(
        method="GET",
        path=SANDBOX + "/ports",
        handler=list_ports,
        summary="Its exposed ports, and their URLs",
        tag="ports",
        answers={200: ExposedPorts},
    ),
    ApiRoute(
        method="PUT",
        path=PATH,
        handler=expose_port,
        summary="Expose a port under a URL, or change the name, token or time of one that is exposed",
        tag="ports",
        body=ExposeRequest,
        answers={200: ExposedPort},
    ),
    ApiRoute(
        method="DELETE",
        path=PATH,
        handler=unexpose_port,
        summary="Unexpose a port: its URL leads nowhere from then on",
        tag="ports",
        answers={204: None},
    ),
)
