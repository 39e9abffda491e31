"""The roster: all sandboxes of a server, each with its actor."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Coroutine
from contextlib import closing, suppress
from math import inf
from typing import TYPE_CHECKING

from atoll.protocol.errors import AtollError, NotFoundError
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.protocol.sandboxes import (
    AdoptRequest,
    LostSandbox,
    NewsEvent,
    SandboxEvent,
    SandboxInfo,
    SandboxList,
    SandboxQuery,
)
from atoll.store.moments import since_boot
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.deadlines import Alarm, Deadlines
from atoll.supervisor.descriptors import check_room_for
from atoll.supervisor.info import describe, describe_with_use
from atoll.supervisor.news import MaySee, News
from atoll.supervisor.recovery import Recovery

if TYPE_CHECKING:
    from atoll.store.base import Timeline
    from atoll.supervisor.records import SandboxRecord
    from atoll.supervisor.workshop import Workshop

MANY_ACTORS = 64
LOOKS_AT_ONCE = 16
LOOKS_PER_TURN, INFOS_PER_TURN = 500, 25  # of a list, before others have theirs: a quarter of a millisecond

logger = logging.getLogger("atoll.supervisor")


class Roster:
    """The only place where sandboxes are found by id."""

    def __init__(self, workshop: Workshop, timeline: Timeline) -> None:
        self.workshop = workshop
        self._timeline = timeline
        self._actors: dict[SandboxId, SandboxActor] = {}
        self.news = News()
        self._too_many = MANY_ACTORS
        self._deadlines = Deadlines(self._look_planned_at)
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._who_needs_us: SandboxActor | None = None

    async def __aenter__(self) -> Roster:
        """Go on with what an earlier server left running."""
        check_room_for(len(self.workshop.inherited.running))
        for record in self.workshop.records():
            await self.actor(record.id).adopt()
        await self._timeline.retire_unrecorded()
        self._begin(self._keep_deadlines(), "keep the deadlines of sandboxes")
        self._begin(Recovery(self.workshop, self).watch(), "recover disks that take nothing more")
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for actor in list(self._actors.values()):
            await actor.close()

    def _begin(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def actor(self, sandbox_id: str) -> SandboxActor:
        name = parse_sandbox_id(sandbox_id)
        if name not in self._actors:
            if len(self._actors) >= self._too_many:
                self._forget_unused()
            self._actors[name] = SandboxActor(name, self.workshop, self._timeline, self._deadlines, self.news)
        return self._actors[name]

    def existing(self, name: str) -> SandboxActor | None:
        """Of a sandbox that exists, by its id or by its alias in host names. Nothing is kept of any other name."""
        record = self.workshop.find_by_alias(name) or self.workshop.find(SandboxId(name))
        return self.actor(record.id) if record else None

    def records(self) -> list[SandboxRecord]:
        return self.workshop.records()

    def actors(self) -> list[SandboxActor]:
        return list(self._actors.values())

    def _forget_unused(self) -> None:
        """Actors of ids that were only asked about. All are looked at, so this is done when they have doubled.

        One that somebody holds stays, if only between looking it up and using it: two actors of one id would start two
        sandboxes on one disk. So each is let go of, and put back if it lives on.
        """
        for name in [name for name in self._actors if not self.workshop.exists(name)]:
            dropped = weakref.ref(self._actors.pop(name))
            if held := dropped():
                self._actors[name] = held
        self._too_many = max(MANY_ACTORS, 2 * len(self._actors))

    @property
    def is_needed(self) -> bool:
        """Whether a sandbox needs this server. The one that did is asked first: mostly that is enough."""
        if self._who_needs_us is None or not self._who_needs_us.needs_server:
            self._who_needs_us = next((actor for actor in self._actors.values() if actor.needs_server), None)
        return self._who_needs_us is not None

    async def list_lost(self) -> list[LostSandbox]:
        return await asyncio.to_thread(self.workshop.lost.all)

    async def adopt_lost(self, name: str, asked: AdoptRequest, by: Caller) -> SandboxInfo:
        actor = self.actor(asked.id or self.workshop.lost.id_of(name))
        await actor.take_back(name, asked.image, by)
        return describe(actor)

    async def remove_lost(self, name: str) -> None:
        await self.workshop.lost.remove(name)

    async def states(self) -> list[str]:
        """The states of all sandboxes."""
        found = []
        for number, record in enumerate(self.workshop.records()):
            if number % LOOKS_PER_TURN == 0:
                await asyncio.sleep(0)
            found.append(self.actor(record.id).state.value)
        return found

    async def latest_news(self, most: int, may_see: MaySee) -> list[NewsEvent]:
        """The latest events of sandboxes that one may see, in order. By what they are found: one that is gone has no
        labels any more.
        """
        found = await self._timeline.latest_of_all(
            most, lambda sandbox: may_see(sandbox, self.labels_of(SandboxId(sandbox)) or {})
        )
        return [
            NewsEvent(sandbox=sandbox, **{name: getattr(entry, name) for name in SandboxEvent.__struct_fields__})
            for sandbox, entry in found
        ]

    def labels_of(self, sandbox: SandboxId) -> dict[str, str] | None:
        """None if there is no such sandbox."""
        record = self.workshop.find(sandbox)
        return record.upkeep.labels if record else None

    async def list(
        self,
        query: SandboxQuery,
        *,
        with_use: bool = False,
        may_see: MaySee | None = None,
    ) -> SandboxList:
        """A page of them, of those that one `may_see`. Nobody waits for it: after every few sandboxes it is everybody
        else's turn.
        """
        found: list[SandboxInfo] = []
        for number, record in enumerate(self.workshop.records()):
            if number % LOOKS_PER_TURN == 0:
                await asyncio.sleep(0)
            if record.id <= query.after or not query.labels.items() <= record.upkeep.labels.items():
                continue
            if may_see and not may_see(record.id, record.upkeep.labels):
                continue
            if query.state not in (None, self.actor(record.id).state):
                continue
            if len(found) == query.limit:
                return SandboxList(sandboxes=found, next=found[-1].id)
            with suppress(NotFoundError):  # destroyed while we look
                actor = self.actor(record.id)
                found.append(await describe_with_use(actor) if with_use else describe(actor))
                if len(found) % INFOS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return SandboxList(sandboxes=found)

    def _look_planned_at(self, name: SandboxId) -> float:
        actor = self._actors.get(name)
        return actor.look_at if actor else inf

    async def _keep_deadlines(self) -> None:
        with closing(Alarm()) as alarm:
            self._deadlines.on_first(alarm.set)
            while True:
                await alarm.ring()
                for name in self._deadlines.take(since_boot()):
                    self._begin(self._look(self._actors[name]), f"look at {name}")
                alarm.set(self._deadlines.first)

    async def _look(self, actor: SandboxActor) -> None:
        """At one, while others are looked at: it may take a while."""
        async with self._looking:
            try:
                await actor.look()
            except (AtollError, OSError) as cause:  # OSError: it ends just now, and its control group with it
                logger.warning("what is due of sandbox %s cannot be done: %s", actor.name, cause)
            except Exception as mistake:  # a mistake of ours, which is no reason not to look again
                logger.error("looking at sandbox %s failed: %s", actor.name, mistake, exc_info=mistake)
