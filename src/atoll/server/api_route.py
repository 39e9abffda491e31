"""A route with what it takes and gives: the router and the OpenAPI document are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from inspect import iscoroutinefunction
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import websocket_session
from starlette.types import ASGIApp, Receive, Scope, Send

from atoll.protocol.errors import AtollError
from atoll.server.permissions import permit
from atoll.server.problems import log_if_ours, problem_response
from atoll.server.queries import Query, parse_query

Endpoint = Callable[[Request], Awaitable[Response]] | ASGIApp

SANDBOX = "/v1/sandboxes/{id}"
BINARY = "application/octet-stream"
EVENT_STREAM = "text/event-stream"


class Reach(Enum):
    """The reach of a route: what it is about, which says who may use it."""

    ANYBODY = auto()  # needs no key
    KEY = auto()  # any key
    FILTERED = auto()  # any key: its handler shows what that one may see
    SANDBOX = auto()  # the one in its path
    SERVER = auto()  # all there is: no key that is for some sandboxes


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    """`handler` takes the request, and the query if there is one. `answers` are the good ones, by status."""

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    summary: str
    tag: str
    operation_id: str = ""  # the handler's name, if it says nothing else
    query: type[Query] | None = None
    body: Any = None
    body_type: str = "application/json"
    answers: dict[int, Any]
    answer_type: str = "application/json"
    events: Any = None  # what each of them holds, if they can be asked for as text/event-stream
    reach: Reach | None = None  # a sandbox if its path has one, else the server
    changes: bool | None = None  # whether it changes something; if its method is not GET
    is_call: bool = False  # whether what it does is in its frames, which its handler asks about

    @property
    def name(self) -> str:
        return self.operation_id or self.handler.__name__

    @property
    def reach_of_it(self) -> Reach:
        return self.reach or (Reach.SANDBOX if self.path.startswith(SANDBOX) else Reach.SERVER)

    @property
    def changes_something(self) -> bool:
        return self.method != "GET" if self.changes is None else self.changes

    @property
    def endpoint(self) -> Endpoint:
        """The handler, as the router calls it: when whoever asks may."""
        handler, query = self.handler, self.query
        if not iscoroutinefunction(handler):
            return Permitted(self)

        async def endpoint(request: Request) -> Response:
            permit(self, request.scope)
            given = () if query is None else (parse_query(query, request.scope["query_string"]),)
            answer: Response = await handler(request, *given)
            return answer

        return endpoint


class Permitted:
    """A handler that is an application, when whoever asks may."""

    def __init__(self, route: ApiRoute) -> None:
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        permit(self._route, scope)
        await self._route.handler(scope, receive, send)


class PermittedSocket:
    """A handler of WebSockets, when whoever asks may; else the handshake is answered with the error."""

    def __init__(self, route: ApiRoute) -> None:
        self._route = route
        self._handler = websocket_session(route.handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            permit(self._route, scope)
        except AtollError as problem:
            log_if_ours(problem, scope)
            await problem_response(problem)(scope, receive, send)
            return
        await self._handler(scope, receive, send)
