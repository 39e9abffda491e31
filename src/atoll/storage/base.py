"""What every place for disks can do."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from atoll.protocol.errors import AtollError
from atoll.protocol.ids import SandboxId


class Storage(Protocol):
    """Keeps one disk per sandbox: a directory of its own, of which at most `size` bytes may be used."""

    enforces_limits: bool
    removes_at_once: bool  # or it takes as long as there are files, and needs a thread

    def create(self, sandbox: SandboxId, size: int) -> Path:
        """A new, empty disk."""
        ...

    def find(self, sandbox: SandboxId) -> Path:
        """Its disk, which must be there."""
        ...

    def remove(self, sandbox: SandboxId) -> None:
        """The disk and everything on it. Twice is fine."""
        ...

    def names(self) -> set[str]:
        """Whose disks are there, also those that were not finished."""
        ...

    def used(self, sandbox: SandboxId) -> int:
        """Bytes in use."""
        ...

    def explain(self, problem: AtollError, sandbox: SandboxId) -> AtollError:
        """What is behind `problem`, if it is that the disk of this sandbox takes no more; else the same."""
        ...

    def close(self) -> None:
        """Let go. Disks stay."""
        ...
