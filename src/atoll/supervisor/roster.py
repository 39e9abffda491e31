"""The roster: all sandboxes of a server, each with its actor."""

from __future__ import annotations

import asyncio
import logging
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.protocol.errors import AtollError, NotFoundError
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.protocol.sandboxes import AdoptRequest, LostSandbox, SandboxInfo, SandboxList, SandboxQuery
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.descriptors import check_room_for
from atoll.supervisor.recovery import Recovery

if TYPE_CHECKING:
    from atoll.store.timeline import Timeline
    from atoll.supervisor.machine import Machine

IDLE_CHECK_SECONDS = 1.0
AGENT_CHECK_SECONDS = 15.0
MANY_ACTORS = 64
LOOKS_PER_TURN, INFOS_PER_TURN = 500, 25  # of a list, before others have theirs: a quarter of a millisecond

logger = logging.getLogger("atoll.supervisor")


class Roster:
    """The only place where sandboxes are found by id."""

    def __init__(self, machine: Machine, timeline: Timeline) -> None:
        self._machine = machine
        self._timeline = timeline
        self._actors: dict[SandboxId, SandboxActor] = {}
        self._too_many = MANY_ACTORS
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Roster:
        """Go on with what an earlier server left running."""
        check_room_for(len(self._machine.inherited.running))
        for record in self._machine.records():
            await self.actor(record.id).adopt()
        self._timeline.retire_all_but(self._machine.is_on_record)
        self._tasks = [
            asyncio.create_task(self._put_idle_ones_to_sleep(), name="put idle sandboxes to sleep"),
            asyncio.create_task(self._check_agents(), name="look whether agents answer"),
            asyncio.create_task(Recovery(self._machine, self).watch(), name="recover disks that take nothing more"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for actor in list(self._actors.values()):
            await actor.close()

    def actor(self, sandbox_id: str) -> SandboxActor:
        name = parse_sandbox_id(sandbox_id)
        if name not in self._actors:
            if len(self._actors) >= self._too_many:
                self._forget_unused()
            self._actors[name] = SandboxActor(name, self._machine, self._timeline)
        return self._actors[name]

    def actors(self) -> list[SandboxActor]:
        return list(self._actors.values())

    def _forget_unused(self) -> None:
        """Actors of ids that were only asked about. All are looked at, so this is done when they have doubled.

        One that somebody holds stays, if only between looking it up and using it: two actors of one id would start two
        sandboxes on one disk. So each is let go of, and put back if it lives on.
        """
        for name in [name for name in self._actors if not self._machine.exists(name)]:
            dropped = weakref.ref(self._actors.pop(name))
            if held := dropped():
                self._actors[name] = held
        self._too_many = max(MANY_ACTORS, 2 * len(self._actors))

    @property
    def is_needed(self) -> bool:
        return any(actor.is_awake or actor.is_in_use or actor.is_to_be_stopped for actor in self._actors.values())

    async def list_lost(self) -> list[LostSandbox]:
        return await asyncio.to_thread(self._machine.lost)

    async def adopt_lost(self, name: str, asked: AdoptRequest, by: Caller) -> SandboxInfo:
        actor = self.actor(asked.id or self._machine.id_of_lost(name))
        await actor.take_back(name, asked.image, by)
        return await actor.info()

    async def remove_lost(self, name: str) -> None:
        await self._machine.remove_lost(name)

    async def list(self, query: SandboxQuery, *, with_use: bool = False) -> SandboxList:
        """One page. Nobody waits for it: after every few sandboxes it is everybody else's turn."""
        found: list[SandboxInfo] = []
        for number, record in enumerate(self._machine.records()):
            if number % LOOKS_PER_TURN == 0:
                await asyncio.sleep(0)
            if record.id <= query.after or not query.labels.items() <= record.upkeep.labels.items():
                continue
            if query.state not in (None, self.actor(record.id).state):
                continue
            if len(found) == query.limit:
                return SandboxList(sandboxes=found, next=found[-1].id)
            with suppress(NotFoundError):  # destroyed while we look
                actor = self.actor(record.id)
                found.append(await (actor.info_with_use() if with_use else actor.info()))
                if len(found) % INFOS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return SandboxList(sandboxes=found)

    async def _put_idle_ones_to_sleep(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_SECONDS)
            for actor in list(self._actors.values()):
                actor.let_idle_connections_go()
                try:
                    await actor.sleep_if_idle()
                    await actor.stop_if_long_asleep()
                except (AtollError, OSError) as cause:  # OSError: it ends just now, and its control group with it
                    logger.warning("sandbox %s does not sleep: %s", actor.name, cause)

    async def _check_agents(self) -> None:
        """Clients may wait for as long as a command is silent; not for an agent that is."""
        while True:
            await asyncio.sleep(AGENT_CHECK_SECONDS)
            checks = [actor.check_agent() for actor in self._actors.values()]
            for failure in await asyncio.gather(*checks, return_exceptions=True):
                if isinstance(failure, Exception):
                    logger.warning("an agent cannot be looked at: %s", failure)
