"""Sandboxes as a whole: made, looked at, labelled, destroyed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse

from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.sandboxes import (
    MAX_SANDBOXES_PER_PAGE,
    SANDBOXES_PER_PAGE,
    EventList,
    LimitChanges,
    SandboxEvent,
    SandboxInfo,
    SandboxList,
    SandboxOptions,
    SandboxQuery,
    SandboxState,
    SleepRequest,
    UpkeepChanges,
)
from atoll.server.api_route import EVENT_STREAM, SANDBOX, ApiRoute, Reach
from atoll.server.bodies import last_event, read_json, wants
from atoll.server.permissions import sees
from atoll.server.problems import bad_request, json_response
from atoll.server.queries import MAX_NUMBER, Query
from atoll.supervisor import labels, limits, upkeep, variables
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.conflicts import differences
from atoll.supervisor.info import describe, describe_with_use
from atoll.supervisor.plans import make_plan
from atoll.supervisor.roster import Roster


def roster_of(request: HTTPConnection) -> Roster:
    roster: Roster = request.app.state.roster
    return roster


def actor_of(request: HTTPConnection) -> SandboxActor:
    return roster_of(request).actor(request.path_params["id"])


def caller_of(request: HTTPConnection) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


class ListQuery(Query, frozen=True, kw_only=True):
    label: Annotated[tuple[str, ...], Meta(description="NAME=VALUE; may be given several times")] = ()
    state: Annotated[SandboxState | None, Meta(description="only sandboxes in this state")] = None
    limit: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_SANDBOXES_PER_PAGE,
            description="so many at most; if there are more, the answer says where to go on",
        ),
    ] = SANDBOXES_PER_PAGE
    after: Annotated[str | None, Meta(description="only ids after this one; what an answer has as `next`")] = None
    usage: Annotated[bool, Meta(description="also what each uses, which takes a moment")] = False


class EventsQuery(Query, frozen=True, kw_only=True):
    since: Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="only events after this number")] = 0


async def list_sandboxes(request: Request, query: ListQuery) -> Response:
    wanted = SandboxQuery(
        labels=_labels(query.label),
        state=query.state,
        limit=query.limit,
        after="" if query.after is None else parse_sandbox_id(query.after),
    )
    may_see = sees(request.scope)
    return json_response(await roster_of(request).list(wanted, with_use=query.usage, may_see=may_see))


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise bad_request(f"label={text!r:.100} names no label", "Write label=NAME=VALUE.")
        labels[name] = value
    return labels


async def create_sandbox(request: Request) -> Response:
    options, caller = await read_json(request, SandboxOptions), caller_of(request)
    if caller.labels:
        options = msgspec.structs.replace(options, labels={**(options.labels or {}), **caller.labels})
    actor = actor_of(request)
    is_new = await actor.ensure(make_plan(options), caller, strictly=options if options.strict else None)
    ignored = {} if is_new else differences(options, actor.record())
    return json_response(msgspec.structs.replace(describe(actor), ignored=ignored), 201 if is_new else 200)


async def get_sandbox(request: Request) -> Response:
    return json_response(await describe_with_use(actor_of(request)))


async def destroy_sandbox(request: Request) -> Response:
    await actor_of(request).destroy(caller_of(request))
    return Response(status_code=204)


async def set_labels(request: Request) -> Response:
    asked = await read_json(request, dict[str, str])
    actor = actor_of(request)
    await labels.set_labels(actor, asked, caller_of(request))
    return json_response(describe(actor))


async def set_variables(request: Request) -> Response:
    changes = await read_json(request, dict[str, str | None])
    actor = actor_of(request)
    await variables.set_variables(actor, changes, caller_of(request))
    return json_response(describe(actor))


async def sleep_sandbox(request: Request) -> Response:
    asked = await read_json(request, SleepRequest)
    actor = actor_of(request)
    await actor.sleep(caller_of(request), stop=asked.stop)
    return json_response(describe(actor))


async def wake_sandbox(request: Request) -> Response:
    actor = actor_of(request)
    await actor.wake(caller_of(request))
    return json_response(describe(actor))


async def change_sandbox(request: Request) -> Response:
    changes = await read_json(request, UpkeepChanges)
    actor = actor_of(request)
    await upkeep.set_upkeep(actor, changes, caller_of(request))
    return json_response(describe(actor))


async def set_limits(request: Request) -> Response:
    changes = await read_json(request, LimitChanges)
    actor = actor_of(request)
    await limits.set_limits(actor, changes, caller_of(request))
    return json_response(describe(actor))


async def list_events(request: Request, query: EventsQuery) -> Response:
    actor = actor_of(request)
    since = last_event(request, query.since)
    if wants(request, EVENT_STREAM):
        await actor.events(since)  # fails now, if it must
        return StreamingResponse(_as_stream(actor.follow(since)), media_type=EVENT_STREAM)
    return json_response(EventList(events=await actor.events(since)))


async def _as_stream(events: AsyncGenerator[SandboxEvent, None]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        yield b": the timeline, then what happens\n\n"
        async for event in events:
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, event.what.encode(), msgspec.json.encode(event))


ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/sandboxes",
        handler=list_sandboxes,
        summary="Sandboxes by id, all or those with some labels or in some state; a page of them",
        tag="sandboxes",
        reach=Reach.FILTERED,
        query=ListQuery,
        answers={200: SandboxList},
    ),
    ApiRoute(
        method="PUT",
        path=SANDBOX,
        handler=create_sandbox,
        summary="Make a sandbox, or start the one there is",
        tag="sandboxes",
        body=SandboxOptions,
        answers={200: SandboxInfo, 201: SandboxInfo},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX,
        handler=get_sandbox,
        summary="State, image, limits and use of a sandbox",
        tag="sandboxes",
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="DELETE",
        path=SANDBOX,
        handler=destroy_sandbox,
        summary="Destroy a sandbox with all its files; twice is fine",
        tag="sandboxes",
        answers={204: None},
    ),
    ApiRoute(
        method="PATCH",
        path=SANDBOX,
        handler=change_sandbox,
        summary="Change when it is put to sleep, stopped and destroyed",
        tag="sandboxes",
        body=UpkeepChanges,
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/sleep",
        handler=sleep_sandbox,
        summary="Freeze it, or stop it; the next operation wakes it",
        tag="sandboxes",
        body=SleepRequest,
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="POST",
        path=SANDBOX + "/wake",
        handler=wake_sandbox,
        summary="Wake it, start it, or make it, as any operation does",
        tag="sandboxes",
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="PUT",
        path=SANDBOX + "/labels",
        handler=set_labels,
        summary="Replace its labels",
        tag="sandboxes",
        body=dict[str, str],
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="PATCH",
        path=SANDBOX + "/limits",
        handler=set_limits,
        summary="Change its limits, also while it runs",
        tag="sandboxes",
        body=LimitChanges,
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="PATCH",
        path=SANDBOX + "/env",
        handler=set_variables,
        summary="Set variables for all later commands; null unsets one",
        tag="sandboxes",
        body=dict[str, str | None],
        answers={200: SandboxInfo},
    ),
    ApiRoute(
        method="GET",
        path=SANDBOX + "/events",
        handler=list_events,
        summary="What happened to it, when, why, and who asked; live as text/event-stream",
        tag="sandboxes",
        query=EventsQuery,
        events=SandboxEvent,
        answers={200: EventList},
    ),
)
