"""API keys in a table of SQLite's."""

from __future__ import annotations

from datetime import datetime

from atoll.store.keys import KeptKey, KeyInfo
from atoll.store.sqlite.database import Database


class SqliteKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: KeptKey) -> None:
        values = (key.info.id, key.info.name, key.digest, key.info.created_at.isoformat())
        self._database.execute("INSERT INTO keys (id, name, digest, created_at) VALUES (?, ?, ?, ?)", values)

    async def all(self) -> list[KeptKey]:
        rows = self._database.rows("SELECT id, name, digest, created_at FROM keys ORDER BY created_at")
        return [
            KeptKey(
                info=KeyInfo(id=id_, name=name, created_at=datetime.fromisoformat(created_at)),
                digest=digest,
            )
            for id_, name, digest, created_at in rows
        ]

    async def remove(self, key_id: str) -> bool:
        return self._database.execute("DELETE FROM keys WHERE id = ?", (key_id,)).rowcount > 0
