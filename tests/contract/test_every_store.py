"""What every store must do, tried on each that there is."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

import atoll.store
from atoll.protocol.errors import AtollError
from atoll.protocol.ids import SandboxId
from atoll.protocol.sandboxes import STATE_CHANGES
from atoll.store import timeline
from atoll.store.base import SandboxRow, Store
from atoll.store.keys import Keys, id_of
from atoll.store.sqlite.store import SqliteStore
from atoll.store.timeline import destroyed_at

A, B = SandboxId("a"), SandboxId("b")
Kind = Callable[[Path], Store]
Open = Callable[[], Store]
STORES: dict[str, Kind] = {"sqlite": SqliteStore}


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> Kind:
    return STORES[request.param]


@pytest.fixture
def open_again(kind: Kind, tmp_path: Path) -> Open:
    """Opens the same store as often as asked, as other processes and later servers do."""
    return lambda: kind(tmp_path)


@pytest.fixture
def store(open_again: Open) -> Iterator[Store]:
    with closing(open_again()) as store:
        yield store


# Keys


async def test_a_key_is_found_and_no_other(store: Store) -> None:
    keys = Keys(store.keys)
    info, key = await keys.create("mine")
    other, _ = await keys.create("other")
    assert await keys.find(key) == info
    assert [await keys.find(wrong) for wrong in ("", key[:-1], key + "a", info.id, "\udcff")] == [None] * 5
    assert await keys.list() == [info, other]
    assert id_of(key) == info.id


async def test_a_key_is_kept_as_a_digest_alone(store: Store, tmp_path: Path) -> None:
    _, key = await Keys(store.keys).create("mine")
    (kept,) = await store.keys.all()
    assert key[-20:].encode() not in kept.digest
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert key[-20:].encode() not in b"".join(path.read_bytes() for path in files)
    assert {path.stat().st_mode & 0o777 for path in files} <= {0o600}


async def test_every_key_is_compared_in_constant_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(store.keys)
    _, first = await keys.create("first")
    await keys.create("second")
    compared = []

    def compare(stored: bytes, given: bytes) -> bool:
        compared.append(stored)
        return stored == given

    monkeypatch.setattr("hmac.compare_digest", compare)
    await keys.find(first)
    assert len(compared) == 2


async def test_a_deleted_key_is_gone_and_twice_is_fine(store: Store) -> None:
    keys = Keys(store.keys)
    info, key = await keys.create("mine")
    assert await keys.delete(info.id)
    assert not await keys.delete(info.id)
    assert await keys.find(key) is None


async def test_a_key_that_somebody_else_made_or_took_away_counts_at_once(store: Store, open_again: Open) -> None:
    with closing(open_again()) as other:
        info, key = await Keys(other.keys).create("mine")
    assert await Keys(store.keys).find(key) == info
    with closing(open_again()) as other:
        assert await Keys(other.keys).delete(info.id)
    assert await Keys(store.keys).find(key) is None


# Timelines


async def test_a_timeline_is_numbered_by_sandbox_and_read_from_where_one_was(store: Store) -> None:
    line = store.timeline
    added = [await line.add(A, what, cause="a test", by="me") for what in ("created", "frozen", "thawed")]
    await line.add(B, "created", cause="a test", by="me")
    assert [event.number for event in added] == [1, 2, 3]
    assert await line.since(A, 0) == added
    assert await line.since(A, 2) == added[2:]
    assert [event.number for event in await line.since(B, 0)] == [1]


async def test_kills_for_memory_in_a_row_are_one_event_with_a_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    line = store.timeline
    for what in ("created", "env_changed", *["oom_killed"] * 9):
        await line.add(A, what, cause="", by="")
    assert [(event.number, event.what, event.count) for event in await line.since(A, 0)] == [
        (1, "created", 1),
        (2, "env_changed", 1),
        (11, "oom_killed", 9),
    ]
    await line.add(A, "env_changed", cause="", by="")
    assert (await line.add(A, "oom_killed", cause="", by="")).count == 1


async def test_a_timeline_keeps_the_last_change_of_state_whatever_happens_since(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    line = store.timeline
    for what in ("created", "frozen", *["session_created"] * 9):
        await line.add(A, what, cause="", by="")
    assert [event.number for event in await line.since(A, 0)] == [2, 9, 10, 11]
    await line.add(A, "thawed", cause="", by="")
    assert [event.number for event in await line.since(A, 0)] == [10, 11, 12]
    change = await line.latest(A, STATE_CHANGES)
    assert change and change.what == "thawed"
    assert await line.latest(B, STATE_CHANGES) is None


async def test_a_timeline_drops_its_oldest_and_goes_on_counting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    line = store.timeline
    for _ in range(5):
        await line.add(A, "frozen", cause="a test", by="me")
    assert [event.number for event in await line.since(A, 0)] == [3, 4, 5]


async def test_the_latest_of_some_kinds_is_found(store: Store) -> None:
    line = store.timeline
    first, second, _ = [
        await line.add(A, what, cause="a test", by="me") for what in ("created", "frozen", "labels_changed")
    ]
    assert await line.latest(A, {"created", "frozen"}) == second
    assert await line.latest(A, {"created"}) == first
    assert await line.latest(A, {"stopped"}) is None
    assert await line.latest(B, {"created"}) is None


async def test_the_next_sandbox_of_an_id_begins_anew_and_its_numbers_go_on(store: Store) -> None:
    line = store.timeline
    for number in (1, 3, 5):
        created = await line.begin_anew(A, "created", cause="a test", by="me")
        assert await line.since(A, 0) == [created]
        assert created.number == number
        await line.add(A, "destroyed", cause="a test", by="me")
        await line.retire(A)
    assert await line.last(B) is None


async def test_of_the_destroyed_only_the_latest_are_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_RETIRED", 2)
    line = store.timeline
    names = [SandboxId(f"box-{number}") for number in range(4)]
    for name in names:
        await line.add(name, "created", cause="a test", by="me")
    await store.sandboxes.add(row(names[0]))
    await line.retire(names[1])
    await line.retire_unrecorded()  # the others were destroyed by a server that was killed
    assert [bool(await line.since(name, 0)) for name in names] == [True, False, True, True]


async def test_the_end_of_what_a_killed_server_destroyed_is_noted(store: Store) -> None:
    line = store.timeline
    await store.sandboxes.add(row(A))
    for name in (A, B):
        await line.add(name, "created", cause="a test", by="me")
    for _ in range(2):
        await line.retire_unrecorded()
    assert [event.what for event in await line.since(A, 0)] == ["created"]
    assert [event.what for event in await line.since(B, 0)] == ["created", "destroyed"]
    assert (await destroyed_at(line, A), await destroyed_at(line, B)) == (None, (await line.since(B, 1))[0].time)


# Sandboxes


def row(name: str, stage: str = "making", shared: bytes = b"what it is", local: bytes | None = b"here") -> SandboxRow:
    return SandboxRow(id=name, stage=stage, shared=shared, local=local)


async def test_a_sandbox_goes_from_stage_to_stage_and_is_there_for_the_next(store: Store, open_again: Open) -> None:
    async def check(*rows: SandboxRow) -> None:
        assert sorted(await store.sandboxes.all(), key=lambda row: row.id) == list(rows)
        with closing(open_again()) as other:
            assert sorted(await other.sandboxes.all(), key=lambda row: row.id) == list(rows)

    await check()
    await store.sandboxes.add(row(A))
    await check(row(A))
    await store.sandboxes.add(row(B, local=None))
    await check(row(A), row(B, local=None))
    await store.sandboxes.move(A, "created")
    await check(row(A, "created"), row(B, local=None))
    await store.sandboxes.replace(row(A, "its stage stays", b"changed", b"started again"))
    await check(row(A, "created", b"changed", b"started again"), row(B, local=None))
    await store.sandboxes.put(row(B, "created", b"put", b"started"))
    await store.sandboxes.put(row(A, "created", b"put", None))
    await check(row(A, "created", b"put", None), row(B, "created", b"put", b"started"))
    for _ in range(2):
        await store.sandboxes.remove(B)
    await check(row(A, "created", b"put", None))
    await store.sandboxes.add(row(B, local=None))
    await check(row(A, "created", b"put", None), row(B, local=None))


async def test_one_that_is_not_there_is_neither_moved_nor_replaced(store: Store) -> None:
    await store.sandboxes.move(A, "created")
    await store.sandboxes.replace(row(A))
    assert await store.sandboxes.all() == []


async def test_an_id_that_somebody_has_is_not_given_again(store: Store) -> None:
    await store.sandboxes.add(row(A))
    with pytest.raises(AtollError):
        await store.sandboxes.add(row(A, "created", b"another", b"elsewhere"))
    assert await store.sandboxes.all() == [row(A)]


async def test_what_is_taken_over_leaves_alone_what_is_there(store: Store) -> None:
    await store.sandboxes.add(row(A))
    assert not await store.custody.is_taken()
    await store.sandboxes.take_over([row(A, "created", b"other", None), row(B), row(B, "created")])
    assert sorted(await store.sandboxes.all(), key=lambda row: row.id) == [row(A), row(B)]
    assert await store.custody.is_taken()


async def test_nothing_is_taken_over_of_what_cannot_be_read_to_its_end(store: Store) -> None:
    def broken() -> Iterator[SandboxRow]:
        yield row(A)
        raise KeyError

    with pytest.raises(KeyError):
        await store.sandboxes.take_over(broken())
    assert await store.sandboxes.all() == []
    assert not await store.custody.is_taken()


# The store itself


async def test_custody_is_taken_once_and_for_all(store: Store, open_again: Open) -> None:
    assert not await store.custody.is_taken()
    for _ in range(2):
        await store.custody.take()
    with closing(open_again()) as other:
        assert await other.custody.is_taken()


async def test_a_store_says_where_it_is_and_how_a_record_is_removed_by_hand(store: Store, open_again: Open) -> None:
    for name in (A, B):
        await store.sandboxes.add(row(name, local=None))
    assert store.place and store.place in store.how_to_remove(A)
    store.close()
    store.close()
    subprocess.run(store.how_to_remove(A), shell=True, check=True, timeout=60)
    with closing(open_again()) as other:
        assert await other.sandboxes.all() == [row(B, local=None)]


VERBS: dict[str, Callable[[Store], Coroutine[Any, Any, object]]] = {
    "add": lambda store: store.sandboxes.add(row(B)),
    "put": lambda store: store.sandboxes.put(row(A, "created", b"other", b"elsewhere")),
    "replace": lambda store: store.sandboxes.replace(row(A, "created", b"other", b"elsewhere")),
    "move": lambda store: store.sandboxes.move(A, "created"),
    "remove": lambda store: store.sandboxes.remove(A),
    "begin anew": lambda store: store.timeline.begin_anew(A, "created", cause="a test", by="me"),
    "retire": lambda store: store.timeline.retire(A),
    "make a key": lambda store: Keys(store.keys).create("mine"),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_that_fails_is_a_typed_error_and_changes_nothing(
    store: Store, open_again: Open, verb: str
) -> None:
    await store.sandboxes.add(row(A))
    await store.timeline.add(A, "created", cause="a test", by="me")
    before = await everything(store)
    with refused(store), pytest.raises(AtollError) as caught:
        await VERBS[verb](store)
    assert caught.value.remedy
    assert await everything(store) == before
    with closing(open_again()) as other:
        assert await everything(other) == before
    await VERBS[verb](store)


async def everything(store: Store) -> list[object]:
    return [await store.sandboxes.all(), await store.timeline.since(A, 0), await store.keys.all()]


@contextmanager
def refused(store: Store) -> Iterator[None]:
    """Writing is refused, as on a disk that is full or read-only."""
    assert isinstance(store, SqliteStore), "say here how another store is made to refuse"
    store.database.execute("PRAGMA query_only=1")
    try:
        yield
    finally:
        store.database.execute("PRAGMA query_only=0")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_done_whole_or_not_at_all_whenever_it_is_killed(kind: Kind, tmp_path: Path, verb: str) -> None:
    """A process each, killed one line of the store's later, until one comes to its end."""
    template = tmp_path / "template"
    template.mkdir()
    with closing(kind(template)) as store:
        asyncio.run(store.sandboxes.add(row(A)))
        asyncio.run(store.timeline.add(A, "created", cause="a test", by="me"))
    seen = []
    for line in itertools.count():
        state = tmp_path / str(line)
        shutil.copytree(template, state)
        child = os.fork()
        if child == 0:
            do_until_killed(kind, state, verb, line)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with closing(kind(state)) as store:
            seen.append(told(asyncio.run(everything(store))))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert len(seen) > 3
    half = [found for found in seen if found not in (seen[0], seen[-1])]
    assert not half, "it is as before, or as after"


def do_until_killed(kind: Kind, state: Path, verb: str, line: int) -> NoReturn:
    left = itertools.count(line, -1)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(atoll.store.__path__[0]):
            return None
        if event == "line" and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    store = kind(state)
    sys.settrace(trace)
    asyncio.run(VERBS[verb](store))
    os._exit(0)


def told(found: list[object]) -> str:
    """Without what differs from process to process: moments and keys."""
    rows, events, keys = found
    assert isinstance(rows, list) and isinstance(events, list) and isinstance(keys, list)
    return repr([rows, [(event.number, event.what) for event in events], len(keys)])
