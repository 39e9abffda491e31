"""API keys, of which only a digest is kept.

A key is 256 random bits, so there is nothing to guess and no need for salt.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from atoll.store.base import KeyRows

PREFIX = "atoll_"
ID_LENGTH = 8


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it may be shown. `id` is its beginning."""

    id: str
    name: str
    created_at: datetime


class KeptKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as a store keeps it."""

    info: KeyInfo
    digest: bytes


class Keys:
    """The keys of a store."""

    def __init__(self, rows: KeyRows) -> None:
        self._rows = rows

    async def create(self, name: str) -> tuple[KeyInfo, str]:
        """The key itself is never seen again."""
        key = PREFIX + secrets.token_hex(32)  # no hyphen, which would make an id look like an option
        info = KeyInfo(id=id_of(key), name=name, created_at=datetime.now(UTC))
        await self._rows.add(KeptKey(info=info, digest=_digest(key)))
        return info, key

    async def list(self) -> list[KeyInfo]:
        return [kept.info for kept in await self._rows.all()]

    async def delete(self, key_id: str) -> bool:
        return await self._rows.remove(key_id)

    async def find(self, key: str) -> KeyInfo | None:
        """The owner of a key. Every key is compared, each in constant time."""
        digest, found = _digest(key), None
        for kept in await self._rows.all():
            if hmac.compare_digest(kept.digest, digest):
                found = kept.info
        return found


def id_of(key: str) -> str:
    return key[len(PREFIX) : len(PREFIX) + ID_LENGTH]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
