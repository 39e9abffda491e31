"""Sandboxes in a table of SQLite's, and custody of the disks beside them.

What a cluster would share and what is of this machine alone are two columns: here one statement writes both.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from atoll.protocol.ids import SandboxId
from atoll.store.base import SandboxRow
from atoll.store.sqlite.database import Database, unusable


class SqliteSandboxes:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[SandboxRow]:
        _check_table(self._database)
        return [
            SandboxRow(
                id=name,
                stage=_text(stage),
                shared=_bytes(shared),
                local=None if local is None else _bytes(local),
            )
            for name, stage, shared, local in self._database.rows("SELECT id, stage, record, local FROM sandboxes")
            if isinstance(name, str)
        ]

    async def add(self, row: SandboxRow) -> None:
        self._database.execute("INSERT INTO sandboxes VALUES (?, ?, ?, ?)", _values(row))

    async def put(self, row: SandboxRow) -> None:
        self._database.execute("INSERT OR REPLACE INTO sandboxes VALUES (?, ?, ?, ?)", _values(row))

    async def replace(self, row: SandboxRow) -> None:
        query = "UPDATE sandboxes SET record = ?, local = ? WHERE id = ?"
        self._database.execute(query, (row.shared, row.local, row.id))

    async def move(self, sandbox: SandboxId, stage: str) -> None:
        self._database.execute("UPDATE sandboxes SET stage = ? WHERE id = ?", (stage, sandbox))

    async def remove(self, sandbox: SandboxId) -> None:
        self._database.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox,))

    async def take_over(self, rows: Iterable[SandboxRow]) -> None:
        with self._database.transaction():
            for row in rows:
                self._database.execute("INSERT OR IGNORE INTO sandboxes VALUES (?, ?, ?, ?)", _values(row))
            _take_custody(self._database)
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        _check_table(self._database)


class SqliteCustody:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_taken(self) -> bool:
        return bool(self._database.rows("SELECT * FROM custody"))

    async def take(self) -> None:
        _take_custody(self._database)


def _take_custody(database: Database) -> None:
    values = (datetime.now(UTC).isoformat(),)
    database.execute("INSERT INTO custody SELECT ? WHERE NOT EXISTS (SELECT * FROM custody)", values)


def _check_table(database: Database) -> None:
    """A damaged table may seem to lack rows: so every page is looked at."""
    said = [str(line) for (line,) in database.rows("PRAGMA quick_check(sandboxes)")]
    if said != ["ok"]:
        raise unusable(database.path, ValueError("; ".join(said)[:200]))


def _values(row: SandboxRow) -> tuple[object, ...]:
    return row.id, row.stage, row.shared, row.local


def _text(value: object) -> str:
    """A damaged row may hold anything."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
