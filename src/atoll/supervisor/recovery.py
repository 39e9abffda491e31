"""Recovery: disks that take nothing more are made to take what is written while the server runs.

The storage sees that (`Storage.problem`) and mounts them anew; whatever runs on them has to end for it, as it does when
the machine is switched off. What was synced is there afterwards, and the next operation starts its sandbox on it.

1. While the cause is known to be there nothing is ended: files can still be read.
2. Then, and not before, all sandboxes end, and the gate in front of the disks is closed until they are back.
3. A kill in the middle is that of any server: the next one finds disks that take nothing, or those that are back.
4. What cannot be done is tried again for ever, ever more seldom, and said when it changes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from atoll.protocol.errors import AtollError
from atoll.protocol.ids import SandboxId
from atoll.storage.recovery import pause_after
from atoll.store.moments import boot_id
from atoll.supervisor.disk_records import Mark, encode
from atoll.supervisor.reconcile import look_at_disks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.storage.base import Storage
    from atoll.supervisor.records import SandboxRecord
    from atoll.supervisor.roster import Roster
    from atoll.supervisor.workshop import Workshop

LOOK_SECONDS = 0.5

logger = logging.getLogger("atoll.supervisor")


class Recovery:
    """The watch over the disks of a workshop whose sandboxes are in `roster`."""

    def __init__(self, workshop: Workshop, roster: Roster) -> None:
        self._workshop = workshop
        self._roster = roster
        self._said = ""

    async def watch(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._workshop.storage.problem():
                await self._recover()

    async def _recover(self) -> None:
        failures = 0
        while self._workshop.storage.problem():
            try:
                if obstacle := await asyncio.to_thread(self._workshop.storage.obstacle):
                    self._say(obstacle)
                else:
                    await self._workshop.recover(self._end_sandboxes)
            except (AtollError, OSError) as problem:
                failures += 1
                self._say(str(problem))
            except Exception as mistake:  # a mistake of ours: whatever it is, without another try nobody has a disk
                failures += 1
                logger.error("recovering the disks failed: %s", mistake, exc_info=mistake)
            if self._workshop.storage.problem():
                await asyncio.sleep(pause_after(failures))
        self._said = ""
        await self._go_on()

    async def _end_sandboxes(self) -> None:
        ends = [actor.end_with_its_disk() for actor in self._roster.actors()]
        results = await asyncio.gather(*ends, return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure
        if any(results):
            logger.warning("%d sandboxes are ended, so that the disks can be recovered", results.count(True))

    async def _go_on(self) -> None:
        """With what was found on the disks; what ran starts when it is next used."""
        found = self._workshop.inherited
        logger.warning("the disks take what is written again")
        for name in found.removed:
            await self._roster.actor(name).note_removal()
        for name in found.restored:
            await self._roster.actor(name).adopt()

    def _say(self, what: str) -> None:
        if what != self._said:
            logger.warning("the disks cannot be recovered yet, which is tried again: %s", what)
        self._said = what


def finish_removals(storage: Storage) -> None:
    """Of disks that are there again, as it was not on the platter that they went."""
    for disk in look_at_disks(storage):
        if disk.kept and storage.epitaphs.has(disk.kept.record.identity):
            storage.remove(SandboxId(disk.name))


def make_missing(records: Iterable[SandboxRecord], storage: Storage) -> None:
    """Disks of sandboxes that were reported when that was not on the platter yet. Nothing was ever synced on one: that
    would have brought all of it there.
    """
    there = storage.names()
    for record in records:
        if record.id not in there:
            try:
                storage.create(record.id, record.limits.disk, encode(record, Mark.CREATED, boot_id()))
                logger.warning("the disk of sandbox %s, on which nothing was ever synced, is made anew", record.id)
            except AtollError as problem:
                logger.warning("the disk of sandbox %s is gone, and there is no new one: %s", record.id, problem)
