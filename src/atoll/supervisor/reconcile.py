"""Reconciliation: what an earlier workshop left in the state directory, set right when the next one opens it.

Rules:
1. A sandbox that was reported as created keeps its disk, whatever else is found of it: running, ended or damaged.
2. One that is certain not to have been reported, or whose removal was asked for, goes: process, disk and record, in
   this order, so that a kill in the middle leaves enough for the next to go on.
3. Certain is what was written within this boot of the machine, as a kill loses nothing of it. After a power failure
   rows may be missing or old, and so may be what was never synced of the disks.
4. A disk that carries a record with the mark `created` is of a sandbox that was reported. Without a row, or with an
   older one, it gets its row from the disk. A row whose disk was removed, as the storage says, goes as well.
5. A disk about which that is not known is set aside (`storage/lost.py`): nothing that may be somebody's is removed.
6. One that another engine started, whose handle this one cannot read, may be running: it is left as it is.
7. A record that can be read nowhere cannot be judged: it stays with its disk, and is listed. What runs and is in no
   record may be its sandbox; if there is no such record, it is a stray, and is ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING

import msgspec

from atoll.protocol.errors import AtollError, InvalidValueError
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.supervisor.disk_records import Disk, DiskRecord, Mark, decode, encode
from atoll.supervisor.estate import Inherited
from atoll.supervisor.lost import first_note
from atoll.supervisor.records import Row, SandboxRecord, Stage

if TYPE_CHECKING:
    from atoll.engine.base import Engine
    from atoll.storage.base import Storage
    from atoll.supervisor.records import Records

UNREPORTED = "it was being made when the power failed, and nothing says that it was finished"
UNKNOWN = "neither the database nor the disk says of which sandbox it is"
DESTROYED = "its sandbox was destroyed, and the power failed before that was on the disk"
OTHER = "the database knows another sandbox of this id, which was made at another time"


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """The rest to be done about one sandbox: end what `record` says may be running, remove its disk, forget it."""

    id: SandboxId
    record: SandboxRecord | None = None
    has_disk: bool = False


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox whose row is lost, older than its disk or damaged: what the disk carries counts."""

    id: SandboxId
    record: SandboxRecord


class Inscribe(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that carries an older record than the database has, or none."""

    id: SandboxId
    record: SandboxRecord


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that may be somebody's, and is no sandbox's."""

    id: SandboxId
    reason: str


Decision = Undo | Restore | Inscribe | SetAside


class Fate(Enum):
    """The fate of a sandbox that was created."""

    RUNS = auto()
    ENDED = auto()
    UNKNOWN = auto()


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """The ground for decisions besides rows and disks. `destroyed_at` tells when the last sandbox of an id was
    destroyed, if that is on the timeline; `was_removed`, whether it is certain that a disk which is gone was removed.
    """

    boot_id: str
    destroyed_at: Callable[[SandboxId], datetime | None]
    was_removed: Callable[[SandboxRecord], bool]


def decide(rows: Iterable[Row], disks: Iterable[Disk], ground: Ground) -> list[Decision]:
    """The decisions, given every record and every disk that is there."""
    by_id = {row.id: row for row in rows}
    left = {name: disk for disk in disks if (name := _as_id(disk.name))}
    decisions = (_decide_one(name, by_id.get(name), left.get(name), ground) for name in sorted(left | by_id))
    return [decision for decision in decisions if decision]


def _decide_one(name: SandboxId, row: Row | None, disk: Disk | None, ground: Ground) -> Decision | None:
    if row is None:
        return _decide_on_disk(name, disk, ground) if disk else None
    kept = _own(disk, name)
    if row.stage is Stage.REMOVING:
        return Undo(id=name, record=row.record, has_disk=disk is not None) if row.record else None
    if row.record is None:
        return Restore(id=name, record=kept.record) if kept and kept.mark is Mark.CREATED else None
    if row.stage is Stage.MAKING:
        return _decide_on_making(row.record, disk, kept, ground)
    if disk is None:
        is_half = ground.was_removed(row.record)
        return Undo(id=name, record=row.record) if is_half else None
    return _decide_on_created(row.record, kept)


def _decide_on_disk(name: SandboxId, disk: Disk, ground: Ground) -> Decision:
    """Without a row."""
    kept = _own(disk, name)
    if kept is None:
        return Undo(id=name, has_disk=True) if disk.is_empty else SetAside(id=name, reason=UNKNOWN)
    if kept.mark is Mark.CREATED:
        destroyed = ground.destroyed_at(name)
        if destroyed and destroyed >= kept.record.created_at:
            return SetAside(id=name, reason=DESTROYED)
        return Restore(id=name, record=kept.record)
    is_certain = kept.boot_id == ground.boot_id
    return Undo(id=name, has_disk=True) if is_certain else SetAside(id=name, reason=UNREPORTED)


def _decide_on_making(record: SandboxRecord, disk: Disk | None, kept: DiskRecord | None, ground: Ground) -> Decision:
    if kept and kept.mark is Mark.CREATED:
        is_its = kept.record.created_at >= record.created_at
        return Restore(id=record.id, record=kept.record) if is_its else SetAside(id=record.id, reason=OTHER)
    if disk is None or disk.is_empty or record.boot_id == ground.boot_id:
        return Undo(id=record.id, record=record, has_disk=disk is not None)
    return SetAside(id=record.id, reason=UNREPORTED)


def _decide_on_created(record: SandboxRecord, kept: DiskRecord | None) -> Decision | None:
    if kept is None:
        return Inscribe(id=record.id, record=record)
    if kept.record.created_at != record.created_at:
        is_later = kept.mark is Mark.CREATED and kept.record.created_at > record.created_at
        return Restore(id=record.id, record=kept.record) if is_later else SetAside(id=record.id, reason=OTHER)
    if kept.mark is Mark.MAKING or kept.record.revision < record.revision:
        return Inscribe(id=record.id, record=record)
    is_current = kept.record.revision == record.revision
    return None if is_current else Restore(id=record.id, record=kept.record)


def _own(disk: Disk | None, name: SandboxId) -> DiskRecord | None:
    """The record that a disk carries, if that is of the sandbox it is called by."""
    return disk.kept if disk and disk.kept and disk.kept.record.id == name else None


async def reconcile(records: Records, storage: Storage, engine: Engine, ground: Ground) -> Inherited:
    """Set right what is there. Nobody else may be using the state directory."""
    rows, disks = records.rows(), look_at_disks(storage)
    known = [row.record for row in rows if row.record] + [disk.kept.record for disk in disks if disk.kept]
    are_all = all(row.record or row.id in {disk.name for disk in disks if disk.kept} for row in rows)
    await engine.settle([record.to_live(ground.boot_id) for record in known], are_all=are_all)
    done: list[Decision] = []
    set_aside, failed, problems = [], [], []
    for decision in decide(rows, disks, ground):
        try:
            if isinstance(decision, SetAside):
                set_aside.append(await _set_aside(decision, records, storage))
            else:
                await _perform(decision, records, storage, engine, ground)
            done.append(decision)
        except (AtollError, OSError) as problem:
            failed.append(decision.id)
            problems.append(f"{type(decision).__name__} {decision.id}: {problem}")
    rows = records.rows()
    created = [row.record for row in rows if row.stage is Stage.CREATED and row.record]
    fates = {record.id: await _fate(record, engine, ground) for record in created}
    return Inherited(
        running=tuple(name for name, fate in fates.items() if fate is Fate.RUNS),
        ended=tuple(name for name, fate in fates.items() if fate is Fate.ENDED),
        out_of_reach=tuple(name for name, fate in fates.items() if fate is Fate.UNKNOWN),
        damaged=tuple(row.id for row in rows if row.record is None),
        removed=tuple(decision.id for decision in done if isinstance(decision, Undo)),
        restored=tuple(decision.id for decision in done if isinstance(decision, Restore)),
        set_aside=tuple(set_aside),
        failed=tuple(failed),
        problems=tuple(problems),
    )


async def _fate(record: SandboxRecord, engine: Engine, ground: Ground) -> Fate:
    left = record.to_live(ground.boot_id)
    if engine.why_out_of_reach(left):
        return Fate.UNKNOWN
    return Fate.RUNS if await engine.is_running(left) else Fate.ENDED


def look_at_disks(storage: Storage) -> list[Disk]:
    """Disks and what each carries. One that cannot be looked at carries nothing that can be read, and is not empty."""
    return [_look_at(name, storage) for name in sorted(storage.names()) if _as_id(name)]


def _look_at(name: str, storage: Storage) -> Disk:
    try:
        content = storage.record(name)
        return Disk(name=name, kept=decode(content), is_empty=content is None and storage.is_empty(SandboxId(name)))
    except OSError:
        return Disk(name=name)


async def _perform(
    decision: Undo | Restore | Inscribe, records: Records, storage: Storage, engine: Engine, ground: Ground
) -> None:
    match decision:
        case Undo():
            await _undo(decision, records, storage, engine, ground)
        case Restore():
            await records.restore(decision.record)
        case Inscribe():
            storage.replace_record(decision.id, encode(decision.record, Mark.CREATED, ground.boot_id))


async def _undo(undo: Undo, records: Records, storage: Storage, engine: Engine, ground: Ground) -> None:
    if undo.record:
        live = await engine.adopt(undo.record.to_live(ground.boot_id))
        if live:
            await engine.stop(live)
    if undo.has_disk:
        storage.remove(undo.id)
    await records.forget(undo.id)


async def _set_aside(decision: SetAside, records: Records, storage: Storage) -> str:
    name = storage.set_aside(decision.id, first_note(decision.reason, datetime.now(UTC)))
    await records.forget(decision.id)
    return name


def _as_id(name: str) -> SandboxId | None:
    """None for a directory that no sandbox could have."""
    try:
        return parse_sandbox_id(name)
    except InvalidValueError:
        return None
