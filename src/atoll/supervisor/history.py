"""The history of one sandbox: noted on the timeline, and told to whoever follows it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.protocol.errors import AtollError
from atoll.protocol.sandboxes import REMOVED_LATER, STATE_CHANGES, SandboxEvent, SandboxState
from atoll.store import moments
from atoll.store.timeline import DESTROYED
from atoll.telemetry import counted
from atoll.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from atoll.protocol.ids import SandboxId
    from atoll.store.base import Timeline
    from atoll.store.timeline import Entry
    from atoll.supervisor.news import News

UNREAD_EVENTS = 256
_STATES = {"frozen": SandboxState.FROZEN, "stopped": SandboxState.STOPPED}  # after a change of it; else it runs
LOGGED = STATE_CHANGES | {"oom_killed", REMOVED_LATER, DESTROYED}

logger = logging.getLogger("atoll.supervisor")


class History:
    def __init__(self, sandbox: SandboxId, timeline: Timeline, news: News) -> None:
        self._sandbox = sandbox
        self._timeline = timeline
        self._news = news
        self.labels: dict[str, str] = {}  # of the sandbox, by which keys may see what happens to it
        self._followers: set[asyncio.Queue[SandboxEvent | None]] = set()
        self.last_change: Entry | None = None  # of its state

    async def is_empty(self) -> bool:
        return await self._timeline.last(self._sandbox) is None

    async def has_ended(self) -> bool:
        last = await self._timeline.last(self._sandbox)
        return last is not None and last.what == DESTROYED

    @property
    def last_state(self) -> SandboxState:
        change = self.last_change
        return _STATES.get(change.what, SandboxState.RUNNING) if change else SandboxState.STOPPED

    @property
    def says_frozen(self) -> bool:
        return self.last_change is not None and self.last_change.what == "frozen"

    @property
    def is_followed(self) -> bool:
        return bool(self._followers)

    async def recall(self) -> None:
        """Go on with what an earlier server noted."""
        self.last_change = await self._timeline.latest(self._sandbox, STATE_CHANGES)

    async def begin(self, *, cause: str, by: str) -> None:
        """Note that it was created. What is known of an earlier one of its id goes."""
        self._tell(await self._timeline.begin_anew(self._sandbox, "created", cause=cause, by=by))

    async def note(self, what: str, *, cause: str, by: str) -> None:
        self._tell(await self._timeline.add(self._sandbox, what, cause=cause, by=by))

    async def note_if_possible(self, what: str, *, cause: str, by: str) -> None:
        """Of what happened by itself: there is nobody to tell that it could not be noted, and it is no less true."""
        try:
            await self.note(what, cause=cause, by=by)
        except AtollError as problem:
            logger.error("%r of sandbox %s is missing from its timeline: %s", what, self._sandbox, problem)

    async def end(self, *, cause: str, by: str) -> None:
        """Note that it was destroyed. If that fails, whoever follows still learns of it, and the next try notes it."""
        try:
            if not await self.has_ended():
                await self.note(DESTROYED, cause=cause, by=by)
                await self._timeline.retire(self._sandbox)
        finally:
            self._tell_followers(None)

    async def since(self, number: int) -> list[SandboxEvent]:
        return [entry.told() for entry in await self._timeline.since(self._sandbox, number)]

    def asleep_for(self) -> float:
        """Seconds since it was frozen, also by an earlier server; none if that was not its last change."""
        if self.last_change is None or not self.says_frozen:
            return 0.0
        return moments.elapsed(self.last_change.moment, moments.now())

    async def follow(self, since: int, exists: Callable[[], bool]) -> AsyncGenerator[SandboxEvent, None]:
        """All events, then those that come, to the end of the sandbox; `exists` says whether that is yet to come.

        One who does not read misses some, and sees it by their numbers; the last is never missed.
        """
        queue: asyncio.Queue[SandboxEvent | None] = asyncio.Queue(UNREAD_EVENTS)
        self._followers.add(queue)
        try:
            for event in await self.since(since):
                since = event.number
                yield event
                if event.what == DESTROYED:
                    return
            if not exists() and queue.empty():
                return
            while told := await queue.get():
                if told.number > since:
                    yield told
                if told.what == DESTROYED:
                    return
        finally:
            self._followers.discard(queue)

    def _tell(self, event: Entry) -> None:
        if event.what in STATE_CHANGES:
            self.last_change = event
        if event.what in counted.EVENTS:
            counted.events.add(event.what)
        if event.what in LOGGED and event.count.bit_count() == 1:  # what repeats itself is told ever more seldom
            self._log(event)
        told = event.told()
        self._news.tell(self._sandbox, self.labels, told)
        self._tell_followers(told)

    def _log(self, event: Entry) -> None:
        times = f" {event.count} times" if event.count > 1 else ""
        told = about(event=event.what, sandbox=self._sandbox, cause=event.cause, by=event.by)
        logger.info("sandbox %s: %s%s, %s, by %s", self._sandbox, event.what, times, event.cause, event.by, extra=told)

    def _tell_followers(self, event: SandboxEvent | None) -> None:
        """None is the end, after which nothing is told."""
        for queue in self._followers:
            if queue.full() and (event is None or event.what == DESTROYED):
                queue.get_nowait()
            with suppress(asyncio.QueueFull):
                queue.put_nowait(event)
