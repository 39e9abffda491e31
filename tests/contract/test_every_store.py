"""What every store must do, tried on each that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from atoll.store.base import Store
from atoll.store.keys import Keys, id_of
from atoll.store.sqlite.store import SqliteStore

Open = Callable[[], Store]
STORES: dict[str, Callable[[Path], Store]] = {"sqlite": SqliteStore}


@pytest.fixture(params=STORES)
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store as often as asked, as other processes and later servers do."""
    return lambda: STORES[request.param](tmp_path)


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
