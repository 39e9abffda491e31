"""Timelines: what happened to each sandbox, the latest MAX_EVENTS of it.

The next sandbox of an id begins anew, and its numbers go on: who gives the last that it saw misses nothing.

The last change of state is kept however much happened since: it says why a sandbox is in the state it is in.
Of those that were destroyed, the latest MAX_RETIRED are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import closing
from datetime import datetime

import msgspec

from atoll.protocol.ids import SandboxId
from atoll.protocol.sandboxes import STATE_CHANGES, SandboxEvent
from atoll.store import moments
from atoll.store.moments import UNKNOWN_BOOT, Moment
from atoll.store.sqlite.database import Database

MAX_EVENTS = 1_000
MAX_RETIRED = 1_000
DESTROYED = "destroyed"
JOINED = {"oom_killed"}  # code inside can make them happen: in a row they are one, or they would push out the others


class Entry(SandboxEvent, frozen=True, kw_only=True):
    """An event as it is kept: with its moment by the clock that nobody sets, which nobody is told."""

    since_boot: float = 0.0
    boot_id: str = UNKNOWN_BOOT

    @property
    def moment(self) -> Moment:
        return Moment(wall=self.time, since_boot=self.since_boot, boot_id=self.boot_id)

    def told(self) -> SandboxEvent:
        return SandboxEvent(**{name: getattr(self, name) for name in SandboxEvent.__struct_fields__})


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class Timeline:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, sandbox: SandboxId, what: str, *, cause: str, by: str) -> Entry:
        last = self.last(sandbox)
        number = self._next_number(sandbox, last)
        joined = last if last and last.what == what in JOINED else None
        event = _entry(number, what, cause=cause, by=by, count=joined.count + 1 if joined else 1)
        with self._database.transaction():
            if joined:
                query = "DELETE FROM events WHERE sandbox = ? AND number = ?"
                self._database.execute(query, (sandbox, joined.number))
            self._database.execute("INSERT INTO events VALUES (?, ?, ?)", (sandbox, number, _encode(event)))
            if number > MAX_EVENTS and not joined:
                self._trim(sandbox)
        return event

    def _trim(self, sandbox: SandboxId) -> None:
        change = self.latest(sandbox, STATE_CHANGES)
        query = """
            DELETE FROM events WHERE sandbox = ?1 AND number != ?2 AND number <=
            (SELECT number FROM events WHERE sandbox = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?3)
        """
        self._database.execute(query, (sandbox, change.number if change else 0, MAX_EVENTS))

    def last(self, sandbox: SandboxId) -> Entry | None:
        query = "SELECT event FROM events WHERE sandbox = ? ORDER BY number DESC LIMIT 1"
        found = self._database.execute(query, (sandbox,)).fetchone()
        return _decode(found[0]) if found else None

    def destroyed_at(self, sandbox: SandboxId) -> datetime | None:
        """When it was destroyed, if that is the last that is known of this id."""
        last = self.last(sandbox)
        return last.time if last and last.what == DESTROYED else None

    def since(self, sandbox: SandboxId, number: int) -> list[Entry]:
        """Those after `number`, in order."""
        query = "SELECT event FROM events WHERE sandbox = ? AND number > ? ORDER BY number"
        return [_decode(event) for (event,) in self._database.execute(query, (sandbox, number))]

    def latest(self, sandbox: SandboxId, kinds: Container[str]) -> Entry | None:
        """The last of these kinds. No more is read than what came after it."""
        query = "SELECT event FROM events WHERE sandbox = ? ORDER BY number DESC"
        with closing(self._database.execute(query, (sandbox,))) as found:
            events = (_decode(event) for (event,) in found)
            return next((event for event in events if event.what in kinds), None)

    def begin_anew(self, sandbox: SandboxId, what: str, *, cause: str, by: str) -> Entry:
        """The first event of the next sandbox of an id takes the place of all that is known of the one before."""
        number = self._next_number(sandbox, self.last(sandbox))
        event = _entry(number, what, cause=cause, by=by)
        with self._database.transaction():
            self._forget(sandbox)
            self._database.execute("INSERT INTO events VALUES (?, ?, ?)", (sandbox, number, _encode(event)))
        return event

    def _next_number(self, sandbox: SandboxId, last: Entry | None) -> int:
        if last:
            return last.number + 1
        # Where an earlier version began anew without an event, it left the last number here.
        found = self._database.execute("SELECT last FROM numbers WHERE sandbox = ?", (sandbox,)).fetchone()
        return int(found[0]) + 1 if found else 1

    def _forget(self, sandbox: SandboxId) -> None:
        for table in ("events", "retired", "numbers"):
            self._database.execute(f"DELETE FROM {table} WHERE sandbox = ?", (sandbox,))

    def retire(self, sandbox: SandboxId) -> None:
        """It is not there any more; what is known of so many is kept, and the oldest makes room."""
        with self._database.transaction():
            self._database.execute(
                """
                INSERT OR REPLACE INTO retired (sandbox) SELECT ?1
                WHERE ?1 IN (SELECT sandbox FROM events) OR ?1 IN (SELECT sandbox FROM numbers)
                """,
                (sandbox,),
            )
            query = "SELECT sandbox FROM retired ORDER BY number DESC LIMIT -1 OFFSET ?"
            for (oldest,) in self._database.execute(query, (MAX_RETIRED,)).fetchall():
                self._forget(oldest)

    def retire_all_but(self, is_there: Callable[[SandboxId], bool]) -> None:
        """Also those whose destruction a killed server did not live to note."""
        query = "SELECT sandbox FROM events UNION SELECT sandbox FROM numbers EXCEPT SELECT sandbox FROM retired"
        for (sandbox,) in self._database.execute(query).fetchall():
            if not is_there(sandbox):
                last = self.last(sandbox)
                if last and last.what != DESTROYED:
                    self.add(sandbox, DESTROYED, cause="it was asked of a server that was killed", by="atoll")
                self.retire(sandbox)


def _entry(number: int, what: str, *, cause: str, by: str, count: int = 1) -> Entry:
    now = moments.now()
    return Entry(
        number=number,
        time=now.wall,
        what=what,
        cause=cause,
        by=by,
        count=count,
        since_boot=now.since_boot,
        boot_id=now.boot_id,
    )
