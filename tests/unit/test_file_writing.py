"""Files that appear as a whole, on kernels that let one name a nameless file and on those that do not."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.agent.files import writing as file_writing
from atoll.agent.files.trees import copy_tree
from atoll.agent.files.writing import LARGE, NewFile, Place, copy_content, make_directories, write_all


@pytest.fixture(params=[True, False], ids=["nameless", "named"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[bytes]:
    """A path; nothing but what is written there is left behind."""
    monkeypatch.setattr(file_writing, "can_name_the_nameless", lambda: request.param)
    yield os.fsencode(tmp_path / "file")
    assert set(os.listdir(tmp_path)) <= {"file"}


def write(path: bytes, content: bytes, *, exclusive: bool = False, mode: int | None = None) -> None:
    with Place(path) as place, NewFile(place, mode) as file:
        write_all(file.fd, content)
        file.appear(exclusive=exclusive, sync=True)


def test_a_new_file_and_one_that_is_replaced(target: bytes) -> None:
    write(target, b"first", mode=0o4750)
    write(target, b"second")
    path = Path(os.fsdecode(target))
    assert path.read_bytes() == b"second" and stat.S_IMODE(path.stat().st_mode) == 0o4750


def test_what_exists_is_not_made_again(target: bytes) -> None:
    write(target, b"first", exclusive=True)
    with pytest.raises(FileExistsError):
        write(target, b"second", exclusive=True)
    assert Path(os.fsdecode(target)).read_bytes() == b"first"


def test_somebody_who_is_quicker_is_replaced(target: bytes) -> None:
    with Place(target) as place, NewFile(place, None) as file:
        write_all(file.fd, b"ours")
        Path(os.fsdecode(target)).write_bytes(b"theirs")
        file.appear()
    assert Path(os.fsdecode(target)).read_bytes() == b"ours"


def test_what_is_given_up_leaves_nothing(target: bytes) -> None:
    with pytest.raises(KeyboardInterrupt), Place(target) as place, NewFile(place, None) as file:
        write_all(file.fd, b"half")
        raise KeyboardInterrupt
    assert not Path(os.fsdecode(target)).exists()


def test_directories_on_the_way_are_made_however_they_are_written(tmp_path: Path) -> None:
    make_directories(os.fsencode(tmp_path) + b"//a/./b//c/", above=-1, mode=0o700)
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o755


def test_a_copy_that_cannot_be_made_leaves_no_descriptor_open(tmp_path: Path) -> None:
    for name in ("file", "there"):
        (tmp_path / name).write_text(name)
    path = os.fsencode(tmp_path / "file")
    before = os.listdir("/proc/self/fd")
    with Place(path) as source, Place(path) as target, pytest.raises(FileExistsError):
        copy_tree(source, target, b"there")
    assert os.listdir("/proc/self/fd") == before
    assert (tmp_path / "there").read_text() == "there"


def test_a_copy_has_the_same_bytes_and_the_same_holes(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    with source.open("wb") as file:
        for start in (0, 2**20, 10 * 2**20):
            file.seek(start)
            file.write(b"data" * 1000)
        file.truncate(20 * 2**20)
    with source.open("rb") as file, copy.open("wb") as target:
        copy_content(file.fileno(), target.fileno(), 20 * 2**20)
    assert copy.read_bytes() == source.read_bytes()
    assert copy.stat().st_blocks <= source.stat().st_blocks


def test_who_is_to_close_a_large_file_that_was_replaced_can_do_it_later(tmp_path: Path) -> None:
    target = tmp_path / "file"
    for size in (1, LARGE, LARGE + 1):
        target.write_bytes(b"x" * size)
        before = set(os.listdir("/proc/self/fd"))
        with Place(os.fsencode(target)) as place, NewFile(place, None) as file:
            write_all(file.fd, b"new")
            file.appear()
            replaced = file.take_replaced()
        assert target.read_bytes() == b"new"
        assert (replaced is not None) == (size >= LARGE)
        if replaced is not None:
            assert (os.fstat(replaced).st_size, os.fstat(replaced).st_nlink) == (size, 0)
            os.close(replaced)
        assert set(os.listdir("/proc/self/fd")) == before
    target.write_bytes(b"x" * LARGE)
    with Place(os.fsencode(target)) as place, NewFile(place, None) as file:
        file.appear()
    assert set(os.listdir("/proc/self/fd")) == before
