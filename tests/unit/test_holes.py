"""Files with holes: what is read and written without them is the same file, here and in other tars."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from atoll.archives import holes
from atoll.archives.holes import MapWriter, fill_smallest, map_of, read_by
from atoll.archives.packing import Packer
from atoll.archives.tar import END, MAX_AFTER_END, Entry, EntryType, TarReader, damaged, encode_entry, padding
from atoll.archives.unpacking import IN_SANDBOX, ON_HOST, Policy, Unpacker
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.file_maps import MAX_PLACES, MAX_SIZE, FileMap, flaw_in

MIB = 2**20
SHAPES: dict[str, tuple[int, list[int]]] = {  # size, and where there is some data
    "nothing but a hole": (64 * MIB, []),
    "ends in a hole": (64 * MIB + 5, [0, 7 * MIB]),
    "begins with a hole": (64 * MIB + 100, [9 * MIB, 64 * MIB]),
    "of a terabyte": (2**40, [2**39]),
}


def make(path: Path, size: int, places: list[int]) -> None:
    with path.open("wb") as file:
        for start in places:
            file.seek(start)
            file.write(b"data" * 25)
        file.truncate(size)


def is_same(one: Path, other: Path, places: list[int]) -> bool:
    assert one.stat().st_size == other.stat().st_size
    assert other.stat().st_blocks * 512 <= one.stat().st_blocks * 512 + MIB
    with one.open("rb") as first, other.open("rb") as second:
        for start in (0, *places, max(0, one.stat().st_size - MIB)):
            first.seek(start)
            second.seek(start)
            if first.read(MIB) != second.read(MIB):
                return False
    return True


def unpack(archive: bytes, target: Path, policy: Policy = ON_HOST, piece: int = 1000) -> None:
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with Unpacker(directory, policy) as unpacker:
            for start in range(0, len(archive), piece):
                unpacker.feed(archive[start : start + piece])
            unpacker.close()
    finally:
        os.close(directory)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


@pytest.fixture(params=SHAPES)
def sparse(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[int]]:
    size, places = SHAPES[request.param]
    (tmp_path / "source/sub").mkdir(parents=True)
    make(tmp_path / "source/sub/disk \xff.img", size, places)
    return tmp_path / "source/sub/disk \xff.img", places


@pytest.mark.parametrize("policy", [IN_SANDBOX, ON_HOST])
@pytest.mark.parametrize("piece", [1, 513, 10**6])
def test_holes_travel_in_an_archive_as_holes(
    sparse: tuple[Path, list[int]], target: Path, policy: Policy, piece: int
) -> None:
    path, places = sparse
    packed = b"".join(Packer(os.fsencode(path.parents[1])).pieces())
    assert len(packed) < MIB
    unpack(packed, target, policy, piece)
    assert is_same(path, target / "sub" / path.name, places)


def test_other_tars_know_what_is_packed(sparse: tuple[Path, list[int]], target: Path) -> None:
    path, places = sparse
    packed = b"".join(Packer(os.fsencode(path.parents[1])).pieces())
    subprocess.run(["tar", "-x", "-C", target], input=packed, check=True)
    assert is_same(path, target / "sub" / path.name, places)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        member = archive.getmember(f"sub/{path.name}")
        assert member.issparse() and member.size == path.stat().st_size


def test_what_other_tars_pack_is_known(sparse: tuple[Path, list[int]], target: Path) -> None:
    path, places = sparse
    command: list[str | Path] = ["tar", "-c", "--sparse", "--format=posix", "-C", path.parents[1], "."]
    unpack(subprocess.run(command, capture_output=True, check=True).stdout, target, piece=10**6)
    assert is_same(path, target / "sub" / path.name, places)


def test_a_file_is_read_and_written_by_its_map(sparse: tuple[Path, list[int]], tmp_path: Path) -> None:
    path, places = sparse
    with path.open("rb") as file, (tmp_path / "copy").open("wb") as copy:
        file_map = map_of(file.fileno())
        assert file_map and not flaw_in(file_map) and file_map.count < MIB
        writer = MapWriter(copy.fileno(), file_map)
        for piece in read_by(file_map, file.fileno()):
            writer.write(piece)
        assert writer.left == 0
    assert is_same(path, tmp_path / "copy", places)


@pytest.mark.parametrize("content", [b"", b"x", bytes(10_000), b"x" * 10**6])
def test_a_file_without_holes_has_no_map(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        os.fsync(file.fileno())
        assert map_of(file.fileno()) is None


@pytest.mark.parametrize("path", ["/proc/self/status", "/sys/kernel/uevent_seqnum"])
def test_a_file_that_the_kernel_makes_up_has_no_map(path: str) -> None:
    with open(path, "rb") as file:
        assert map_of(file.fileno()) is None
        assert file.read(1)


def test_a_file_of_more_places_than_a_map_has_is_the_same_file(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has twice as many as are allowed, and the holes that are sent are the small ones."""
    most = 50
    monkeypatch.setattr(holes, "MAX_PLACES", most)
    (tmp_path / "source").mkdir()
    path = tmp_path / "source/many"
    with path.open("wb") as file:
        for number in range(2 * most + 3):
            file.seek((number * 4 + number % 2) * 8192)
            file.write(b"%d" % number)
        file.truncate(16 * MIB)
    with path.open("rb") as file:
        file_map = map_of(file.fileno())
    assert file_map and len(file_map.places) <= most and file_map.count < 4 * MIB
    unpack(b"".join(Packer(os.fsencode(path.parent)).pieces()), target, piece=10**6)
    assert subprocess.run(["cmp", path, target / "many"]).returncode == 0


def test_filling_holes_halves_the_places_and_loses_none() -> None:
    chosen = random.Random(7)
    places, end = [], 0
    for _ in range(1000):
        offset = end + chosen.randint(1, 10_000)
        places.append((offset, chosen.randint(1, 100)))
        end = sum(places[-1])
    filled, left = fill_smallest(places)
    assert len(left) <= len(places) // 2 + 1
    assert flaw_in(FileMap(size=end, places=left)) is None
    assert all(any(start <= offset and offset + n <= start + count for start, count in left) for offset, n in places)
    assert all(after[0] - sum(before) > filled for before, after in pairwise(left))


FLAWS = {
    "negative": FileMap(size=10, places=[(-1, 2)]),
    "nothing at all, backwards": FileMap(size=10, places=[(5, -1)]),
    "one on another": FileMap(size=10, places=[(0, 5), (4, 2)]),
    "out of order": FileMap(size=10, places=[(5, 1), (0, 1)]),
    "beyond the end": FileMap(size=10, places=[(5, 6)]),
    "too large": FileMap(size=MAX_SIZE + 1, places=[]),
    "less than nothing": FileMap(size=-1, places=[]),
    "too many": FileMap(size=10**6, places=[(2 * number, 1) for number in range(MAX_PLACES + 1)]),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_map_that_makes_no_sense_is_seen(flaw: str) -> None:
    assert flaw_in(FLAWS[flaw])


def sparse_entry(numbers: bytes, size: int, real_size: bytes = b"100000") -> bytes:
    """A sparse file as GNU tar writes it, with whatever map."""
    records = (b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.name=f", b"GNU.sparse.realsize=" + real_size)
    extended = b"".join(b"%d %b\n" % (len(record) + 4, record) for record in records)
    header = encode_entry(Entry(b"x", EntryType.FILE, len(extended)))
    header = header[:156] + b"x" + header[157:]
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    header = header[:148] + b"%06o\0 " % total + header[156:]
    return header + extended + padding(len(extended)) + encode_entry(Entry(b"f", EntryType.FILE, size)) + numbers


LIES = {
    "no map": sparse_entry(b"", 0),
    "no number": sparse_entry(b"x\n".ljust(512, b"\0"), 512),
    "no end of a number": sparse_entry(b"1" * 512, 512),
    "more places than there are": sparse_entry(b"100\n0\n1\n".ljust(1024, b"\0"), 1024),
    "more places than allowed": sparse_entry(b"9999999\n".ljust(512, b"\0"), 512),
    "more bytes than there are": sparse_entry(b"1\n0\n600\n".ljust(512, b"\0"), 1024),
    "fewer bytes than there are": sparse_entry(b"1\n0\n600\n".ljust(512, b"\0"), 2048),
    "one on another": sparse_entry(b"2\n0\n10\n5\n10\n".ljust(512, b"\0"), 532),
    "beyond the end": sparse_entry(b"1\n99999\n10\n".ljust(512, b"\0"), 522),
    "negative": sparse_entry(b"1\n-5\n10\n".ljust(512, b"\0"), 522),
    "of no size": sparse_entry(b"1\n0\n10\n".ljust(512, b"\0"), 522, b"1e99000"),
    "too large": sparse_entry(b"1\n0\n10\n".ljust(512, b"\0"), 522, b"9" * 19),
    "a number without end": sparse_entry(b"1\n0\n" + b"1" * 508, 512),
    "goes on after its end": END + b"x" * (MAX_AFTER_END + 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_archive_that_lies_about_holes_is_an_error(target: Path, lie: str) -> None:
    with pytest.raises(AtollError) as caught:
        unpack(LIES[lie] + b"x" * 4096, target, piece=10**6)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert os.listdir(target) == []


def test_extended_headers_without_an_entry_come_to_an_end() -> None:
    reader = TarReader()
    extended = encode_entry(Entry(b"n" * 200, EntryType.FILE))[:1024]
    with pytest.raises(AtollError, match="in a row"):
        for _ in range(10**6):
            for _ in reader.feed(extended):
                raise damaged("no entry was there")


def test_a_size_that_no_file_here_can_have_is_told_before_anything_is_written(target: Path) -> None:
    """16 TiB are the most that the file system has to offer; some have more, and then it is a hole."""
    entry = Entry(b"large", EntryType.FILE, 7 * 2**60, map=FileMap(size=7 * 2**60, places=[]))
    try:
        unpack(encode_entry(entry) + END, target)
    except OSError:
        assert os.listdir(target) == []
    else:
        assert (target / "large").stat().st_blocks == 0
