"""The database of the SQLite store: timelines of bounded length, tables that move on, damage that is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.store.keys import Keys
from atoll.store.sqlite import database as tables
from atoll.store.sqlite.database import MIGRATIONS, NAME, Database, fold_log, keep_log_short, open_database
from atoll.store.sqlite.keys import SqliteKeys
from atoll.store.sqlite.store import SqliteStore
from atoll.store.sqlite.timeline import SqliteTimeline
from tests import kept

A, B = SandboxId("a"), SandboxId("b")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        yield store


@pytest.fixture
def database(store: SqliteStore) -> Database:
    return store.database


async def test_the_numbers_that_an_earlier_version_left_go_on(store: SqliteStore) -> None:
    line, database = store.timeline, store.database
    for _ in range(2):
        await line.begin_anew(A, "created", cause="a test", by="me")
        await line.retire(A)
    database.execute("DELETE FROM events")
    database.execute("INSERT INTO numbers VALUES (?, 6)", (A,))
    assert (await line.begin_anew(A, "created", cause="a test", by="me")).number == 7
    assert database.rows("SELECT * FROM numbers") == database.rows("SELECT * FROM retired") == []


async def test_what_nothing_is_known_of_takes_no_room_among_the_destroyed(store: SqliteStore) -> None:
    await store.timeline.retire(A)
    assert store.database.rows("SELECT * FROM retired") == []


def test_what_was_written_is_there_the_next_time(tmp_path: Path) -> None:
    with closing(open_database(tmp_path)) as connection:
        kept.at_once(Keys(SqliteKeys(connection)).create("mine"))
    with closing(open_database(tmp_path)) as connection:
        assert [one.name for one in kept.at_once(Keys(SqliteKeys(connection)).list())] == ["mine"]
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


@pytest.mark.parametrize("version", range(len(MIGRATIONS)))
def test_every_earlier_version_of_the_tables_becomes_this_one(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(tables, "MIGRATIONS", MIGRATIONS[:version])
        open_database(tmp_path).close()
    with closing(open_database(tmp_path)) as connection:
        kept.at_once(SqliteTimeline(connection).retire(A))
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"sandboxes", "events", "keys", "retired", "custody"} <= names


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(tables, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE extra (id TEXT); CREATE NONSENSE"))
        with pytest.raises(AtollError):
            open_database(tmp_path)
    with closing(open_database(tmp_path)) as connection:
        assert connection.execute("SELECT * FROM sqlite_master WHERE name = 'extra'").fetchone() is None


@pytest.mark.parametrize("damage", ["newer", "noise", "directory"])
def test_a_database_that_cannot_be_used_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / NAME
    match damage:
        case "newer":
            with closing(open_database(tmp_path)) as connection:
                connection.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
        case "noise":
            path.write_bytes(b"not a database at all" * 1000)
        case _:
            path.mkdir()
    with pytest.raises(AtollError) as caught:
        open_database(tmp_path)
    assert caught.value.code is ErrorCode.STATE_DIRECTORY_UNUSABLE
    assert str(path) in caught.value.message
    assert caught.value.remedy


def test_what_is_written_waits_in_the_log_until_it_is_folded_in(database: Database, tmp_path: Path) -> None:
    path, log = tmp_path / NAME, tmp_path / f"{NAME}-wal"
    fold_log(path)
    size = path.stat().st_size
    write_much(database)
    assert path.stat().st_size == size
    longest = log.stat().st_size
    for _ in range(3):
        fold_log(path)
        write_much(database)
    assert path.stat().st_size > size
    assert log.stat().st_size < 1.1 * longest
    with closing(open_database(tmp_path)) as other:
        assert other.execute("SELECT count(*) FROM custody").fetchone() == (4 * 2000,)


def test_a_log_that_has_grown_long_is_made_short(database: Database, tmp_path: Path) -> None:
    """It begins anew by itself only where nobody writes while it is folded in."""
    path, log = tmp_path / NAME, tmp_path / f"{NAME}-wal"
    write_much(database)
    assert log.stat().st_size > 2**20
    fold_log(path, longest=2**20)
    assert log.stat().st_size < 2**20
    write_much(database)
    with closing(open_database(tmp_path)) as other:
        assert other.execute("SELECT count(*) FROM custody").fetchone() == (2 * 2000,)


async def test_a_log_is_folded_in_when_enough_has_changed(database: Database, tmp_path: Path) -> None:
    path = tmp_path / NAME
    fold_log(path)
    size = path.stat().st_size
    keeping = asyncio.create_task(keep_log_short(database, changes=2000, pause=0.01))
    await asyncio.sleep(0)  # it begins
    write_much(database)
    try:
        async with asyncio.timeout(60):
            while path.stat().st_size == size:
                await asyncio.sleep(0.01)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


def write_much(database: Database) -> None:
    """More than SQLite by itself leaves in a log."""
    for _ in range(2000):
        database.execute("INSERT INTO custody VALUES (?)", ("x" * 3000,))


def test_damage_that_is_met_on_the_way_is_a_typed_error(tmp_path: Path) -> None:
    with closing(open_database(tmp_path)) as connection:
        keys, line = Keys(SqliteKeys(connection)), SqliteTimeline(connection)
        for _ in range(200):
            _, key = kept.at_once(keys.create("x" * 500))
            kept.at_once(line.add(A, "env_changed", cause="x" * 500, by="me"))
        fold_log(tmp_path / NAME)
        damage(connection, "keys")
        damage(connection, "events")
    with closing(open_database(tmp_path)) as connection:
        keys, line = Keys(SqliteKeys(connection)), SqliteTimeline(connection)
        for question in (keys.find(key), keys.list(), line.since(A, 0), line.latest(A, {"created"})):
            with pytest.raises(AtollError) as caught:
                kept.at_once(question)
            assert caught.value.code is ErrorCode.STATE_DIRECTORY_UNUSABLE


def damage(connection: Database, table: str) -> None:
    """The leaves in its middle; a query begins well at either end."""
    query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path"
    pages = [number for (number,) in connection.execute(query, (table,))]
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    assert len(pages) > 6
    with connection.path.open("r+b") as file:
        for page in pages[3:-3]:
            file.seek((page - 1) * size)
            file.write(b"\xff" * size)


def test_a_transaction_is_done_whole_or_not_at_all(database: Database) -> None:
    with pytest.raises(KeyError), database.transaction():
        database.execute("INSERT INTO custody VALUES ('now')")
        raise KeyError
    assert database.rows("SELECT * FROM custody") == []
    with database.transaction():
        database.execute("INSERT INTO custody VALUES ('now')")
    assert database.rows("SELECT * FROM custody") == [("now",)]


def test_a_database_without_space_says_so_and_is_usable_later(database: Database) -> None:
    database.execute("PRAGMA max_page_count=1")  # no more than it has
    with pytest.raises(AtollError) as caught, database.transaction():
        database.execute("INSERT INTO custody VALUES (?)", ("x" * 100_000,))
    assert caught.value.code is ErrorCode.NO_SPACE
    database.execute("PRAGMA max_page_count=1000000")
    kept.at_once(SqliteTimeline(database).add(A, "created", cause="a test", by="me"))
