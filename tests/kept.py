"""The database of a state directory, read and changed behind Atoll's back; and what a store answers at once."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from atoll.store.choose import open_store
from atoll.store.keys import Keys
from atoll.store.sqlite.database import NAME, Database
from atoll.store.sqlite.store import SqliteStore
from atoll.supervisor.records import Records, Row
from atoll.supervisor.workshop import Workshop

T = TypeVar("T")


@contextmanager
def opened(state: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(state / NAME, isolation_level=None)) as connection:
        yield connection


def stages(state: Path) -> dict[str, str]:
    """How far each sandbox is, by its id."""
    with opened(state) as connection:
        return dict(connection.execute("SELECT id, stage FROM sandboxes"))


def record(state: Path, sandbox: str) -> Any:
    """All that is kept of it: what is shared, and what is this machine's."""
    query = "SELECT record, local FROM sandboxes WHERE id = ?"
    with opened(state) as connection:
        shared, local = connection.execute(query, (sandbox,)).fetchone()
    return json.loads(shared) | json.loads(local or b"{}")


def content(state: Path, sandbox: str) -> bytes:
    return json.dumps(record(state, sandbox)).encode()


def put(state: Path, sandbox: str, stage: str, record: bytes) -> None:
    """As earlier versions kept it: in one piece."""
    with opened(state) as connection:
        connection.execute(
            "INSERT OR REPLACE INTO sandboxes (id, stage, record) VALUES (?, ?, ?)", (sandbox, stage, record)
        )


def remove(state: Path, sandbox: str) -> None:
    with opened(state) as connection:
        connection.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox,))


def at_once(verb: Coroutine[Any, Any, T]) -> T:
    """What a verb returns that suspends nobody."""
    try:
        verb.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    verb.close()
    raise AssertionError("the verb suspended whoever awaits it")


def make_key(state: Path, name: str = "tests") -> str:
    with closing(open_store(state)) as store:
        return at_once(Keys(store.keys).create(name))[1]


def rows(state: Path) -> list[Row]:
    """What records say of a state directory."""
    with closing(open_store(state)) as store:
        records = Records(store)
        at_once(records.load(has_unrecorded=False))
        return records.rows()


def database_of(workshop: Workshop) -> Database:
    assert isinstance(workshop.store, SqliteStore)
    return workshop.store.database


def leftovers(directory: Path) -> list[str]:
    """Disks and records, by id."""
    return [*os.listdir(directory / "state/disks"), *stages(directory / "state")]
