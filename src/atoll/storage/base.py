"""The protocol of every place for disks."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from atoll.protocol.errors import AtollError
from atoll.protocol.ids import SandboxId
from atoll.storage.epitaphs import Epitaphs
from atoll.storage.lost import LostDisks


class StorageRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The room of all disks together, in bytes: what they may hold, what they do, and what they are promised."""

    size: int
    used: int
    promised: int


class Storage(Protocol):
    """Keeps one disk per sandbox: a directory of its own, of which at most `size` bytes may be used."""

    enforces_limits: bool
    removes_at_once: bool  # or it takes as long as there are files, and needs a thread

    @property
    def lost(self) -> LostDisks: ...

    @property
    def epitaphs(self) -> Epitaphs: ...

    @property
    def largest_disk(self) -> int:
        """Bytes that one may be promised at most."""
        ...

    def create(self, sandbox: SandboxId, size: int, record: bytes = b"") -> Path:
        """A new, empty disk, which carries `record`: where the disk is after a power failure, the record is as well."""
        ...

    def record(self, sandbox: str) -> bytes | None:
        """The record on a disk, to be read without knowing anything of its sandbox."""
        ...

    def replace_record(self, sandbox: SandboxId, record: bytes) -> None:
        """Like all that is written, it may be the older one after a power failure; see `is_covered`."""
        ...

    def is_covered(self, sandbox: SandboxId) -> bool:
        """Whether any sync of a file on the disk takes along what it carries."""
        ...

    def cover(self, sandbox: SandboxId) -> None:
        """See to it that whatever is synced on it from here on, what it carries is as well. May take a moment."""
        ...

    def is_empty(self, sandbox: SandboxId) -> bool:
        """Whether nothing was ever written to the disk, not even by those who start a sandbox on it."""
        ...

    def set_aside(self, sandbox: SandboxId, note: bytes) -> str:
        """Keep the disk, as that of no sandbox; returns what it is called among those that are lost."""
        ...

    def take_back(self, name: str, sandbox: SandboxId, record: bytes) -> None:
        """Make one that was set aside the disk of a sandbox, which must have none."""
        ...

    def remove_lost(self, name: str) -> None:
        """Remove a disk that was set aside, with everything on it."""
        ...

    def resize(self, sandbox: SandboxId, size: int) -> None:
        """From now on it may use so much. LIMIT_IN_USE if it uses more, and what `create` raises without room."""
        ...

    def find(self, sandbox: SandboxId) -> Path:
        """Its disk, which must be there."""
        ...

    def remove(self, sandbox: SandboxId) -> None:
        """The disk and everything on it. Twice is fine."""
        ...

    def names(self) -> set[str]:
        """Names of the disks that are there, also of those that were not finished."""
        ...

    def used(self, sandbox: SandboxId) -> int:
        """Bytes in use."""
        ...

    def room(self) -> StorageRoom:
        """Looked at, which takes no longer where there are many."""
        ...

    def explain(self, problem: AtollError, sandbox: SandboxId) -> AtollError:
        """The cause of `problem`, if the disk of this sandbox takes no more; else the same."""
        ...

    def problem(self) -> AtollError | None:
        """Why no disk takes anything any more, until `recover` succeeds; None while they do."""
        ...

    def obstacle(self) -> str | None:
        """Why it would be in vain to recover now, while the cause is there; None if it is to be tried."""
        ...

    def recover(self) -> None:
        """Have disks take what is written again. What ran on them must have ended, and nobody else may use them: until
        this succeeds every call raises `problem`. What was not synced is lost, as in a power failure.
        """
        ...

    def close(self) -> None:
        """Let go. Disks stay."""
        ...
