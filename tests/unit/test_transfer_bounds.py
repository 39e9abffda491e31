"""What a download may bring: counted where it is packed and where it arrives, and refused before it is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.archives.descent import Descent
from atoll.archives.packing import Packer
from atoll.archives.removal import remove_tree
from atoll.archives.tar import END, Entry, EntryType, encode_entry
from atoll.archives.unpacking import IN_SANDBOX, ON_HOST, Unpacker
from atoll.protocol import transfer_bounds
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.limits import parse_bounds
from atoll.protocol.transfer_bounds import Bounds, Tally

DEPTH = 6000


def unpack(archive: bytes, target: Path, bounds: Bounds) -> int:
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with Unpacker(directory, ON_HOST, Tally(bounds, b"/far")) as unpacker:
            unpacker.feed(archive)
            unpacker.close()
            return unpacker.count
    finally:
        os.close(directory)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Six entries, three deep, with 4,000 bytes."""
    (tmp_path / "tree/a/b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tmp_path / "tree" / name).write_bytes(b"x" * 1000)
    (tmp_path / "tree/link").symlink_to("one")
    (tmp_path / "tree/one").write_bytes(b"x" * 2000)
    (tmp_path / "target").mkdir()
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("tight", "wide"),
    [
        (Bounds(max_bytes=3999), Bounds(max_bytes=4000)),
        (Bounds(max_entries=5), Bounds(max_entries=7)),  # "." is one too, where an archive comes from a stranger
        (Bounds(max_depth=2), Bounds(max_depth=3)),
    ],
    ids=["max_bytes", "max_entries", "max_depth"],
)
def test_each_bound_is_kept_on_both_sides(tree: Path, tight: Bounds, wide: Bounds) -> None:
    whole = b"".join(Packer(os.fsencode(tree)).pieces())
    assert b"".join(Packer(os.fsencode(tree), wide).pieces()) == whole
    assert unpack(whole, tree.parent / "target", wide) == 6
    (bound,) = (name for name in tight.__struct_fields__ if getattr(tight, name) is not None)
    sides: list[Callable[[], object]] = [
        lambda: b"".join(Packer(os.fsencode(tree), tight).pieces()),
        lambda: unpack(whole, tree.parent / "target", tight),
    ]
    for side in sides:
        with pytest.raises(AtollError) as caught:
            side()
        assert caught.value.code is ErrorCode.DOWNLOAD_TOO_LARGE
        assert caught.value.context["bound"] == bound
        assert caught.value.context["limit"] == getattr(tight, bound)
        assert f"{bound}=" in str(caught.value) and f"{getattr(tight, bound):,}" in caught.value.message
        assert "--" + bound.replace("_", "-") in caught.value.remedy
        assert isinstance(caught.value, OSError)


def test_what_is_beyond_a_bound_is_not_made(tree: Path) -> None:
    archive = b"".join(encode_entry(Entry(b"%d" % number, EntryType.DIRECTORY)) for number in range(10)) + END
    with pytest.raises(AtollError):
        unpack(archive, tree.parent / "target", Bounds(max_entries=3))
    assert sorted(os.listdir(tree.parent / "target")) == ["0", "1", "2"]


@pytest.mark.parametrize("policy", [ON_HOST, IN_SANDBOX])
def test_a_file_that_is_not_whole_is_removed(tmp_path: Path, policy: Any) -> None:
    archive = encode_entry(Entry(b"sub/file", EntryType.FILE, 1000)) + b"x" * 999
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with Unpacker(directory, policy) as unpacker:
        unpacker.feed(archive)
        assert os.listdir(tmp_path / "sub") == ["file"]
    os.close(directory)
    assert os.listdir(tmp_path / "sub") == []


def test_what_took_the_name_of_a_file_that_is_not_whole_stays(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with Unpacker(directory, IN_SANDBOX) as unpacker:
        unpacker.feed(encode_entry(Entry(b"file", EntryType.FILE, 1000)) + b"x")
        (tmp_path / "other").write_text("another")
        (tmp_path / "other").replace(tmp_path / "file")
    os.close(directory)
    assert (tmp_path / "file").read_text() == "another"


@pytest.fixture(scope="module")
def deep() -> Iterator[Path]:
    """In memory, where to make and to remove it takes no time; and pytest could not remove it."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    with Descent(os.open(directory, os.O_RDONLY)) as descent:
        for name in (b"deep", *[b"d"] * DEPTH):
            os.mkdir(name, dir_fd=descent.fd)
            descent.enter(name)
    yield directory / "deep"
    fd = os.open(directory.parent, os.O_RDONLY)
    remove_tree(fd, os.fsencode(directory.name))
    os.close(fd)


def test_a_tree_of_6000_directories_in_each_other_is_refused_before_much_of_it_is_read(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_calls(monkeypatch, "open")
    with pytest.raises(AtollError, match="max_depth=256"):
        sum(len(piece) for piece in Packer(os.fsencode(deep), parse_bounds()).pieces())
    assert len(opened) < 2 * transfer_bounds.MAX_DEPTH


def test_who_lifts_the_bound_gets_such_a_tree_with_a_few_steps_for_each_directory(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_calls(monkeypatch, "open")
    (deep.parent / "target").mkdir()
    directory = os.open(deep.parent / "target", os.O_RDONLY | os.O_DIRECTORY)
    with Unpacker(directory, ON_HOST) as unpacker:
        for piece in Packer(os.fsencode(deep)).pieces():
            unpacker.feed(piece)
        unpacker.close()
    os.close(directory)
    assert unpacker.count == DEPTH
    assert len(opened) < 6 * DEPTH  # a walk from the top for each would be 18 million


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[None]:
    calls: list[None] = []
    real = getattr(os, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, counted)
    return calls


@pytest.mark.parametrize("given", [True, -1, 1.5, "many", "", b"1", 2**63])
@pytest.mark.parametrize("name", ["max_bytes", "max_entries", "max_depth"])
def test_what_is_no_bound_is_told(name: str, given: Any) -> None:
    with pytest.raises(ValueError, match="is not a bound") as caught:
        parse_bounds(**{name: given})
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is ErrorCode.INVALID_REQUEST and caught.value.remedy
    assert name in caught.value.message


def test_bounds_are_numbers_sizes_or_nothing() -> None:
    assert parse_bounds() == Bounds(max_bytes=32 * 2**30, max_entries=10**6, max_depth=256)
    assert parse_bounds("64GiB", None, 7) == Bounds(max_bytes=2**36, max_depth=7)
    assert parse_bounds("none", "None", "0") == Bounds(max_depth=0)
