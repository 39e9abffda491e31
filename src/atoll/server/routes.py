"""Every route with what it takes and gives: the router and the OpenAPI document are made from this table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from atoll.protocol.commands import ExecEventBody, ExecRequest, ExecResultBody, SessionRequest
from atoll.protocol.frames import FRAMES
from atoll.protocol.messages import SessionInfo, Sessions
from atoll.protocol.sandboxes import EventList, SandboxEvent, SandboxInfo, SandboxList, SandboxOptions, ServerInfo
from atoll.server import commands, sandboxes, server_info
from atoll.server.relay import Relay

Endpoint = Callable[[Request], Awaitable[Response]] | Relay


class Query(msgspec.Struct, frozen=True):
    name: str
    schema: dict[str, Any]
    description: str


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    """`answers` are the good ones, by status."""

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    tag: str
    body: Any = None
    body_type: str = "application/json"
    answers: dict[int, Any]
    answer_type: str = "application/json"
    events: Any = None  # what each of them holds, if they can be asked for as text/event-stream
    queries: tuple[Query, ...] = ()


STATES = ["running", "frozen", "stopped"]
SINCE = Query("since", {"type": "integer", "minimum": 0}, "only events after this number")
LABEL = Query("label", {"type": "array", "items": {"type": "string"}}, "NAME=VALUE; may be given several times")
STATE = Query("state", {"type": "string", "enum": STATES}, "only sandboxes in this state")

ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/server",
        endpoint=server_info.get_server,
        summary="Which server this is",
        tag="server",
        answers={200: ServerInfo},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes",
        endpoint=sandboxes.list_sandboxes,
        summary="All sandboxes, or those with some labels or in some state",
        tag="sandboxes",
        queries=(LABEL, STATE),
        answers={200: SandboxList},
    ),
    ApiRoute(
        method="PUT",
        path="/v1/sandboxes/{id}",
        endpoint=sandboxes.put_sandbox,
        summary="Make a sandbox, or start the one there is",
        tag="sandboxes",
        body=SandboxOptions,
        answers={200: SandboxInfo, 201: SandboxInfo},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}",
        endpoint=sandboxes.get_sandbox,
        summary="State, image, limits and use of a sandbox",
        tag="sandboxes",
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/sandboxes/{id}",
        endpoint=sandboxes.delete_sandbox,
        summary="Destroy a sandbox with all its files; twice is fine",
        tag="sandboxes",
        answers={204: None},
    ),
    ApiRoute(
        method="PUT",
        path="/v1/sandboxes/{id}/labels",
        endpoint=sandboxes.put_labels,
        summary="Replace its labels",
        tag="sandboxes",
        body=dict[str, str],
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="PATCH",
        path="/v1/sandboxes/{id}/env",
        endpoint=sandboxes.patch_env,
        summary="Set variables for all later commands; null unsets one",
        tag="sandboxes",
        body=dict[str, str | None],
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/events",
        endpoint=sandboxes.get_events,
        summary="What happened to it, when, why, and who asked; live as text/event-stream",
        tag="sandboxes",
        queries=(SINCE,),
        events=SandboxEvent,
        answers={200: EventList},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/exec",
        endpoint=commands.post_exec,
        summary="Run a command; its result, or its events as text/event-stream",
        tag="commands",
        body=ExecRequest,
        events=ExecEventBody,
        answers={200: ExecResultBody},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/call",
        endpoint=Relay(),
        summary="What the SDK uses: a call to the agent and its answer, in frames",
        tag="commands",
        body=bytes,
        body_type=FRAMES,
        answers={200: bytes},
        answer_type=FRAMES,
    ),
    ApiRoute(
        method="GET",
        path="/v1/sandboxes/{id}/sessions",
        endpoint=commands.list_sessions,
        summary="Its sessions",
        tag="sessions",
        answers={200: Sessions},
    ),
    ApiRoute(
        method="POST",
        path="/v1/sandboxes/{id}/sessions",
        endpoint=commands.post_session,
        summary="Another persistent shell",
        tag="sessions",
        body=SessionRequest,
        answers={201: SessionInfo},
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/sandboxes/{id}/sessions/{session_id}",
        endpoint=commands.delete_session,
        summary="End a session",
        tag="sessions",
        answers={204: None},
    ),
)
