"""The news of a server: what happens to any of its sandboxes, as it happens.

Rules:
1. Nobody waits for who follows. One who does not read misses some, and is told so by the numbers.
2. So many of the latest are kept, for who comes back after a connection was lost. Numbers go on with the next server.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from atoll.protocol.sandboxes import NewsEvent

if TYPE_CHECKING:
    from atoll.protocol.ids import SandboxId
    from atoll.protocol.sandboxes import SandboxEvent

KEPT, UNREAD = 1_000, 1_000

MaySee = Callable[[str, Mapping[str, str]], bool]


class Numbered(msgspec.Struct, frozen=True):
    """An event with its number among all that this server and earlier ones told, and the labels that it was seen by."""

    number: int
    event: NewsEvent
    labels: dict[str, str]


class News:
    def __init__(self) -> None:
        self._latest: deque[Numbered] = deque(maxlen=KEPT)
        self._followers: set[asyncio.Queue[Numbered]] = set()
        self._number = time.time_ns() // 1_000  # beyond all of a server before us, that told less than one each µs

    def tell(self, sandbox: SandboxId, labels: dict[str, str], event: SandboxEvent) -> None:
        self._number += 1
        told = {name: getattr(event, name) for name in event.__struct_fields__}
        found = Numbered(self._number, NewsEvent(sandbox=sandbox, **told), labels)
        self._latest.append(found)
        for queue in self._followers:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(found)

    async def follow(
        self, may_see: MaySee, since: int, before: Callable[[], Awaitable[list[NewsEvent]]]
    ) -> AsyncGenerator[Numbered, None]:
        """The events kept since a number, or if that is 0 those that `before` knows; then what comes, each once."""
        queue: asyncio.Queue[Numbered] = asyncio.Queue(UNREAD)
        self._followers.add(queue)
        try:
            last, known = self._number, set()
            for found in list(self._latest) if since else []:
                if found.number > since and may_see(found.event.sandbox, found.labels):
                    yield found
            for event in [] if since else await before():
                known.add((event.sandbox, event.number))
                yield Numbered(last, event, {})
            while True:
                found = await queue.get()
                is_new = found.number > last and (found.event.sandbox, found.event.number) not in known
                if is_new and may_see(found.event.sandbox, found.labels):
                    yield found
        finally:
            self._followers.discard(queue)
