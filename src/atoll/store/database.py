"""The database of a state directory: SQLite with a write-ahead log, and how its tables came to be.

What is committed survives the kill of any of our processes. After a power failure the last moments may be missing, as
they are from the sandboxes' own files; what is there is whole.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error

NAME = "atoll.db"
BUSY_SECONDS = 10.0

# A version of the tables each, in order. What is here was run on somebody's machine: add, never change.
MIGRATIONS = (
    """
    CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY,
        stage TEXT NOT NULL,
        record BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE events (
        sandbox TEXT NOT NULL,
        number INTEGER NOT NULL,
        event BLOB NOT NULL,
        PRIMARY KEY (sandbox, number)
    ) WITHOUT ROWID;
    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        digest BLOB NOT NULL,
        created_at TEXT NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE retired (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        sandbox TEXT NOT NULL UNIQUE
    );
    """,
    # Not empty if the disks of the state directory are on record here, which says more than that none of them is.
    """
    CREATE TABLE custody (
        since TEXT NOT NULL
    );
    """,
    # The last number of an earlier sandbox of an id, where the events of the next go on.
    """
    CREATE TABLE numbers (
        sandbox TEXT PRIMARY KEY,
        last INTEGER NOT NULL
    ) WITHOUT ROWID;
    """,
)


class Database(sqlite3.Connection):
    """Each statement is a transaction of its own, but within `transaction`. What goes wrong is a typed error."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, timeout=BUSY_SECONDS, isolation_level=None)
        self.path = path

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        try:
            return super().execute(sql, parameters)
        except sqlite3.Error as cause:
            raise unusable(self.path, cause) from cause

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Everything that a query finds, to the last row: damage may be met at any of them."""
        try:
            return super().execute(sql).fetchall()
        except sqlite3.Error as cause:
            raise unusable(self.path, cause) from cause

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is done in here is done whole or not at all. Nothing may be awaited in it: others use this as well."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self.in_transaction:  # some failures end it by themselves
                self.execute("ROLLBACK")
            raise


def open_database(state: Path) -> Database:
    path = state / NAME
    with ExitStack() as undo:
        try:
            path.touch(mode=0o600)
            connection = Database(path)
            undo.callback(connection.close)  # which also undoes half a migration
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            _migrate(connection)
        except (sqlite3.Error, OSError) as cause:
            raise unusable(path, cause) from cause
        undo.pop_all()
    return connection


def _migrate(database: Database) -> None:
    with database.transaction():  # two that open at once take turns
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise sqlite3.DatabaseError(f"its tables are of version {version}, which is newer than this Atoll")
        for script in MIGRATIONS[version:]:
            for statement in filter(str.strip, script.split(";")):
                database.execute(statement)
        database.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


def unusable(path: Path, cause: Exception) -> AtollError:
    if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return cannot_write(str(path), OSError(errno.ENOSPC, str(cause)))
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"the database {path} cannot be used: {cause}",
        remedy="Check its directory and the free space; a damaged one can be put back from a backup of the same moment "
        "as that of the disks. What is not on record there is removed.",
        path=str(path),
    )
