"""Sandboxes as a whole: made, looked at, labelled, destroyed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse

from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.sandboxes import (
    MAX_SANDBOXES_PER_PAGE,
    SANDBOXES_PER_PAGE,
    EventList,
    SandboxEvent,
    SandboxOptions,
    SandboxQuery,
    SandboxState,
    SleepRequest,
    UpkeepChanges,
)
from atoll.server.bodies import read_flag, read_json, read_number, wants
from atoll.server.problems import bad_request, json_response
from atoll.supervisor import labels, upkeep, variables
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.info import describe, describe_with_use
from atoll.supervisor.plans import make_plan
from atoll.supervisor.roster import Roster

EVENT_STREAM = "text/event-stream"


def roster_of(request: HTTPConnection) -> Roster:
    roster: Roster = request.app.state.roster
    return roster


def actor_of(request: HTTPConnection) -> SandboxActor:
    return roster_of(request).actor(request.path_params["id"])


def caller_of(request: HTTPConnection) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


async def list_sandboxes(request: Request) -> Response:
    query = SandboxQuery(
        labels=_labels_asked_for(request),
        state=_state_asked_for(request),
        limit=_limit_asked_for(request),
        after=parse_sandbox_id(after) if (after := request.query_params.get("after")) is not None else "",
    )
    return json_response(await roster_of(request).list(query, with_use=read_flag(request, "usage")))


def _limit_asked_for(request: Request) -> int:
    limit = read_number(request, "limit", SANDBOXES_PER_PAGE)
    if not 1 <= limit <= MAX_SANDBOXES_PER_PAGE:
        remedy = f"Give 1 to {MAX_SANDBOXES_PER_PAGE}; `next` in the answer, given as `after`, leads to more."
        raise bad_request(f"limit={limit} is no number of sandboxes for one answer", remedy)
    return limit


def _labels_asked_for(request: Request) -> dict[str, str]:
    labels = {}
    for text in request.query_params.getlist("label"):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise bad_request(f"label={text!r:.100} names no label", "Write label=NAME=VALUE.")
        labels[name] = value
    return labels


def _state_asked_for(request: Request) -> SandboxState | None:
    text = request.query_params.get("state")
    if text is None:
        return None
    try:
        return SandboxState(text)
    except ValueError as cause:
        states = ", ".join(state.value for state in SandboxState)
        raise bad_request(f"state={text!r:.50} is none", f"Use one of: {states}.") from cause


async def put_sandbox(request: Request) -> Response:
    options = await read_json(request, SandboxOptions)
    actor = actor_of(request)
    is_new = await actor.ensure(make_plan(options), caller_of(request))
    return json_response(describe(actor), 201 if is_new else 200)


async def get_sandbox(request: Request) -> Response:
    return json_response(await describe_with_use(actor_of(request)))


async def delete_sandbox(request: Request) -> Response:
    await actor_of(request).destroy(caller_of(request))
    return Response(status_code=204)


async def put_labels(request: Request) -> Response:
    asked = await read_json(request, dict[str, str])
    actor = actor_of(request)
    await labels.set_labels(actor, asked, caller_of(request))
    return json_response(describe(actor))


async def patch_env(request: Request) -> Response:
    changes = await read_json(request, dict[str, str | None])
    actor = actor_of(request)
    await variables.set_variables(actor, changes, caller_of(request))
    return json_response(describe(actor))


async def post_sleep(request: Request) -> Response:
    asked = await read_json(request, SleepRequest)
    actor = actor_of(request)
    await actor.sleep(caller_of(request), stop=asked.stop)
    return json_response(describe(actor))


async def post_wake(request: Request) -> Response:
    actor = actor_of(request)
    await actor.wake(caller_of(request))
    return json_response(describe(actor))


async def patch_sandbox(request: Request) -> Response:
    changes = await read_json(request, UpkeepChanges)
    actor = actor_of(request)
    await upkeep.set_upkeep(actor, changes, caller_of(request))
    return json_response(describe(actor))


async def get_events(request: Request) -> Response:
    actor = actor_of(request)
    last = request.headers.get("last-event-id", "")
    since = int(last) if last.isascii() and last.isdigit() and len(last) < 18 else read_number(request, "since", 0)
    if wants(request, EVENT_STREAM):
        actor.events(since)  # fails now, if it must
        return StreamingResponse(_as_stream(actor.follow(since)), media_type=EVENT_STREAM)
    return json_response(EventList(events=actor.events(since)))


async def _as_stream(events: AsyncGenerator[SandboxEvent, None]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        yield b": the timeline, then what happens\n\n"
        async for event in events:
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, event.what.encode(), msgspec.json.encode(event))
