"""SQLite with a write-ahead log, and how the tables came to be.

What is committed survives the kill of any of our processes. After a power failure the last moments may be missing, as
they are from the sandboxes' own files; what is there is whole.

No statement waits for the disk: what is written goes to the log, which is folded into the database in a thread
(`keep_log_short`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error, not_yours
from atoll.store.sqlite.reserve import reserve_room

NAME = "atoll.db"
BUSY_SECONDS = 10.0
CHANGES_IN_LOG = 1_000  # some megabytes
LONG_LOG = 32 * 2**20  # bytes
LOOK_SECONDS = 1.0

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
    # What of a sandbox is of this machine alone. Records that earlier versions wrote have it in them.
    """
    ALTER TABLE sandboxes ADD COLUMN local BLOB;
    """,
    # What a key is for, until when, and when it was used. One without a scope is of an earlier version: for everything.
    """
    ALTER TABLE keys ADD COLUMN scope BLOB;
    ALTER TABLE keys ADD COLUMN expires_at TEXT;
    ALTER TABLE keys ADD COLUMN last_used TEXT;
    """,
)

logger = logging.getLogger("atoll.store")


class Rows(sqlite3.Cursor):
    """The rows that a statement finds. Damage may be met at any row."""

    connection: Database

    def __next__(self) -> Any:
        with self._typed():
            return super().__next__()

    def fetchone(self) -> Any:
        with self._typed():
            return super().fetchone()

    def fetchall(self) -> list[Any]:
        with self._typed():
            return super().fetchall()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as cause:
            raise self.connection.unusable(cause) from cause


class Database(sqlite3.Connection):
    """Each statement is a transaction of its own, but within `transaction`. What goes wrong is a typed error."""

    def __init__(self, path: Path) -> None:
        """Of a file that is there: SQLite would make another where one was taken away."""
        self.path = path
        self._file = _identity(path)
        if self._file is None:
            raise _gone(path, "no such file")
        try:
            super().__init__(path, timeout=BUSY_SECONDS, isolation_level=None)
        except sqlite3.Error as cause:
            raise self.unusable(cause) from cause

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        try:
            return super().cursor(Rows).execute(sql, parameters)
        except sqlite3.Error as cause:
            raise self.unusable(cause) from cause

    def check_in_place(self) -> None:
        """Raise if the file was taken away. SQLite does not mind: it has the file open."""
        if _identity(self.path) != self._file:
            raise _gone(self.path, "no such file")

    def unusable(self, cause: Exception) -> AtollError:
        """Whatever SQLite calls it: a file that is not the one that was opened is not damaged."""
        if _identity(self.path) != self._file:
            return _gone(self.path, cause)
        return unusable(self.path, cause)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Everything that a query finds, to the last row."""
        return self.execute(sql).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: done whole or not at all. Nothing may be awaited in it, since others use this as well."""
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
            _wait_for_no_disk(connection)
            _migrate(connection)
            reserve_room(path)
        except AtollError:  # some of which are an OSError
            raise
        except (sqlite3.Error, OSError) as cause:
            raise unusable(path, cause) from cause
        undo.pop_all()
    return connection


def _wait_for_no_disk(connection: Database) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")


class Look(NamedTuple):
    """A look at a database: what was seen of it."""

    version: int
    damage: str


def look_at(path: Path) -> Look:
    """A look at a database that changes nothing, also while somebody has it open, and at one of a later version."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as seen:
            (version,) = seen.execute("PRAGMA user_version").fetchone()
            said = [str(line) for (line,) in seen.execute("PRAGMA quick_check(10)")]
    except sqlite3.Error as cause:
        raise unusable(path, cause) from cause
    return Look(version, "" if said == ["ok"] else "; ".join(said)[:200])


async def keep_log_short(database: Database, changes: int = CHANGES_IN_LOG, pause: float = LOOK_SECONDS) -> None:
    """For ever. What fails is tried again: until then the log grows, and nothing is lost."""
    folded = database.total_changes
    while True:
        await asyncio.sleep(pause)
        seen = database.total_changes
        if seen - folded >= changes:
            try:
                await asyncio.to_thread(fold_log, database.path)
                folded = seen
            except (AtollError, OSError) as problem:
                logger.warning("the log of the database could not be folded in, so this is tried again: %s", problem)


def fold_log(path: Path, longest: int = LONG_LOG) -> None:
    """Copy what is in the log to where it belongs, so that it begins anew. This waits for the disk, nobody for it.

    It begins anew only where nobody writes meanwhile. If somebody always does, and it has grown long, they wait for the
    little that is left.
    """
    with closing(Database(path)) as connection:
        _wait_for_no_disk(connection)
        _, logged, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if path.with_name(f"{path.name}-wal").stat().st_size > longest:
            _, logged, copied = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if logged == copied:
            # The first to write into a log that begins anew waits for the disk as well. So that is us.
            with connection.transaction():
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                connection.execute(f"PRAGMA user_version={version}")
    reserve_room(path)


def _migrate(database: Database) -> None:
    with database.transaction():  # two that open at once take turns
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise newer(database.path, version)
        for script in MIGRATIONS[version:]:
            for statement in filter(str.strip, script.split(";")):
                database.execute(statement)
        database.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _gone(path: Path, cause: Exception | str) -> AtollError:
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"the database {path} is not there any more: it was removed, or its file system taken away ({cause})",
        remedy="Mount the file system again where it was, or put the directory back, and start the server anew. What "
        "is on that disk is not lost with this.",
        path=str(path),
    )


def newer(path: Path, version: int) -> AtollError:
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"the database {path} was made by a later version of Atoll: its tables are of version {version}, and this one "
        f"knows {len(MIGRATIONS)}",
        remedy="Nothing was changed. Use that version of Atoll or a later one, or another state directory.",
        path=str(path),
        version=version,
        known=len(MIGRATIONS),
    )


def unusable(path: Path, cause: Exception) -> AtollError:
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return cannot_write(str(path), cause)
    code = getattr(cause, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_FULL:
        return cannot_write(str(path), OSError(errno.ENOSPC, str(cause)))
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return cannot_write(str(path), cause)
    if _is_denied(path, cause):
        return not_yours(str(path))
    if code is not None and code & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY):
        return error(
            ErrorCode.STATE_DIRECTORY_UNUSABLE,
            f"the database {path} cannot be read or written: {cause}",
            remedy="Its disk or file system is failing, read-only or gone: see `dmesg`. Check it, mount it again, and "
            "start the server anew; what was on record before is not lost with this.",
            path=str(path),
        )
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"the database {path} cannot be used: {cause}",
        remedy="If its file system is failing or was taken away (see `dmesg`), mount it again and start the server "
        "anew. A damaged one can be put back from a backup, or moved away: then sandboxes are found by what their "
        "disks carry, and API keys and timelines begin anew.",
        path=str(path),
    )


def _is_denied(path: Path, cause: Exception) -> bool:
    """SQLite says only that it cannot open a file, not whose it is."""
    if os.geteuid() == 0:
        return False
    if isinstance(cause, PermissionError):
        return True
    files = (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"))
    return any(file.exists() and not os.access(file, os.R_OK | os.W_OK) for file in (*files, path.parent))
