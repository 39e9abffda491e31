"""Disks that were set aside, as users see them: listed, made sandboxes again, and removed.

One that nobody asks for is removed after a long time. The clock on the wall may have been set meanwhile, so no look at
it counts for more than a day, however long ago the one before was.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from atoll.protocol.errors import AtollError
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.protocol.limits import Limits
from atoll.protocol.sandboxes import DEFAULT_IMAGE, LostSandbox
from atoll.storage.directory import already_exists
from atoll.storage.lost import DIRECTORY, NAMES
from atoll.store.moments import boot_id, now
from atoll.supervisor.disk_records import Mark, decode, encode
from atoll.supervisor.records import SandboxRecord
from atoll.supervisor.to_the_end import to_the_end

if TYPE_CHECKING:
    from atoll.storage.base import Storage
    from atoll.supervisor.workshop import Workshop

KEEP_SECONDS = 30 * 86400.0
LONGEST_STEP_SECONDS = 86400.0
LOOK_SECONDS = 3600.0

logger = logging.getLogger("atoll.supervisor")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Why a disk was set aside and when, when it was last looked at, and for how long it has been there for certain."""

    reason: str
    since: datetime
    seen: datetime
    kept_seconds: float = 0.0


def first_note(reason: str, now: datetime) -> bytes:
    return msgspec.json.encode(Note(reason=reason, since=now, seen=now))


def decode_note(content: bytes | None, now: datetime) -> Note:
    """The note of a lost disk. One that cannot be read begins anew."""
    try:
        return msgspec.json.decode(content or b"", type=Note)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Note(reason="its note cannot be read", since=now, seen=now)


def looked_at(note: Note, now: datetime) -> Note:
    passed = min(max(0.0, (now - note.seen).total_seconds()), LONGEST_STEP_SECONDS)
    return msgspec.structs.replace(note, seen=now, kept_seconds=note.kept_seconds + passed)


def list_lost(storage: Storage) -> list[LostSandbox]:
    now = datetime.now(UTC)
    found = []
    for name in storage.lost.names():
        note, record = decode_note(storage.lost.note(name), now), record_of(storage, name)
        found.append(
            LostSandbox(
                name=name,
                reason=note.reason,
                since=note.since,
                id=record.id if record else None,
                image=record.image if record else None,
                created_at=record.created_at if record else None,
            )
        )
    return found


def record_of(storage: Storage, name: str) -> SandboxRecord | None:
    """The record that a lost disk carries."""
    storage.lost.path(name)
    kept = decode(storage.record(f"{DIRECTORY}/{name}"))
    return kept.record if kept else None


def tell_names(storage: Storage, state: Path) -> list[str]:
    """To the doctor, who looks also while the disks cannot be seen."""
    names = storage.lost.names()
    with suppress(OSError):
        if names:
            (state / NAMES).write_text("\n".join(names))
        else:
            (state / NAMES).unlink(missing_ok=True)
    return names


def remove_expired(storage: Storage, keep_seconds: float) -> tuple[list[str], list[str]]:
    """Remove those that were there for so long. Returns their names, and what could not be done."""
    now = datetime.now(UTC)
    removed, problems = [], []
    for name in storage.lost.names():
        try:
            note = looked_at(decode_note(storage.lost.note(name), now), now)
            if note.kept_seconds >= keep_seconds:
                storage.remove_lost(name)
                removed.append(name)
            else:
                storage.lost.write_note(name, msgspec.json.encode(note))
        except (AtollError, OSError) as problem:
            problems.append(f"the lost disk {name}: {problem}")
    return removed, problems


class LostAndFound:
    """The lost disks of a workshop: listed, made sandboxes again, removed, and in the end removed by themselves."""

    def __init__(self, workshop: Workshop, state: Path, keep_seconds: float) -> None:
        self._workshop = workshop
        self._state = state
        self._keep_seconds = keep_seconds
        self._names: list[str] = []

    def all(self) -> list[LostSandbox]:
        """Disks that were set aside, and may be had again."""
        return list_lost(self._workshop.storage)

    def tell_names(self) -> None:
        self._names = tell_names(self._workshop.storage, self._state)

    def of_id(self, sandbox_id: SandboxId) -> list[str]:
        """Disks of earlier sandboxes of this id, by what they are called."""
        return [name for name in self._names if name.partition(".")[0] == sandbox_id]

    def id_of(self, name: str) -> SandboxId:
        """The id that a lost disk says its sandbox had; else what it is called by."""
        found = record_of(self._workshop.storage, name)
        return found.id if found else parse_sandbox_id(name.partition(".")[0])

    async def take_back(self, name: str, sandbox_id: SandboxId, image: str | None = None) -> SandboxRecord:
        """Make a lost disk a sandbox again, which is not started.

        The disk says that it was created before it is back: a kill right after that leaves one that is restored.
        """
        if self._workshop.is_on_record(sandbox_id):
            raise already_exists(sandbox_id)
        with self._workshop.using_disks():
            return await self._take_back(name, sandbox_id, image)

    async def _take_back(self, name: str, sandbox_id: SandboxId, image: str | None) -> SandboxRecord:
        found = record_of(self._workshop.storage, name)
        record = found or await self._record_of_unknown(sandbox_id, image or DEFAULT_IMAGE)
        # It begins anew: whatever is known of one that was destroyed is not its.
        record = msgspec.structs.replace(record, id=sandbox_id, engine="", handle="", generation="").made_at(now())
        self._workshop.storage.take_back(name, sandbox_id, encode(record, Mark.CREATED, boot_id()))
        await self._workshop.restore(record)
        self.tell_names()
        return record

    async def _record_of_unknown(self, sandbox_id: SandboxId, image: str) -> SandboxRecord:
        """For a disk that says nothing of its sandbox."""
        rootfs = await asyncio.to_thread(self._workshop.images.resolve, image)
        return SandboxRecord(
            id=sandbox_id,
            image=rootfs.image,
            image_state=rootfs.state,
            limits=Limits(),
            created_at=datetime.now(UTC),
        )

    async def remove(self, name: str) -> None:
        """Remove a disk that was set aside, for good."""
        with self._workshop.using_disks():
            await to_the_end(asyncio.to_thread(self._workshop.storage.remove_lost, name))
            self.tell_names()

    async def keep(self) -> None:
        """Remove what nobody asked for in a long time; for ever."""
        while True:
            with suppress(AtollError, OSError), self._workshop.using_disks():  # they may not be there just now
                if self._workshop.storage.lost.names():
                    await to_the_end(self.look())
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        removed, problems = await asyncio.to_thread(remove_expired, self._workshop.storage, self._keep_seconds)
        self.tell_names()
        for name in removed:
            logger.warning("the disk %s, which was set aside and nobody asked for, is removed", name)
        for problem in problems:
            logger.warning("cannot be looked at or removed, so this is tried again: %s", problem)
