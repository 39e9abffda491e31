"""What an earlier machine left in the state directory, set right when the next one opens it.

Rules:
1. A sandbox that was reported as created keeps its disk, whatever else is found of it: running, ended or damaged.
2. One that was not reported, or whose removal was asked for, goes: process, disk and record, in this order, so that a
   kill in the middle leaves enough for the next to go on.
3. A disk that no record names is of a creation that was killed before it came to its record, and goes as well. Its
   process, if it had one, was never told to live on.
4. A record that cannot be read cannot be judged: it stays with its disk, and is listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from atoll.protocol.errors import AtollError, InvalidValueError
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.supervisor.records import Row, SandboxRecord, Stage

if TYPE_CHECKING:
    from atoll.engine.base import Engine
    from atoll.storage.base import Storage
    from atoll.supervisor.records import Records


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """What remains to be done about one sandbox: end what `record` says may be running, remove its disk, forget it."""

    id: SandboxId
    record: SandboxRecord | None = None
    has_disk: bool = False


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when a state directory was opened, and what became of it."""

    running: tuple[SandboxId, ...] = ()
    ended: tuple[SandboxId, ...] = ()
    damaged: tuple[SandboxId, ...] = ()
    removed: tuple[SandboxId, ...] = ()
    failed: tuple[SandboxId, ...] = ()  # should have been removed, and could not be; the next to open tries again


def decide(rows: Iterable[Row], disks: Iterable[str]) -> list[Undo]:
    """What to undo, given every record and every disk that is there."""
    by_id = {row.id: row for row in rows}
    left = set(filter(None, map(_as_id, disks)))
    decisions = (_decide_one(name, by_id.get(name), name in left) for name in sorted(left | by_id.keys()))
    return [decision for decision in decisions if decision]


def _decide_one(name: SandboxId, row: Row | None, has_disk: bool) -> Undo | None:
    if row is None:
        return Undo(id=name, has_disk=has_disk)
    if row.stage is Stage.CREATED or row.record is None:
        return None
    return Undo(id=name, record=row.record, has_disk=has_disk)


async def reconcile(records: Records, storage: Storage, engine: Engine) -> Findings:
    """Nobody else may be using the state directory."""
    rows, disks = records.rows(), storage.names()
    await engine.settle([row.record.to_live() for row in rows if row.record])
    removed, failed = [], []
    for undo in decide(rows, disks):
        try:
            await _perform(undo, records, storage, engine)
            removed.append(undo.id)
        except (AtollError, OSError):
            failed.append(undo.id)
    created = [row.record for row in rows if row.stage is Stage.CREATED and row.record]
    running = {record.id for record in created if await _is_running(record, engine)}
    return Findings(
        running=tuple(record.id for record in created if record.id in running),
        ended=tuple(record.id for record in created if record.id not in running),
        damaged=tuple(row.id for row in rows if row.record is None),
        removed=tuple(removed),
        failed=tuple(failed),
    )


async def _perform(undo: Undo, records: Records, storage: Storage, engine: Engine) -> None:
    if undo.record:
        live = await engine.adopt(undo.record.to_live())
        if live:
            await engine.stop(live)
    if undo.has_disk:
        storage.remove(undo.id)
    records.forget(undo.id)


async def _is_running(record: SandboxRecord, engine: Engine) -> bool:
    live = await engine.adopt(record.to_live())
    if live:
        live.release()
    return live is not None


def _as_id(name: str) -> SandboxId | None:
    """None for a directory that no sandbox could have."""
    try:
        return parse_sandbox_id(name)
    except InvalidValueError:
        return None
