"""Epitaphs: which disks were removed, kept where they were and so committed with their removal.

After a power failure a disk may be gone and its record still there, which would be half a removal. This says that it
was one. Of each there are a few bytes, made of what its sandbox is known by.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from atoll.storage import attributes

NAME = "removed"
SIZE, KEPT = 8, 400  # 3,200 bytes, which any file system takes


class Epitaphs:
    def __init__(self, disks: Path) -> None:
        self._disks = disks
        self.known = self._read()

    def recall(self, known: bytes) -> None:
        """Go back to what was known before the disks lost what was not committed."""
        if known and known != self.known:
            self.known = known
            self._write()

    def add(self, of: str) -> None:
        """Before the disk goes. Where it cannot be written, the record of a lost disk stays, and says so when used."""
        self.known = (self.known + _digest(of))[-SIZE * KEPT :]
        self._write()

    def has(self, of: str) -> bool:
        digest = _digest(of)
        return any(self.known[at : at + SIZE] == digest for at in range(0, len(self.known), SIZE))

    def _write(self) -> None:
        with suppress(OSError):
            attributes.write(self._disks, NAME, self.known)

    def _read(self) -> bytes:
        known = attributes.read(self._disks, NAME) or b""
        return b"" if len(known) % SIZE else known


def _digest(of: str) -> bytes:
    return blake2b(of.encode(), digest_size=SIZE).digest()
