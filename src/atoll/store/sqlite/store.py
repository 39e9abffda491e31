"""The store of one state directory: a database of SQLite's, with everything in it."""

from __future__ import annotations

from pathlib import Path

from atoll.store.sqlite.database import open_database
from atoll.store.sqlite.keys import SqliteKeys


class SqliteStore:
    def __init__(self, state: Path) -> None:
        self.database = open_database(state)
        self.keys = SqliteKeys(self.database)

    def close(self) -> None:
        self.database.close()
