"""What an earlier machine left in the state directory, set right when the next one opens it.

Rules:
1. A sandbox that was reported as created keeps its disk, whatever else is found of it: running, ended or damaged.
2. One that was not reported, or whose removal was asked for, goes: process, disk and record, in this order, so that a
   kill in the middle leaves enough for the next to go on.
3. A disk that no record names is of a creation that was killed before it came to its record, and goes as well. Its
   process, if it had one, was never told to live on.
4. A record that cannot be read cannot be judged: it stays with its disk, and is listed. One that was not reported was
   only half written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from atoll.protocol.errors import AtollError, InvalidValueError
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.supervisor.records import RecordFile, SandboxRecord, Stage

if TYPE_CHECKING:
    from atoll.engine.base import Engine
    from atoll.storage.base import Storage
    from atoll.supervisor.records import Records


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """What remains to be done about one sandbox: end these processes, remove its disk, drop these files."""

    id: SandboxId
    processes: tuple[SandboxRecord, ...] = ()
    has_disk: bool = False
    files: tuple[Stage, ...] = ()


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when a state directory was opened, and what became of it."""

    running: tuple[SandboxId, ...] = ()
    ended: tuple[SandboxId, ...] = ()
    damaged: tuple[SandboxId, ...] = ()
    removed: tuple[SandboxId, ...] = ()
    failed: tuple[SandboxId, ...] = ()  # should have been removed, and could not be; the next to open tries again


def decide(files: Iterable[RecordFile], disks: Iterable[str]) -> list[Undo]:
    """What to undo, given every record file and every disk that is there."""
    by_id: dict[SandboxId, dict[Stage, RecordFile]] = {}
    for file in files:
        by_id.setdefault(file.id, {})[file.stage] = file
    left = set(filter(None, map(_as_id, disks)))
    decisions = (_decide_one(name, by_id.get(name, {}), name in left) for name in sorted(left | by_id.keys()))
    return [decision for decision in decisions if decision]


def _decide_one(name: SandboxId, files: dict[Stage, RecordFile], has_disk: bool) -> Undo | None:
    unwanted = [file for stage, file in files.items() if stage is not Stage.CREATED]
    removing = files.get(Stage.REMOVING)
    if Stage.CREATED in files:
        has_disk = False  # what is there is the disk of this one
    elif removing and removing.record is None:
        return None
    if not unwanted and not has_disk:
        return None
    return Undo(
        id=name,
        processes=tuple(file.record for file in unwanted if file.record),
        has_disk=has_disk,
        files=tuple(file.stage for file in unwanted),
    )


async def reconcile(records: Records, storage: Storage, engine: Engine) -> Findings:
    """Nobody else may be using the state directory."""
    files, disks = records.files(), storage.names()
    await engine.settle([file.record.to_live() for file in files if file.record])
    removed, failed = [], []
    for undo in decide(files, disks):
        try:
            await _perform(undo, records, storage, engine)
            removed.append(undo.id)
        except (AtollError, OSError):
            failed.append(undo.id)
    created = [file.record for file in files if file.stage is Stage.CREATED and file.record]
    running = [record.id for record in created if await _is_running(record, engine)]
    return Findings(
        running=tuple(running),
        ended=tuple(record.id for record in created if record.id not in running),
        damaged=tuple(file.id for file in files if file.stage is not Stage.MAKING and file.record is None),
        removed=tuple(removed),
        failed=tuple(failed),
    )


async def _perform(undo: Undo, records: Records, storage: Storage, engine: Engine) -> None:
    for record in undo.processes:
        live = await engine.adopt(record.to_live())
        if live:
            await engine.stop(live)
    if undo.has_disk:
        storage.remove(undo.id)
    for stage in undo.files:
        records.drop(undo.id, stage)


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
