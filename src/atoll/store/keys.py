"""API keys, of which only a digest is kept.

A key is 256 random bits, so there is nothing to guess and no need for salt.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from atoll.protocol.arguments import wrong_argument

if TYPE_CHECKING:
    from atoll.store.base import KeyRows

PREFIX = "atoll_"
ID_LENGTH = 8


_PATTERN = re.compile(r"[a-z0-9*-]{1,100}")


class KeyScope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The scope of a key: sandboxes whose ids fit one of `patterns` and which have all `labels`; all, if it says
    nothing. In a pattern * stands for any part of an id.
    """

    patterns: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    reads_only: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether it is for some sandboxes."""
        return bool(self.patterns or self.labels)

    def allows_id(self, sandbox_id: str) -> bool:
        return not self.patterns or any(_fits(pattern, sandbox_id) for pattern in self.patterns)

    def allows_labels(self, labels: Mapping[str, str]) -> bool:
        return self.labels.items() <= labels.items()


def check_pattern(pattern: str) -> str:
    if not _PATTERN.fullmatch(pattern):
        remedy = "Write lower-case letters, digits, hyphens, and * for any part, such as 'user-*'."
        raise wrong_argument("pattern", pattern, "is no pattern of ids", remedy)
    return pattern


def _fits(pattern: str, sandbox_id: str) -> bool:
    return re.fullmatch("[a-z0-9-]*".join(map(re.escape, pattern.split("*"))), sandbox_id) is not None


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it may be shown. `id` is its beginning."""

    id: str
    name: str
    created_at: datetime
    scope: KeyScope = KeyScope()
    expires_at: datetime | None = None
    last_used: datetime | None = None  # as it was noted last, which is done now and then

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)


class KeptKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as a store keeps it."""

    info: KeyInfo
    digest: bytes


class Keys:
    """The keys of a store."""

    def __init__(self, rows: KeyRows) -> None:
        self._rows = rows
        self._used: dict[str, datetime] = {}  # since that was noted last; of keys that exist, so it does not grow

    def note_use(self, key_id: str) -> None:
        """Note that a key was used; it is written with the next `keep_uses`, so that nobody waits for it."""
        self._used[key_id] = datetime.now(UTC)

    async def keep_uses(self) -> None:
        used, self._used = self._used, {}
        for key_id, moment in used.items():
            await self._rows.note_use(key_id, moment)

    async def create(
        self, name: str, scope: KeyScope | None = None, *, expires_at: datetime | None = None
    ) -> tuple[KeyInfo, str]:
        """The key itself is never seen again."""
        key = PREFIX + secrets.token_hex(32)  # no hyphen, which would make an id look like an option
        info = KeyInfo(
            id=id_of(key),
            name=name,
            created_at=datetime.now(UTC),
            scope=KeyScope() if scope is None else scope,
            expires_at=expires_at,
        )
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
