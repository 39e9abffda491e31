"""What happened to each sandbox, the latest MAX_EVENTS of it. The next sandbox of an id begins anew.

The last change of state is kept however much happened since: it says why a sandbox is in the state it is in.
Of those that were destroyed, the latest MAX_RETIRED are remembered.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container
from datetime import UTC, datetime

import msgspec

from atoll.protocol.ids import SandboxId
from atoll.protocol.sandboxes import STATE_CHANGES, SandboxEvent

MAX_EVENTS = 1_000
MAX_RETIRED = 1_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SandboxEvent).decode


class Timeline:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def add(self, sandbox: SandboxId, what: str, *, cause: str, by: str) -> SandboxEvent:
        query = "SELECT coalesce(max(number), 0) + 1 FROM events WHERE sandbox = ?"
        (number,) = self._database.execute(query, (sandbox,)).fetchone()
        event = SandboxEvent(number=number, time=datetime.now(UTC), what=what, cause=cause, by=by)
        self._database.execute("INSERT INTO events VALUES (?, ?, ?)", (sandbox, number, _encode(event)))
        if number > MAX_EVENTS:
            change = self.last_change(sandbox)
            query = "DELETE FROM events WHERE sandbox = ? AND number <= ? AND number != ?"
            self._database.execute(query, (sandbox, number - MAX_EVENTS, change.number if change else 0))
        return event

    def last_change(self, sandbox: SandboxId) -> SandboxEvent | None:
        """What last happened to its state."""
        query = "SELECT event FROM events WHERE sandbox = ? ORDER BY number DESC"
        for (encoded,) in self._database.execute(query, (sandbox,)):
            event = _decode(encoded)
            if event.what in STATE_CHANGES:
                return event
        return None

    def since(self, sandbox: SandboxId, number: int) -> list[SandboxEvent]:
        """Those after `number`, in order."""
        query = "SELECT event FROM events WHERE sandbox = ? AND number > ? ORDER BY number"
        return [_decode(event) for (event,) in self._database.execute(query, (sandbox, number))]

    def forget(self, sandbox: SandboxId) -> None:
        self._database.execute("DELETE FROM events WHERE sandbox = ?", (sandbox,))
        self._database.execute("DELETE FROM retired WHERE sandbox = ?", (sandbox,))

    def retire(self, sandbox: SandboxId) -> None:
        """It was destroyed; so many are kept, and the oldest makes room."""
        self._database.execute("INSERT OR REPLACE INTO retired (sandbox) VALUES (?)", (sandbox,))
        query = "SELECT sandbox FROM retired ORDER BY number DESC LIMIT -1 OFFSET ?"
        for (oldest,) in self._database.execute(query, (MAX_RETIRED,)).fetchall():
            self.forget(oldest)

    def retire_all_but(self, sandboxes: Container[SandboxId]) -> None:
        """Also those whose destruction a killed server did not live to see."""
        query = "SELECT DISTINCT sandbox FROM events WHERE sandbox NOT IN (SELECT sandbox FROM retired)"
        for (sandbox,) in self._database.execute(query).fetchall():
            if sandbox not in sandboxes:
                self.retire(sandbox)
