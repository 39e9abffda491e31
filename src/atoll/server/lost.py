"""Disks that were set aside: listed, made sandboxes again, removed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from atoll.protocol.sandboxes import AdoptRequest, LostList
from atoll.server.bodies import read_json
from atoll.server.problems import json_response
from atoll.server.sandboxes import caller_of, roster_of


async def list_lost(request: Request) -> Response:
    return json_response(LostList(lost=await roster_of(request).list_lost()))


async def post_adopt(request: Request) -> Response:
    asked = await read_json(request, AdoptRequest)
    info = await roster_of(request).adopt_lost(request.path_params["name"], asked, caller_of(request))
    return json_response(info, 201)


async def delete_lost(request: Request) -> Response:
    await roster_of(request).remove_lost(request.path_params["name"])
    return Response(status_code=204)
