"""Disks that were set aside, as users see them: listed, made sandboxes again, and removed.

One that nobody asks for is removed after a long time. The clock on the wall may have been set meanwhile, so no look at
it counts for more than a day, however long ago the one before was.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from atoll.protocol.errors import AtollError
from atoll.protocol.sandboxes import LostSandbox
from atoll.storage.lost import DIRECTORY, NAMES
from atoll.supervisor.disk_records import decode

if TYPE_CHECKING:
    from atoll.storage.base import Storage
    from atoll.supervisor.records import SandboxRecord

KEEP_SECONDS = 30 * 86400.0
LONGEST_STEP_SECONDS = 86400.0


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


def tell_names(storage: Storage, state: Path) -> None:
    """To the doctor, who looks also while the disks cannot be seen."""
    names = storage.lost.names()
    with suppress(OSError):
        if names:
            (state / NAMES).write_text("\n".join(names))
        else:
            (state / NAMES).unlink(missing_ok=True)


def remove_expired(storage: Storage, keep_seconds: float) -> tuple[list[str], list[str]]:
    """Those that were there for so long. Which those were, and what could not be done."""
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
