"""News of all sandboxes: the latest of what happened, and what happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from atoll.protocol.sandboxes import MAX_SANDBOXES_PER_PAGE, SANDBOXES_PER_PAGE, NewsEvent, NewsList
from atoll.server.api_route import EVENT_STREAM, ApiRoute, Reach
from atoll.server.bodies import last_event, wants
from atoll.server.permissions import sees
from atoll.server.problems import json_response
from atoll.server.queries import MAX_NUMBER, Query
from atoll.server.routes.sandboxes import roster_of
from atoll.supervisor.news import Numbered


class NewsQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=0, le=MAX_SANDBOXES_PER_PAGE, description="so many of the latest come first")] = (
        SANDBOXES_PER_PAGE
    )
    since: Annotated[
        int, Meta(ge=0, le=MAX_NUMBER, description="of a stream, only what came after the event with this id")
    ] = 0


async def list_news(request: Request, query: NewsQuery) -> Response:
    roster, may_see = roster_of(request), sees(request.scope)
    latest = partial(roster.latest_news, query.limit, may_see)
    if wants(request, EVENT_STREAM):
        news = roster.news.follow(may_see, last_event(request, query.since), latest)
        return StreamingResponse(_as_stream(news), media_type=EVENT_STREAM)
    return json_response(NewsList(events=await latest()))


async def _as_stream(news: AsyncGenerator[Numbered, None]) -> AsyncIterator[bytes]:
    async with aclosing(news):
        yield b": the latest, then what happens\n\n"
        async for found in news:
            data = msgspec.json.encode(found.event)
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (found.number, found.event.what.encode(), data)


ROUTES = (
    ApiRoute(
        method="GET",
        path="/v1/events",
        handler=list_news,
        summary="What happened to all sandboxes, the latest last; live as text/event-stream",
        tag="server",
        reach=Reach.FILTERED,
        query=NewsQuery,
        events=NewsEvent,
        answers={200: NewsList},
    ),
)
