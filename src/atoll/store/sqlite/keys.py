"""API keys in a table of SQLite's."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from atoll.store.keys import KeptKey, KeyInfo, KeyScope
from atoll.store.sqlite.database import Database

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(KeyScope).decode


class SqliteKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: KeptKey) -> None:
        info = key.info
        expires = info.expires_at.isoformat() if info.expires_at else None
        values = (info.id, info.name, key.digest, info.created_at.isoformat(), _encode(info.scope), expires)
        self._database.execute(
            "INSERT INTO keys (id, name, digest, created_at, scope, expires_at) VALUES (?, ?, ?, ?, ?, ?)", values
        )

    async def all(self) -> list[KeptKey]:
        columns = "id, name, digest, created_at, scope, expires_at, last_used"
        rows = self._database.rows(f"SELECT {columns} FROM keys ORDER BY created_at")
        try:
            return [_to_key(*row) for row in rows]
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as cause:  # of no key is it known what it is for
            raise self._database.unusable(cause) from cause

    async def note_use(self, key_id: str, moment: datetime) -> None:
        self._database.execute("UPDATE keys SET last_used = ? WHERE id = ?", (moment.isoformat(), key_id))

    async def remove(self, key_id: str) -> bool:
        return self._database.execute("DELETE FROM keys WHERE id = ?", (key_id,)).rowcount > 0


def _to_key(id_: str, name: str, digest: bytes, created_at: str, *rest: Any) -> KeptKey:
    scope, expires_at, last_used = rest
    return KeptKey(
        info=KeyInfo(
            id=id_,
            name=name,
            created_at=datetime.fromisoformat(created_at),
            scope=_decode(scope) if scope else KeyScope(),
            expires_at=datetime.fromisoformat(expires_at) if expires_at else None,
            last_used=datetime.fromisoformat(last_used) if last_used else None,
        ),
        digest=digest,
    )
