"""Timelines in tables of SQLite's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec

from atoll.protocol.ids import SandboxId
from atoll.protocol.sandboxes import STATE_CHANGES
from atoll.store import timeline
from atoll.store.sqlite.database import Database
from atoll.store.timeline import DESTROYED, JOINED, UNNOTED, Entry, new_entry

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class SqliteTimeline:
    """Nothing is awaited in a verb: so each sees what the one before it left."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, sandbox: SandboxId, what: str, *, cause: str, by: str) -> Entry:
        last = self._last(sandbox)
        number = (last.number if last else self._number_of_earlier(sandbox)) + 1
        joined = last if last and last.what == what in JOINED else None
        event = new_entry(number, what, cause=cause, by=by, count=joined.count + 1 if joined else 1)
        with self._database.transaction():
            if joined:
                query = "DELETE FROM events WHERE sandbox = ? AND number = ?"
                self._database.execute(query, (sandbox, joined.number))
            self._insert(sandbox, event)
            if number > timeline.MAX_EVENTS and not joined:
                self._trim(sandbox)
        return event

    async def begin_anew(self, sandbox: SandboxId, what: str, *, cause: str, by: str) -> Entry:
        last = self._last(sandbox)
        earlier = last.number if last else self._number_of_earlier(sandbox)
        event = new_entry(earlier + 1, what, cause=cause, by=by)
        if not earlier:  # as mostly: nothing is known of its id
            self._insert(sandbox, event)
            return event
        with self._database.transaction():
            self._forget(sandbox)
            self._insert(sandbox, event)
        return event

    async def latest_of_all(self, most: int, is_wanted: Callable[[str], bool]) -> list[tuple[str, Entry]]:
        return await asyncio.to_thread(_latest_of_all, self._database.path, most, is_wanted)

    async def last(self, sandbox: SandboxId) -> Entry | None:
        return self._last(sandbox)

    async def since(self, sandbox: SandboxId, number: int) -> list[Entry]:
        query = "SELECT event FROM events WHERE sandbox = ? AND number > ? ORDER BY number"
        return [_decode(event) for (event,) in self._database.execute(query, (sandbox, number))]

    async def latest(self, sandbox: SandboxId, kinds: Container[str]) -> Entry | None:
        return self._latest(sandbox, kinds)

    async def retire(self, sandbox: SandboxId) -> None:
        self._retire(sandbox)

    async def retire_unrecorded(self) -> None:
        query = """
            SELECT sandbox FROM events UNION SELECT sandbox FROM numbers
            EXCEPT SELECT sandbox FROM retired EXCEPT SELECT id FROM sandboxes
        """
        for (sandbox,) in self._database.rows(query):
            last = self._last(sandbox)
            if last and last.what != DESTROYED:
                await self.add(sandbox, DESTROYED, cause=UNNOTED, by="atoll")
            self._retire(sandbox)

    def _last(self, sandbox: SandboxId) -> Entry | None:
        query = "SELECT event FROM events WHERE sandbox = ? ORDER BY number DESC LIMIT 1"
        found = self._database.execute(query, (sandbox,)).fetchone()
        return _decode(found[0]) if found else None

    def _latest(self, sandbox: SandboxId, kinds: Container[str]) -> Entry | None:
        """No more is read than what came after it."""
        query = "SELECT event FROM events WHERE sandbox = ? ORDER BY number DESC"
        with closing(self._database.execute(query, (sandbox,))) as found:
            events = (_decode(event) for (event,) in found)
            return next((event for event in events if event.what in kinds), None)

    def _number_of_earlier(self, sandbox: SandboxId) -> int:
        """Where an earlier version began anew without an event, it left the last number here."""
        found = self._database.execute("SELECT last FROM numbers WHERE sandbox = ?", (sandbox,)).fetchone()
        return int(found[0]) if found else 0

    def _insert(self, sandbox: SandboxId, event: Entry) -> None:
        values = (sandbox, event.number, _encode(event))
        self._database.execute("INSERT INTO events VALUES (?, ?, ?)", values)

    def _trim(self, sandbox: SandboxId) -> None:
        change = self._latest(sandbox, STATE_CHANGES)
        query = """
            DELETE FROM events WHERE sandbox = ?1 AND number != ?2 AND number <=
            (SELECT number FROM events WHERE sandbox = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?3)
        """
        self._database.execute(query, (sandbox, change.number if change else 0, timeline.MAX_EVENTS))

    def _retire(self, sandbox: SandboxId) -> None:
        with self._database.transaction():
            self._database.execute(
                """
                INSERT OR REPLACE INTO retired (sandbox) SELECT ?1
                WHERE ?1 IN (SELECT sandbox FROM events) OR ?1 IN (SELECT sandbox FROM numbers)
                """,
                (sandbox,),
            )
            query = "SELECT sandbox FROM retired ORDER BY number DESC LIMIT -1 OFFSET ?"
            for (oldest,) in self._database.execute(query, (timeline.MAX_RETIRED,)).fetchall():
                self._forget(oldest)

    def _forget(self, sandbox: SandboxId) -> None:
        for table in ("events", "retired", "numbers"):
            self._database.execute(f"DELETE FROM {table} WHERE sandbox = ?", (sandbox,))


def _latest_of_all(path: Path, most: int, is_wanted: Callable[[str], bool]) -> list[tuple[str, Entry]]:
    """By a connection of its own: every event there is has to be looked at for its time."""
    query = "SELECT sandbox, event FROM events ORDER BY json_extract(event, '$.time') DESC"
    with closing(Database(path)) as connection:
        wanted = (row for row in connection.execute(query) if is_wanted(row[0]))
        return [(sandbox, _decode(event)) for sandbox, event in islice(wanted, most)][::-1]
