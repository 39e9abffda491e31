"""The record that a disk carries of its sandbox, for when the database has lost its row.

The database is written when the kernel finds the time; a disk, as soon as somebody inside syncs a file. So a power
failure can leave a disk whose sandbox nobody has heard of. What the disk carries is committed with it
(`storage/attributes.py`), and says which sandbox it was and how far.

The mark says `making` from the disk's first moment, and `created` right before the creation is reported. Within one
boot of the machine both are exact. After another boot `created` is certain as well; `making` then says only that nobody
inside had synced anything after the creation was reported.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from atoll.supervisor.records import SandboxRecord, read_record

VERSION = 1


class Mark(StrEnum):
    MAKING = "making"
    CREATED = "created"


class DiskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`boot_id` is of the boot in which it was written."""

    version: int = VERSION
    mark: Mark
    boot_id: str
    record: SandboxRecord


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that was found, under the name it has. `kept` is None if it carries no record that can be read."""

    name: str
    kept: DiskRecord | None = None
    is_empty: bool = False


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """The same with a record of any version."""

    version: int
    mark: Mark
    boot_id: str
    record: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Written).decode


def encode(record: SandboxRecord, mark: Mark, boot_id: str) -> bytes:
    return _encode(DiskRecord(mark=mark, boot_id=boot_id, record=record))


def decode(content: bytes | None) -> DiskRecord | None:
    """None for what is no record, or one of a later version, of which nothing is known but that it is there."""
    if not content:
        return None
    try:
        kept = _decode(content)
        if kept.version != VERSION:
            return None
        return DiskRecord(mark=kept.mark, boot_id=kept.boot_id, record=read_record(kept.record))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return None
