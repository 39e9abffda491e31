"""A route with what it takes and gives: the router and the OpenAPI document are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from atoll.server.queries import Query, parse_query

Endpoint = Callable[[Request], Awaitable[Response]] | ASGIApp

SANDBOX = "/v1/sandboxes/{id}"
BINARY = "application/octet-stream"
EVENT_STREAM = "text/event-stream"


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

    @property
    def name(self) -> str:
        return self.operation_id or self.handler.__name__

    @property
    def endpoint(self) -> Endpoint:
        """The handler, as the router calls it."""
        handler, query = self.handler, self.query
        if query is None:
            return handler

        async def endpoint(request: Request) -> Response:
            answer: Response = await handler(request, parse_query(query, request.scope["query_string"]))
            return answer

        return endpoint
