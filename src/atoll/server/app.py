"""The application: routes, errors, and the gate in front of them."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from atoll import __version__
from atoll.preview.front import Previews
from atoll.protocol.sandboxes import ServerInfo
from atoll.protocol.versions import PROTOCOL_VERSION
from atoll.server.api_route import PermittedSocket
from atoll.server.auth import Gate
from atoll.server.docs_page import page
from atoll.server.observer import Observer
from atoll.server.openapi import document
from atoll.server.problems import HANDLERS, json_response
from atoll.server.routes import ROUTES, terminals
from atoll.server.routes.relay import CALL
from atoll.store.keys import Keys
from atoll.supervisor.roster import Roster


def make_app(
    roster: Roster,
    keys: Keys,
    hosts: tuple[str, ...] = (),
    *,
    has_access_log: bool = False,
    has_audit_log: bool = False,
    previews: Previews | None = None,
) -> ASGIApp:
    by_use = sorted(ROUTES, key=lambda route: route.path != CALL)  # a path is compared with one after the other
    routes: list[BaseRoute] = [Route(route.path, route.endpoint, methods=[route.method]) for route in by_use]
    routes += [Route("/openapi.json", get_openapi), Route("/docs", get_docs)]
    routes += [WebSocketRoute(terminals.PATH, PermittedSocket(terminals.VIEW))]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.state.roster = roster
    app.state.previews = previews
    app.state.info = ServerInfo(
        version=__version__, protocol_version=PROTOCOL_VERSION, pid=os.getpid(), started_at=datetime.now(UTC)
    )
    gate = Gate(app, keys, hosts)
    return Observer(gate, has_access_log=has_access_log, has_audit_log=has_audit_log)


async def get_openapi(request: Request) -> Response:
    return json_response(document())


async def get_docs(request: Request) -> Response:
    return HTMLResponse(page())
