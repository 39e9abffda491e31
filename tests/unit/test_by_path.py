"""Trees where directories cannot be opened: what leads out of one is refused, and a name that means another."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from atoll.archives.by_path import PathDescent, flaw_in_name
from atoll.archives.tar import END, Entry, EntryType, encode_entry, padding
from atoll.archives.unpacking import ON_HOST, Unpacker
from atoll.protocol.errors import AtollError, ErrorCode


def entry(name: bytes, kind: EntryType = EntryType.FILE, content: bytes = b"", target: bytes = b"") -> bytes:
    head = encode_entry(Entry(name, kind, mode=0o644, modified_at=1, size=len(content))._replace(target=target))
    return head + content + padding(len(content))


def unpack(archive: bytes, directory: Path) -> None:
    with Unpacker(PathDescent(os.fsencode(directory)), ON_HOST) as unpacker:
        unpacker.feed(archive + END)
        unpacker.close()


LINK = EntryType.SYMLINK


@pytest.mark.parametrize(
    "archive",
    [
        entry(b"../out", content=b"x"),
        entry(b"/tmp/out", content=b"x"),
        entry(b"a\\..\\..\\out", content=b"x"),
        entry(b"C:out", content=b"x"),
        entry(b"file:stream", content=b"x"),
        entry(b"dir./file", content=b"x"),
        entry(b"\xff", content=b"x"),
        entry(b"inside/file", content=b"x") + entry(b"link", LINK, target=b"inside") + entry(b"link/f", content=b"x"),
    ],
)
def test_what_leads_out_is_refused(archive: bytes, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(AtollError) as refused:
        unpack(archive, tmp_path / "here")
    assert refused.value.code is ErrorCode.UNSAFE_ARCHIVE
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert not (tmp_path / "here/inside/f").exists()


@pytest.mark.parametrize("link_target", [b"../out", b"..\\out", b"c:\\windows"])
def test_a_link_that_leads_out_is_left_out(link_target: bytes, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    unpack(entry(b"link", LINK, target=link_target) + entry(b"file", content=b"x"), tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["file"]


@pytest.mark.parametrize(
    "name", [b"nul", b"NUL.txt", b"Con", b"lpt1.x", b"COM\xc2\xb9", b"aux ", b"a ", b"a\tb", b"a?"]
)
def test_a_name_that_means_another_is_none(name: bytes) -> None:
    assert flaw_in_name(name)


@pytest.mark.parametrize(
    "name", [b"nulled", b"console.log", b".bashrc", b"a b.c", b"com10", "é".encode(), b"auxiliary"]
)
def test_a_name_that_means_itself_is_one(name: bytes) -> None:
    assert flaw_in_name(name) is None


def test_a_link_on_the_way_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with PathDescent(os.fsencode(tmp_path)) as descent:
        with pytest.raises(NotADirectoryError):
            descent.enter(b"link")
        assert descent.names == []
        descent.enter(b"real")
        assert descent.leave() == b"real"


def test_a_directory_that_was_exchanged_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "tree/inner").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    with PathDescent(os.fsencode(tmp_path / "tree")) as descent:
        descent.enter(b"inner")
        (tmp_path / "tree/inner").rename(tmp_path / "tree/moved")
        (tmp_path / "tree/inner").symlink_to(tmp_path / "other")
        with pytest.raises(NotADirectoryError):
            descent.open(b"file", os.O_WRONLY | os.O_CREAT)
        (tmp_path / "tree/inner").unlink()
        (tmp_path / "tree/inner").mkdir()
        with pytest.raises(OSError, match="moved meanwhile") as moved:
            descent.make_directory(b"new", 0o755, is_exact=False)
        assert moved.value.errno == errno.ESTALE
        assert descent.leave() == b"inner"
    assert not list((tmp_path / "other").iterdir())


def test_a_file_that_is_not_whole_is_removed(tmp_path: Path) -> None:
    with Unpacker(PathDescent(os.fsencode(tmp_path)), ON_HOST) as unpacker:
        unpacker.feed(entry(b"file", content=b"x" * 1000)[:700])
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert not list(tmp_path.iterdir())
