"""The news of a server: what happened to all its sandboxes, and what happens."""

from __future__ import annotations

from typing import SupportsIndex

from atoll.client.events import AsyncNewsStream
from atoll.client.plumbing.server import find_server
from atoll.protocol.arguments import to_whole, wrong_argument
from atoll.protocol.sandboxes import MAX_SANDBOXES_PER_PAGE, SANDBOXES_PER_PAGE, NewsEvent, NewsList


async def events_async(
    *, limit: SupportsIndex = SANDBOXES_PER_PAGE, url: str | None = None, api_key: str | None = None
) -> list[NewsEvent]:
    """The latest events of all sandboxes of a server, in their order: what happened, to which, when, why, who asked."""
    number = _checked(limit)
    return (await find_server(url, api_key).ask("GET", f"/v1/events?limit={number}", NewsList)).events


def follow_events_async(
    *, limit: SupportsIndex = 0, url: str | None = None, api_key: str | None = None
) -> AsyncNewsStream:
    """The events of all sandboxes of a server as an iterator: so many of the latest, then each as it happens."""
    number = _checked(limit)
    return AsyncNewsStream(find_server(url, api_key), number)


def _checked(limit: SupportsIndex) -> int:
    number = to_whole(limit)
    if number is None or not 0 <= number <= MAX_SANDBOXES_PER_PAGE:
        raise wrong_argument("limit", limit, "is no number of events", f"Give 0 to {MAX_SANDBOXES_PER_PAGE}.")
    return number
