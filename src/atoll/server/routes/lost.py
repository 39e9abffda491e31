"""Disks that were set aside: listed, made sandboxes again, removed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from atoll.protocol.sandboxes import AdoptRequest, LostList, SandboxInfo
from atoll.server.api_route import ApiRoute
from atoll.server.bodies import read_json
from atoll.server.problems import json_response
from atoll.server.routes.sandboxes import caller_of, roster_of


async def list_lost_disks(request: Request) -> Response:
    return json_response(LostList(lost=await roster_of(request).list_lost()))


async def adopt_lost_disk(request: Request) -> Response:
    asked = await read_json(request, AdoptRequest)
    info = await roster_of(request).adopt_lost(request.path_params["name"], asked, caller_of(request))
    return json_response(info, 201)


async def remove_lost_disk(request: Request) -> Response:
    await roster_of(request).remove_lost(request.path_params["name"])
    return Response(status_code=204)


ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/lost",
        handler=list_lost_disks,
        summary="Disks of no sandbox that were set aside, and why",
        tag="lost",
        answers={200: LostList},
    ),
    ApiRoute(
        method="POST",
        path="/v1/lost/{name}/adopt",
        handler=adopt_lost_disk,
        summary="Make one a sandbox again; it is stopped until it is used",
        tag="lost",
        body=AdoptRequest,
        answers={201: SandboxInfo},
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/lost/{name}",
        handler=remove_lost_disk,
        summary="Remove one for good",
        tag="lost",
        answers={204: None},
    ),
)
