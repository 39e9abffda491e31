"""The database of a state directory: SQLite with a write-ahead log, and how its tables came to be.

What is committed survives the kill of any of our processes. After a power failure the last moments may be missing, as
they are from the sandboxes' own files; what is there is whole.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, error

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
)


def open_database(state: Path) -> sqlite3.Connection:
    path = state / NAME
    with ExitStack() as undo:
        try:
            path.touch(mode=0o600)
            connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            undo.callback(connection.close)  # which also undoes half a migration
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            _migrate(connection)
        except (sqlite3.Error, OSError) as cause:
            raise unusable(path, cause) from cause
        undo.pop_all()
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two that open at once take turns
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        connection.execute("ROLLBACK")
        raise sqlite3.DatabaseError(f"its tables are of version {version}, which is newer than this Atoll")
    for script in MIGRATIONS[version:]:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
    connection.execute("COMMIT")


def unusable(path: Path, cause: Exception) -> AtollError:
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"the database {path} cannot be used: {cause}",
        remedy="Check its directory and the free space; a damaged one can be put back from a backup.",
        path=str(path),
    )
