"""The database of the SQLite store: timelines of bounded length, tables that move on, damage that is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.sandboxes import STATE_CHANGES
from atoll.store import timeline
from atoll.store.keys import Keys
from atoll.store.sqlite import database
from atoll.store.sqlite.database import MIGRATIONS, NAME, Database, fold_log, keep_log_short, open_database
from atoll.store.sqlite.keys import SqliteKeys
from atoll.store.timeline import Timeline
from tests import kept

A, B = SandboxId("a"), SandboxId("b")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path)) as connection:
        yield connection


def test_a_timeline_is_numbered_by_sandbox_and_read_from_where_one_was(store: Database) -> None:
    line = Timeline(store)
    added = [line.add(A, what, cause="a test", by="me") for what in ("created", "frozen", "thawed")]
    line.add(B, "created", cause="a test", by="me")
    assert [event.number for event in added] == [1, 2, 3]
    assert line.since(A, 0) == added
    assert line.since(A, 2) == added[2:]
    assert [event.number for event in line.since(B, 0)] == [1]


def test_kills_for_memory_in_a_row_are_one_event_with_a_count(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    line = Timeline(store)
    for what in ("created", "env_changed", *["oom_killed"] * 9):
        line.add(A, what, cause="", by="")
    assert [(event.number, event.what, event.count) for event in line.since(A, 0)] == [
        (1, "created", 1),
        (2, "env_changed", 1),
        (11, "oom_killed", 9),
    ]
    line.add(A, "env_changed", cause="", by="")
    assert line.add(A, "oom_killed", cause="", by="").count == 1


def test_a_timeline_keeps_the_last_change_of_state_whatever_happens_since(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    line = Timeline(store)
    for what in ("created", "frozen", *["session_created"] * 9):
        line.add(A, what, cause="", by="")
    assert [event.number for event in line.since(A, 0)] == [2, 9, 10, 11]
    line.add(A, "thawed", cause="", by="")
    assert [event.number for event in line.since(A, 0)] == [10, 11, 12]
    change = line.latest(A, STATE_CHANGES)
    assert change and change.what == "thawed"
    assert line.latest(B, STATE_CHANGES) is None


def test_a_timeline_drops_its_oldest_and_goes_on_counting(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    line = Timeline(store)
    for _ in range(5):
        line.add(A, "frozen", cause="a test", by="me")
    assert [event.number for event in line.since(A, 0)] == [3, 4, 5]


def test_the_latest_of_some_kinds_is_found(store: Database) -> None:
    line = Timeline(store)
    first, second, _ = (line.add(A, what, cause="a test", by="me") for what in ("created", "frozen", "labels_changed"))
    assert line.latest(A, {"created", "frozen"}) == second
    assert line.latest(A, {"created"}) == first
    assert line.latest(A, {"stopped"}) is None
    assert line.latest(B, {"created"}) is None


def test_the_next_sandbox_of_an_id_begins_anew_and_its_numbers_go_on(store: Database) -> None:
    line = Timeline(store)
    for number in (1, 3, 5):
        created = line.begin_anew(A, "created", cause="a test", by="me")
        assert line.since(A, 0) == [created]
        assert created.number == number
        line.add(A, "destroyed", cause="a test", by="me")
        line.retire(A)
    store.execute("DELETE FROM events")
    store.execute("INSERT INTO numbers VALUES (?, 6)", (A,))  # as an earlier version left it
    assert line.begin_anew(A, "created", cause="a test", by="me").number == 7
    assert store.rows("SELECT * FROM numbers") == store.rows("SELECT * FROM retired") == []


def test_what_nothing_is_known_of_takes_no_room_among_the_destroyed(store: Database) -> None:
    Timeline(store).retire(A)
    assert store.rows("SELECT * FROM retired") == []


def test_of_the_destroyed_only_the_latest_are_remembered(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_RETIRED", 2)
    line = Timeline(store)
    names = [SandboxId(f"box-{number}") for number in range(4)]
    for name in names:
        line.add(name, "created", cause="a test", by="me")
    line.retire(names[1])
    line.retire_all_but(names[:1].__contains__)  # the others were destroyed by a server that was killed
    assert [bool(line.since(name, 0)) for name in names] == [True, False, True, True]


def test_the_end_of_what_a_killed_server_destroyed_is_noted(store: Database) -> None:
    line = Timeline(store)
    for name in (A, B):
        line.add(name, "created", cause="a test", by="me")
    for _ in range(2):
        line.retire_all_but({A}.__contains__)
    assert [event.what for event in line.since(A, 0)] == ["created"]
    assert [event.what for event in line.since(B, 0)] == ["created", "destroyed"]


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
        earlier.setattr(database, "MIGRATIONS", MIGRATIONS[:version])
        open_database(tmp_path).close()
    with closing(open_database(tmp_path)) as connection:
        Timeline(connection).retire(A)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"sandboxes", "events", "keys", "retired", "custody"} <= tables


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(database, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE extra (id TEXT); CREATE NONSENSE"))
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


def test_what_is_written_waits_in_the_log_until_it_is_folded_in(store: Database, tmp_path: Path) -> None:
    path, log = tmp_path / NAME, tmp_path / f"{NAME}-wal"
    fold_log(path)
    size = path.stat().st_size
    write_much(store)
    assert path.stat().st_size == size
    longest = log.stat().st_size
    for _ in range(3):
        fold_log(path)
        write_much(store)
    assert path.stat().st_size > size
    assert log.stat().st_size < 1.1 * longest
    with closing(open_database(tmp_path)) as other:
        assert other.execute("SELECT count(*) FROM custody").fetchone() == (4 * 2000,)


def test_a_log_that_has_grown_long_is_made_short(store: Database, tmp_path: Path) -> None:
    """It begins anew by itself only where nobody writes while it is folded in."""
    path, log = tmp_path / NAME, tmp_path / f"{NAME}-wal"
    write_much(store)
    assert log.stat().st_size > 2**20
    fold_log(path, longest=2**20)
    assert log.stat().st_size < 2**20
    write_much(store)
    with closing(open_database(tmp_path)) as other:
        assert other.execute("SELECT count(*) FROM custody").fetchone() == (2 * 2000,)


async def test_a_log_is_folded_in_when_enough_has_changed(store: Database, tmp_path: Path) -> None:
    path = tmp_path / NAME
    fold_log(path)
    size = path.stat().st_size
    keeping = asyncio.create_task(keep_log_short(store, changes=2000, pause=0.01))
    await asyncio.sleep(0)  # it begins
    write_much(store)
    try:
        async with asyncio.timeout(60):
            while path.stat().st_size == size:
                await asyncio.sleep(0.01)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


def write_much(store: Database) -> None:
    """More than SQLite by itself leaves in a log."""
    for _ in range(2000):
        store.execute("INSERT INTO custody VALUES (?)", ("x" * 3000,))


def test_damage_that_is_met_on_the_way_is_a_typed_error(tmp_path: Path) -> None:
    with closing(open_database(tmp_path)) as connection:
        keys, line = Keys(SqliteKeys(connection)), Timeline(connection)
        for _ in range(200):
            _, key = kept.at_once(keys.create("x" * 500))
            line.add(A, "env_changed", cause="x" * 500, by="me")
        fold_log(tmp_path / NAME)
        damage(connection, "keys")
        damage(connection, "events")
    with closing(open_database(tmp_path)) as connection:
        keys, line = Keys(SqliteKeys(connection)), Timeline(connection)
        for ask in (
            lambda: kept.at_once(keys.find(key)),
            lambda: kept.at_once(keys.list()),
            lambda: line.since(A, 0),
            lambda: line.latest(A, {"created"}),
        ):
            with pytest.raises(AtollError) as caught:
                ask()
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


def test_a_transaction_is_done_whole_or_not_at_all(store: Database) -> None:
    with pytest.raises(KeyError), store.transaction():
        store.execute("INSERT INTO custody VALUES ('now')")
        raise KeyError
    assert store.rows("SELECT * FROM custody") == []
    with store.transaction():
        store.execute("INSERT INTO custody VALUES ('now')")
    assert store.rows("SELECT * FROM custody") == [("now",)]


def test_a_database_without_space_says_so_and_is_usable_later(store: Database) -> None:
    store.execute("PRAGMA max_page_count=1")  # no more than it has
    with pytest.raises(AtollError) as caught, store.transaction():
        store.execute("INSERT INTO custody VALUES (?)", ("x" * 100_000,))
    assert caught.value.code is ErrorCode.NO_SPACE
    store.execute("PRAGMA max_page_count=1000000")
    Timeline(store).add(A, "created", cause="a test", by="me")
