"""Records in the database, from stage to stage; and those in files, taken over by whoever comes next to a kill."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.handles import NativeHandle, ProcessIdentity
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.store.base import Store
from atoll.store.sqlite.database import NAME, Database
from atoll.store.sqlite.store import SqliteStore
from atoll.supervisor.record_files import take_over_files
from atoll.supervisor.records import Records, Row, Stage, decode_record
from tests import kept
from tests.unit.test_reconcile import ONE, TWO, record

# Takes over copies of a directory; each time killed one line later, until it came to its end.
KILLED_AT_EVERY_LINE = """
import asyncio, itertools, os, shutil, signal, sys
from pathlib import Path
from atoll.store.choose import open_store
from atoll.store.sqlite import sandboxes
from atoll.supervisor import record_files

def take_over(state, line):
    left = itertools.count(line, -1)

    def trace(frame, event, _):
        if frame.f_code.co_filename not in (record_files.__file__, sandboxes.__file__):
            return None
        if event == "line" and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    store = open_store(state)
    sys.settrace(trace)
    asyncio.run(record_files.take_over_files(state, store))

template, work = map(Path, sys.argv[1:])
for line in itertools.count():
    state = work / str(line)
    shutil.copytree(template, state)
    child = os.fork()
    if child == 0:
        take_over(state, line)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        yield store


@pytest.fixture
def database(store: SqliteStore) -> Database:
    return store.database


async def loaded(store: Store, *, has_unrecorded: bool = False) -> Records:
    records = Records(store)
    await records.load(has_unrecorded=has_unrecorded)
    return records


async def test_records_go_from_stage_to_stage_and_are_there_for_the_next(store: SqliteStore, tmp_path: Path) -> None:
    records = await loaded(store)

    async def check(*rows: Row) -> None:
        assert records.rows() == (await loaded(store, has_unrecorded=True)).rows() == list(rows)
        assert kept.stages(tmp_path) == {row.id: row.stage for row in rows}

    await check()
    await records.begin(record(ONE))
    await check(Row(id=ONE, stage=Stage.MAKING, record=record(ONE)))
    assert not records.exists(ONE) and records.is_taken(ONE) and records.created() == []
    assert records.find(ONE) is records.find_to_remove(ONE) is None
    await records.commit(ONE)
    await check(Row(id=ONE, stage=Stage.CREATED, record=record(ONE)))
    assert records.exists(ONE)
    changed = msgspec.structs.replace(record(ONE), env={"a": "b"})
    await records.replace(changed)
    await check(Row(id=ONE, stage=Stage.CREATED, record=changed))
    assert records.find(ONE) == records.find_to_remove(ONE) == changed
    await records.begin_removal(ONE)
    await records.begin_removal(ONE)
    await check(Row(id=ONE, stage=Stage.REMOVING, record=changed))
    assert records.find(ONE) is None and records.find_to_remove(ONE) == changed
    await records.forget(ONE)
    await records.forget(ONE)
    await check()


async def test_a_change_that_was_not_written_is_not_believed(store: SqliteStore, database: Database) -> None:
    records = await loaded(store)
    await records.begin(record(ONE))
    database.execute("PRAGMA query_only=1")
    changed = msgspec.structs.replace(record(ONE), env={"a": "b"})
    changes: list[Callable[[], Coroutine[Any, Any, None]]] = [
        lambda: records.begin(record(TWO)),
        lambda: records.commit(ONE),
        lambda: records.replace(changed),
        lambda: records.forget(ONE),
    ]
    for change in changes:
        with pytest.raises(AtollError):
            await change()
        assert records.rows() == [Row(id=ONE, stage=Stage.MAKING, record=record(ONE))]


@pytest.mark.parametrize("content", [b"", b"{}", b'"\xff', b"[" * 100_000, "text", 7, msgspec.json.encode(record(TWO))])
@pytest.mark.parametrize("stage", ["created", "not a stage", b"\0"])
async def test_a_record_that_cannot_be_read_is_damaged(
    store: SqliteStore, database: Database, content: bytes | str | int, stage: bytes | str
) -> None:
    database.execute("INSERT INTO sandboxes (id, stage, record) VALUES ('one', ?, ?)", (stage, content))
    records = await loaded(store)
    (row,) = records.rows()
    assert (row.id, row.stage, row.record) == (ONE, Stage.CREATED, None)
    assert records.exists(ONE) and records.created() == []
    with pytest.raises(AtollError) as caught:
        records.find(ONE)
    assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE


@pytest.mark.parametrize("local", [b"", b"[]", b"{", b"\xff", 7, b'{"handle": 1}', b"[" * 100_000])
async def test_a_record_whose_part_of_this_machine_cannot_be_read_is_damaged(
    store: SqliteStore, database: Database, local: bytes | int
) -> None:
    await (await loaded(store)).begin(record(ONE))
    database.execute("UPDATE sandboxes SET local = ?", (local,))
    (row,) = (await loaded(store)).rows()
    assert (row.id, row.stage, row.record) == (ONE, Stage.MAKING, None)
    assert row.flaw.startswith("what is of this machine: ")


async def test_what_is_of_this_machine_alone_is_kept_apart_from_what_a_cluster_shares(store: SqliteStore) -> None:
    started = msgspec.structs.replace(record(ONE), handle="HANDLE", generation="GENERATION", boot_id="BOOT")
    records = await loaded(store)
    await records.begin(started)
    (row,) = await store.sandboxes.all()
    local = msgspec.json.decode(row.local or b"")
    assert {"handle": "HANDLE", "generation": "GENERATION", "boot_id": "BOOT"}.items() <= local.items()
    assert not local.keys() & msgspec.json.decode(row.shared).keys()
    assert not any(value in row.shared for value in (b"HANDLE", b"GENERATION", b"BOOT"))
    assert (await loaded(store)).rows() == records.rows()


async def test_a_row_that_an_earlier_version_wrote_in_one_piece_is_read_and_then_kept_apart(
    store: SqliteStore, tmp_path: Path
) -> None:
    started = msgspec.structs.replace(record(ONE), handle="HANDLE", generation="GENERATION", boot_id="BOOT")
    kept.put(tmp_path, ONE, "created", msgspec.json.encode(started))
    records = await loaded(store)
    assert records.rows() == [Row(id=ONE, stage=Stage.CREATED, record=started)]
    assert (await store.sandboxes.all())[0].local is None
    again = msgspec.structs.replace(started, generation="NEXT")
    await records.replace(again)
    (row,) = await store.sandboxes.all()
    assert b"HANDLE" not in row.shared
    assert (await loaded(store)).rows() == [Row(id=ONE, stage=Stage.CREATED, record=again)]


async def test_a_row_without_a_sandboxs_name_is_nobodys_record(store: SqliteStore, database: Database) -> None:
    for name in ("", "Not an id", b"bytes"):
        database.execute("INSERT INTO sandboxes (id, stage, record) VALUES (?, 'created', '')", (name,))
    assert (await loaded(store)).rows() == []


async def test_disks_without_any_record_are_not_taken_for_leftovers(store: SqliteStore) -> None:
    for _ in range(2):
        with pytest.raises(AtollError) as caught:
            await loaded(store, has_unrecorded=True)
        assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE
    await loaded(store)
    assert (await loaded(store, has_unrecorded=True)).rows() == []


def write_files(state: Path) -> None:
    """As an earlier version left them, also where one id has several."""
    files = state / "records"
    files.mkdir(parents=True)
    for name, ending in (
        ("one", "json"),
        ("one", "removing"),
        ("one", "making"),
        ("two", "removing"),
        ("two", "making"),
        ("three", "making"),
    ):
        (files / f"{name}.{ending}").write_bytes(msgspec.json.encode(record(SandboxId(name))))
    (files / "damaged.json").write_bytes(b"{")
    (files / "half-written.making").write_bytes(b"{")
    (files / "one.new").write_bytes(b"{")


TAKEN_OVER = {"one": "created", "two": "removing", "three": "making", "damaged": "created"}


def take_over(state: Path) -> list[Row]:
    with closing(SqliteStore(state)) as store:
        kept.at_once(take_over_files(state, store))
        return kept.at_once(loaded(store, has_unrecorded=True)).rows()


def test_files_are_taken_over_as_they_are(tmp_path: Path) -> None:
    write_files(tmp_path)
    expected = [
        Row(id=SandboxId("damaged"), stage=Stage.CREATED, record=None, flaw="Input data was truncated"),
        *(
            Row(id=SandboxId(name), stage=Stage(TAKEN_OVER[name]), record=record(SandboxId(name)))
            for name in ("one", "three", "two")
        ),
    ]
    assert take_over(tmp_path) == expected
    assert not list(tmp_path.glob("records*"))
    assert take_over(tmp_path) == expected


def test_files_that_are_nobodys_record_stay(tmp_path: Path) -> None:
    write_files(tmp_path)
    for name in ("README", "one.json.bak"):
        (tmp_path / "records" / name).touch()
    for _ in range(2):
        take_over(tmp_path)
        assert not (tmp_path / "records").exists()
        assert sorted(path.name for path in (tmp_path / "records.taken-over").iterdir()) == ["README", "one.json.bak"]
    assert kept.stages(tmp_path) == TAKEN_OVER


def test_an_empty_directory_of_records_says_that_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    assert take_over(tmp_path) == []


def test_files_are_taken_over_whole_when_that_is_killed_at_any_line(tmp_path: Path) -> None:
    template, work = tmp_path / "template", tmp_path / "work"
    write_files(template)
    work.mkdir()
    subprocess.run([sys.executable, "-c", KILLED_AT_EVERY_LINE, template, work], check=True)
    left = list(work.iterdir())
    had_rows = 0
    for state in left:
        has_all_files = (state / "records").is_dir() and len(list((state / "records").iterdir())) == 9
        had_rows += kept.stages(state) == TAKEN_OVER
        assert has_all_files or kept.stages(state) == TAKEN_OVER, "the records are in one place or the other, whole"
        take_over(state)
        assert kept.stages(state) == TAKEN_OVER
        assert not list(state.glob("records*"))
    assert 2 < had_rows < len(left) - 2, "it was killed before and after the rows were there"


def test_a_directory_that_cannot_be_renamed_is_named_and_its_records_stay(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "records.taken-over").mkdir()
    (tmp_path / "records.taken-over/README").touch()
    with pytest.raises(AtollError) as caught:
        take_over(tmp_path)
    assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE
    assert len(list((tmp_path / "records").iterdir())) == 9
    shutil.rmtree(tmp_path / "records.taken-over")
    take_over(tmp_path)
    assert (tmp_path / NAME).exists() and not (tmp_path / "records").exists()


# As servers wrote it before engines had handles.
BEFORE_HANDLES = b"""{"id":"one","image":"host","image_state":"host-1","limits":{"cpus":1.0,"memory":2147483648,
"disk":10737418240,"pids":1024},"created_at":"2026-01-02T03:04:05.678901Z","process":{"pid":4711,"start_time":815,
"boot_id":"5f0c"},"uid_base":1879048192,"agent_socket":"/run/atoll/agents/one-2.sock","env":{"A":null},
"upkeep":{"labels":{"x":"y"},"sleep_after":60.0,"keep_alive":true,"stop_after":null},"revision":7}"""


def test_a_record_of_before_handles_is_read_into_the_words_of_today() -> None:
    found = decode_record(BEFORE_HANDLES, ONE)
    handle = NativeHandle.decode(found.handle)
    assert handle == NativeHandle(
        process=ProcessIdentity(pid=4711, start_time=815, boot_id="5f0c"),
        uid_base=1879048192,
        agent_socket="/run/atoll/agents/one-2.sock",
    )
    assert (found.generation, found.boot_id) == ("5f0c 4711 815", "5f0c")
    assert found.engine == NativeEngine.name
    assert (found.revision, found.env, found.upkeep.keep_alive) == (7, {"A": None}, True)
    assert decode_record(msgspec.json.encode(found), ONE) == found, "and written as today"


def test_one_of_before_handles_that_was_never_started_has_none() -> None:
    content = msgspec.json.decode(BEFORE_HANDLES) | {"process": {"pid": 0, "start_time": 0, "boot_id": ""}}
    found = decode_record(msgspec.json.encode(content), ONE)
    assert (found.engine, found.handle, found.generation, found.boot_id) == ("", "", "", "")


def test_one_of_before_there_were_several_engines_is_of_the_only_one() -> None:
    content = msgspec.json.decode(msgspec.json.encode(decode_record(BEFORE_HANDLES, ONE)))
    del content["engine"]
    assert decode_record(msgspec.json.encode(content), ONE) == decode_record(BEFORE_HANDLES, ONE)


@pytest.mark.parametrize("process", [None, [], {}, {"pid": 1}, "x"])
def test_one_of_before_handles_whose_process_makes_no_sense_has_no_handle_that_does(process: object) -> None:
    content = msgspec.json.decode(BEFORE_HANDLES) | {"process": process}
    found = decode_record(msgspec.json.encode(content), ONE)
    assert NativeHandle.decode(found.handle) is None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"{", b"\xff", b'{"process": {"boot_id": "x"}}', b'{"a": ' + b"[" * 100_000]
)
def test_what_is_no_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_record(content, ONE)
