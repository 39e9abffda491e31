"""Sessions as JSON: listed, made, ended."""

from __future__ import annotations

from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from atoll.protocol.arguments import check_directory, check_lasting_variables
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import parse_session_id
from atoll.protocol.sessions import (
    CreateSession,
    ListSessions,
    SessionInfo,
    SessionRequest,
    Sessions,
    SetEnvironment,
    check_name,
)
from atoll.server.api_route import SANDBOX, ApiRoute
from atoll.server.bodies import read_json
from atoll.server.calls import ask
from atoll.server.problems import json_response
from atoll.server.routes.sandboxes import actor_of, caller_of
from atoll.supervisor import sessions


async def list_sessions(request: Request) -> Response:
    return json_response(await ask(request, ListSessions()))


async def create_session(request: Request) -> Response:
    asked = await read_json(request, SessionRequest)
    check_directory(asked.cwd)
    session_id = f"session-{uuid4().hex[:12]}" if asked.id is None else parse_session_id(asked.id)
    call = CreateSession(
        session_id=session_id, cwd=asked.cwd, env=check_lasting_variables(asked.env), name=check_name(asked.name)
    )
    actor, caller = actor_of(request), caller_of(request)
    try:
        return json_response(await sessions.create_session(actor, call, caller), 201)
    except AtollError as problem:
        if not (asked.exist_ok and problem.code is ErrorCode.SESSION_EXISTS):
            raise
    return json_response(await sessions.find_session(actor, session_id, caller))


async def set_variables(request: Request) -> Response:
    session_id = parse_session_id(request.path_params["session_id"])
    changes = check_lasting_variables(await read_json(request, dict[str, str | None]))
    sessions = (await ask(request, SetEnvironment(env=changes, session_id=session_id))).sessions
    return json_response(next(session for session in sessions if session.id == session_id))


async def delete_session(request: Request) -> Response:
    await sessions.delete_session(actor_of(request), request.path_params["session_id"], caller_of(request))
    return Response(status_code=204)


ROUTES = (
    ApiRoute(
        method="GET",
        path=SANDBOX + "/sessions",
        handler=list_sessions,
        summary="Its sessions",
        tag="sessions",
        answers={200: Sessions},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/sessions",
        handler=create_session,
        summary="Another persistent shell",
        tag="sessions",
        body=SessionRequest,
        answers={200: SessionInfo, 201: SessionInfo},
    ),
    ApiRoute(
        method="PATCH",
        path=SANDBOX + "/sessions/{session_id}/env",
        handler=set_variables,
        operation_id="set_session_variables",
        summary="Variables of a session from now on; null takes one away",
        tag="sessions",
        body=dict[str, str | None],
        answers={200: SessionInfo},
    ),
    ApiRoute(
        method="DELETE",
        path=SANDBOX + "/sessions/{session_id}",
        handler=delete_session,
        summary="End a session",
        tag="sessions",
        answers={204: None},
    ),
)
