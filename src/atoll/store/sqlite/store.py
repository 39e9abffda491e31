"""The store of one state directory: a database of SQLite's, with everything in it."""

from __future__ import annotations

from pathlib import Path

from atoll.protocol.ids import SandboxId
from atoll.store.sqlite.database import keep_log_short, open_database
from atoll.store.sqlite.keys import SqliteKeys
from atoll.store.sqlite.sandboxes import SqliteCustody, SqliteSandboxes
from atoll.store.sqlite.timeline import SqliteTimeline


class SqliteStore:
    def __init__(self, state: Path) -> None:
        self.database = open_database(state)
        self.sandboxes = SqliteSandboxes(self.database)
        self.timeline = SqliteTimeline(self.database)
        self.keys = SqliteKeys(self.database)
        self.custody = SqliteCustody(self.database)

    @property
    def place(self) -> str:
        return str(self.database.path)

    def how_to_remove(self, sandbox: SandboxId) -> str:
        return f"""sqlite3 {self.place} "DELETE FROM sandboxes WHERE id = '{sandbox}'\""""

    async def check(self) -> None:
        self.database.check_in_place()

    async def keep(self) -> None:
        await keep_log_short(self.database)

    def close(self) -> None:
        self.database.close()
