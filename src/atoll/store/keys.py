"""API keys, of which only a digest is kept.

A key is 256 random bits, so there is nothing to guess and no need for salt.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import UTC, datetime

import msgspec

from atoll.store.database import Database

PREFIX = "atoll_"
ID_LENGTH = 8


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it may be shown. `id` is its beginning."""

    id: str
    name: str
    created_at: datetime


class Keys:
    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str) -> tuple[KeyInfo, str]:
        """The key itself is never seen again."""
        key = PREFIX + secrets.token_hex(32)  # no hyphen, which would make an id look like an option
        info = KeyInfo(id=id_of(key), name=name, created_at=datetime.now(UTC))
        values = (info.id, info.name, _digest(key), info.created_at.isoformat())
        self._database.execute("INSERT INTO keys VALUES (?, ?, ?, ?)", values)
        return info, key

    def list(self) -> list[KeyInfo]:
        rows = self._database.execute("SELECT id, name, created_at FROM keys ORDER BY created_at")
        return [
            KeyInfo(id=id_, name=name, created_at=datetime.fromisoformat(created_at)) for id_, name, created_at in rows
        ]

    def delete(self, key_id: str) -> bool:
        return self._database.execute("DELETE FROM keys WHERE id = ?", (key_id,)).rowcount > 0

    def find(self, key: str) -> KeyInfo | None:
        """Whose key this is. Every key is compared, each in constant time."""
        digest, found = _digest(key), None
        for id_, name, created_at, stored in self._database.execute("SELECT id, name, created_at, digest FROM keys"):
            if hmac.compare_digest(stored, digest):
                found = KeyInfo(id=id_, name=name, created_at=datetime.fromisoformat(created_at))
        return found


def id_of(key: str) -> str:
    return key[len(PREFIX) : len(PREFIX) + ID_LENGTH]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
