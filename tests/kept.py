"""What the database of a state directory says of its sandboxes, read and changed behind Atoll's back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from atoll.store.database import NAME


@contextmanager
def opened(state: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(state / NAME, isolation_level=None)) as connection:
        yield connection


def stages(state: Path) -> dict[str, str]:
    """How far each sandbox is, by its id."""
    with opened(state) as connection:
        return dict(connection.execute("SELECT id, stage FROM sandboxes"))


def content(state: Path, sandbox: str) -> bytes:
    with opened(state) as connection:
        return bytes(connection.execute("SELECT record FROM sandboxes WHERE id = ?", (sandbox,)).fetchone()[0])


def record(state: Path, sandbox: str) -> Any:
    return json.loads(content(state, sandbox))


def put(state: Path, sandbox: str, stage: str, record: bytes) -> None:
    with opened(state) as connection:
        connection.execute("INSERT OR REPLACE INTO sandboxes VALUES (?, ?, ?)", (sandbox, stage, record))


def remove(state: Path, sandbox: str) -> None:
    with opened(state) as connection:
        connection.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox,))
