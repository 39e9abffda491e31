"""Errors as HTTP answers."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from atoll.protocol.errors import (
    AtollError,
    ErrorBody,
    ErrorCode,
    HostError,
    error,
    too_many_open_files,
)
from atoll.server.observer import MAX_PATH, sight_of
from atoll.telemetry.log import Seldom
from atoll.telemetry.log_lines import about

CLIENT_GONE = 499  # as nginx has it

_logger = logging.getLogger("atoll.server")
_ours = Seldom(_logger)

# What runs out on a machine that is full. Every client meets it, so it is told a few times; and where we were when it
# ran out tells nobody anything.
_short_of = {
    code: Seldom(_logger, most=3)
    for code in (
        ErrorCode.TOO_MANY_OPEN_FILES,
        ErrorCode.TOO_MANY_CONNECTIONS,
        ErrorCode.NO_SPACE,
        ErrorCode.DISK_COMMITTED,
        ErrorCode.MEMORY_COMMITTED,
        ErrorCode.UID_RANGES_EXHAUSTED,
    )
}


def problem_response(problem: AtollError, headers: dict[str, str] | None = None) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if problem.code == ErrorCode.INVALID_API_KEY else headers
    return json_response(problem.to_body(), problem.code.status, headers)


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def bad_request(message: str, remedy: str = "See /docs for what this route takes.") -> AtollError:
    return error(ErrorCode.INVALID_REQUEST, message, remedy=remedy)


def log_if_ours(problem: AtollError, scope: Scope) -> None:
    """Log what this machine or we are to blame for; the rest is between the caller and the sandbox."""
    sight_of(scope).code = problem.code
    told = about(code=problem.code.value, path=scope["path"][:MAX_PATH])
    if short := _short_of.get(problem.code):
        short.log(logging.ERROR, "%s failed: %s. %s", _named(scope), problem.message, problem.remedy, extra=told)
    elif isinstance(problem, HostError) or problem.code is ErrorCode.INTERNAL_ERROR:
        _ours.log(logging.ERROR, "%s failed: %s", _named(scope), problem.message, exc_info=problem, extra=told)


def _named(scope: Scope) -> str:
    """A request without its query, which may hold what is nobody's business."""
    return f"{scope.get('method', 'WebSocket')} {scope['path'][:MAX_PATH]}"


async def on_atoll_error(request: Request, cause: Exception) -> Response:
    assert isinstance(cause, AtollError)
    log_if_ours(cause, request.scope)
    return problem_response(cause)


async def on_http_exception(request: Request, cause: Exception) -> Response:
    """Refusals of Starlette itself: a path or a method that is not there."""
    assert isinstance(cause, HTTPException)
    if cause.status_code == 405:
        allowed = ", ".join(_methods_of(request))
        remedy = f"Use one of: {allowed}."
        message = f"{request.method} does not fit {request.url.path!r:.200}"
        problem = error(ErrorCode.METHOD_NOT_ALLOWED, message, remedy=remedy, allowed=allowed)
        return json_response(problem.to_body(), 405, {"allow": allowed})
    return problem_response(
        error(ErrorCode.ROUTE_NOT_FOUND, f"there is no {request.url.path!r:.200}", remedy="See /docs.")
    )


def _methods_of(request: Request) -> list[str]:
    """Of this path, each of whose methods is a route of its own."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes if isinstance(route, Route) for method in route.methods or ()})


async def on_any_error(request: Request, cause: Exception) -> Response:
    if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
        return await on_atoll_error(request, too_many_open_files(cause))
    _ours.log(logging.ERROR, "%s failed", _named(request.scope), exc_info=cause)
    body = ErrorBody(
        code=ErrorCode.INTERNAL_ERROR, message="the server failed at this", remedy="Its log has the details; report it."
    )
    return json_response(body, 500)


async def on_client_gone(request: Request, cause: Exception) -> Response:
    """An answer that nobody hears."""
    return Response(status_code=CLIENT_GONE)


HANDLERS: dict[type[Exception] | int, Callable[[Request, Exception], Awaitable[Response]]] = {
    AtollError: on_atoll_error,
    HTTPException: on_http_exception,
    ClientDisconnect: on_client_gone,
    Exception: on_any_error,
}
