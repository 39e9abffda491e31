"""Archives: what is packed comes out the same, and nothing that hostile ones try gets out of the directory."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.agent.files.trees import delete_tree
from atoll.archives.descent import descend
from atoll.archives.packing import Packer
from atoll.archives.tar import BLOCK, END, MAX_EXTENDED, Entry, EntryType, TarReader, encode_entry, padding
from atoll.archives.unpacking import IN_SANDBOX, ON_HOST, Policy, Unpacker, stays_inside
from atoll.protocol.errors import AtollError, ErrorCode

POLICIES = (IN_SANDBOX, ON_HOST)
ODD_NAMES = [b"a b", b"line\nbreak", b"'\"", "🦀".encode(), b"\xff\xfe", b"n" * 255, b"-rf", b"*", b"\\", b"..."]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A directory, beside something that must not be touched."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


@pytest.fixture(autouse=True)
def nothing_outside_is_touched(tmp_path: Path) -> Iterator[None]:
    yield
    if (tmp_path / "outside").exists():
        assert (tmp_path / "outside/secret").read_text() == "secret"
        assert os.listdir(tmp_path / "outside") == ["secret"]
        assert set(os.listdir(tmp_path)) <= {"outside", "target", "source"}


def unpack(archive: bytes, target: Path, policy: Policy = ON_HOST, piece: int = 1000) -> int:
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with Unpacker(directory, policy) as unpacker:
            for start in range(0, len(archive), piece):
                unpacker.feed(archive[start : start + piece])
            unpacker.close()
            return unpacker.count
    finally:
        os.close(directory)


def pack(path: Path) -> bytes:
    return b"".join(Packer(os.fsencode(path)).pieces())


def archive(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Made by somebody else's code."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for entry in entries:
            info, content = entry if isinstance(entry, tuple) else (entry, b"")
            info.size = len(content) or info.size
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def file(name: str, content: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return special(name, tarfile.REGTYPE, **fields), content


def special(name: str, kind: bytes, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def link(name: str, target: str) -> tarfile.TarInfo:
    return special(name, tarfile.SYMTYPE, linkname=target)


def naive(data: bytes, target: Path) -> None:
    """What somebody who trusts an archive would do."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            tar.extract(member, target, filter="fully_trusted") if hasattr(tarfile, "data_filter") else tar.extract(
                member, target
            )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("piece", [1, 511, 512, 513, 10**6])
def test_a_tree_comes_out_as_it_went_in(tmp_path: Path, target: Path, policy: Policy, piece: int) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    for number, name in enumerate(ODD_NAMES):
        Path(os.fsdecode(os.fsencode(source / "deep") + b"/" + name)).write_bytes(b"%d" % number * 300)
    (source / "empty").touch()
    (source / "block").write_bytes(b"b" * BLOCK)
    (source / "program").write_text("#!")
    (source / "program").chmod(0o751)
    os.utime(source / "program", (10**9, 10**9))
    (source / "deep/er/link").symlink_to("../../empty")
    (source / "deep/er/long").symlink_to("l/" * 100 + "x")
    os.mkfifo(source / "pipe")
    assert unpack(pack(source), target, policy, piece) == len(ODD_NAMES) + 7
    assert sorted(os.listdir(os.fsencode(target / "deep"))) == sorted([*ODD_NAMES, b"er"])
    for number, name in enumerate(ODD_NAMES):
        assert Path(os.fsdecode(os.fsencode(target / "deep") + b"/" + name)).read_bytes() == b"%d" % number * 300
    assert (target / "empty").read_bytes() == b"" and (target / "block").read_bytes() == b"b" * BLOCK
    assert stat.S_IMODE((target / "program").stat().st_mode) == 0o751
    assert (target / "program").stat().st_mtime == 10**9
    assert os.readlink(target / "deep/er/link") == "../../empty"
    assert os.readlink(target / "deep/er/long") == "l/" * 100 + "x"
    assert not (target / "pipe").exists()


def test_a_file_is_an_archive_of_one_entry(tmp_path: Path, target: Path) -> None:
    (tmp_path / "source").write_bytes(b"content")
    assert unpack(pack(tmp_path / "source"), target) == 1
    assert (target / "source").read_bytes() == b"content"


def test_other_programs_read_what_is_packed(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    (source / ("d" * 200)).mkdir(parents=True)
    (source / ("d" * 200) / ("f" * 200)).write_text("deep")
    with tarfile.open(fileobj=io.BytesIO(pack(source))) as tar:
        assert tar.getnames() == [".", "d" * 200, "d" * 200 + "/" + "f" * 200]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_other_programs_pack_is_read(target: Path, form: int) -> None:
    long = "d" * 90 + "/" + "f" * 99
    made = archive(file(long, b"deep", mtime=1), file("short", b"flat", mode=0o600), link("link", "short"), form=form)
    assert unpack(made, target) == 3
    assert (target / long).read_bytes() == b"deep" and (target / "link").read_bytes() == b"flat"


def test_names_longer_than_a_header_of_any_form_are_read(target: Path) -> None:
    long = "/".join(["d" * 200] * 4)
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert unpack(archive(file(long, b"deep"), form=form), target) == 1
        assert (target / long).read_bytes() == b"deep"


def test_a_tree_too_deep_for_any_path_is_packed(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    here = os.open(tmp_path / "source", os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    packer = Packer(os.fsencode(tmp_path / "source"))
    assert sum(map(len, packer.pieces())) > 10**6
    assert packer.count == 1000
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        delete_tree(directory, b"source", b"source")  # pytest could not
    finally:
        os.close(directory)


def test_a_size_beyond_octal_digits_is_told_and_read() -> None:
    header = encode_entry(Entry(b"large", EntryType.FILE, 2**40))
    (entry,) = TarReader().feed(header)
    assert isinstance(entry, Entry) and entry.size == 2**40
    with tarfile.open(fileobj=io.BytesIO(header)) as tar:
        member = tar.next()
    assert member and member.size == 2**40


def test_a_file_that_shrinks_while_it_is_packed_is_filled_up(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "log").write_bytes(b"x" * 10**6)
    pieces = Packer(os.fsencode(source)).pieces()
    first = next(pieces)
    (source / "log").write_bytes(b"")
    assert unpack(first + b"".join(pieces), target) == 1
    assert (target / "log").stat().st_size == 10**6


# Attacks. Where it is cheap, the same archive is shown to fool somebody who trusts it.


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["../outside/new", "a/../../outside/new", "..", "a/.."])
def test_a_name_that_goes_up_is_refused(target: Path, policy: Policy, name: str) -> None:
    with pytest.raises(AtollError, match="leads out") as caught:
        unpack(archive(file("before"), file(name)), target, policy)
    assert caught.value.code is ErrorCode.UNSAFE_ARCHIVE and caught.value.context["name"] == name
    assert (target / "before").read_bytes() == b"x"


@pytest.mark.parametrize("policy", POLICIES)
def test_an_absolute_name_is_refused(target: Path, policy: Policy) -> None:
    made = archive(file(str(target.parent / "outside/new")))
    with pytest.raises(AtollError, match="absolute"):
        unpack(made, target, policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_nothing_is_made_through_a_link_of_the_archive(target: Path, policy: Policy, kind: bytes) -> None:
    made = archive(special("d", tarfile.DIRTYPE), link("d/out", "."), special("d/out/new", kind, linkname="x"))
    with pytest.raises(AtollError, match="through a link"):
        unpack(made, target, policy)
    assert os.listdir(target / "d") == ["out"]


def test_a_link_out_and_a_file_through_it_fool_the_trusting(target: Path, tmp_path: Path) -> None:
    made = archive(link("out", "../outside"), file("out/new"))
    unpack(made, target, ON_HOST)
    assert not (target / "out").is_symlink() and os.listdir(target / "out") == ["new"]
    assert os.listdir(tmp_path / "outside") == ["secret"]
    shutil.rmtree(target / "out")
    with pytest.raises(AtollError, match="through a link"):
        unpack(made, target, IN_SANDBOX)
    (target / "out").unlink()
    naive(made, target)
    (tmp_path / "outside/new").unlink()  # which raises unless it was fooled


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_made_through_a_link_that_was_there_before(target: Path, policy: Policy) -> None:
    (target / "there").symlink_to("../outside")
    for entry in (file("there/new"), special("there", tarfile.DIRTYPE), special("there/d", tarfile.DIRTYPE)):
        with pytest.raises(AtollError, match="through a link"):
            unpack(archive(entry), target, policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_file_in_the_place_of_a_link_replaces_the_link(target: Path, policy: Policy) -> None:
    (target / "there").symlink_to("../outside/secret")
    assert unpack(archive(file("there", b"new")), target, policy) == 1
    assert not (target / "there").is_symlink() and (target / "there").read_bytes() == b"new"


def test_a_link_of_the_archive_is_replaced_by_a_file_of_the_same_name(target: Path, tmp_path: Path) -> None:
    made = archive(link("x", "../outside/secret"), file("x", b"overwritten"))
    assert unpack(made, target, IN_SANDBOX) == 2
    assert (target / "x").read_bytes() == b"overwritten"


def test_a_file_with_another_name_elsewhere_is_not_written_into(target: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "outside/secret", target / "there")
    assert unpack(archive(file("there", b"new")), target) == 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Z"]
)
def test_what_is_neither_file_nor_directory_nor_link_is_refused(target: Path, policy: Policy, kind: bytes) -> None:
    with pytest.raises(AtollError) as caught:
        unpack(archive(special("odd", kind, linkname="../outside/secret", devmajor=1, devminor=3)), target, policy)
    assert caught.value.code is ErrorCode.UNSAFE_ARCHIVE
    assert os.listdir(target) == []


@pytest.mark.parametrize(
    "link_target", ["/etc/passwd", "../outside", "d/../../outside", "d/up/../outside", "..", "./../x", "d//../.."]
)
def test_a_link_that_leads_out_is_left_out_on_the_host_and_told(target: Path, link_target: str) -> None:
    with Unpacker(descend(os.fsencode(target)), ON_HOST) as unpacker:
        unpacker.feed(archive(link("l", link_target), file("a")))
        unpacker.close()
    assert (unpacker.count, unpacker.left_out) == (1, 1)
    assert unpacker.links_left_out == [(b"l", link_target.encode())]
    assert os.listdir(target) == ["a"]
    assert unpack(archive(link("l", link_target)), target, IN_SANDBOX) == 1


def test_links_that_lead_out_only_together_are_left_out(target: Path) -> None:
    """Each step is inside by its letters; the first brings the second up to where its ".." leads out."""
    made = archive(special("a/b", tarfile.DIRTYPE), link("a/b/up", "../.."), link("l", "a/b/up/../outside/secret"))
    naive(made, target)
    assert (target / "l").read_text() == "secret"
    (target / "l").unlink()
    unpack(made, target, ON_HOST)
    assert not os.path.lexists(target / "l")


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b"]), max_size=6), st.integers(0, 3))
def test_a_link_that_is_kept_resolves_inside(steps: list[str], depth: int) -> None:
    if stays_inside("/".join(steps).encode(), depth=depth):
        root = "/root"
        resolved = os.path.normpath("/".join([root, *["d"] * depth, *steps]))
        assert resolved == root or resolved.startswith(f"{root}/")


def test_bits_that_make_a_program_somebody_else_stay_outside_the_host(target: Path) -> None:
    made = archive(file("program", mode=0o6755), special("d", tarfile.DIRTYPE, mode=0o7777))
    unpack(made, target, ON_HOST)
    assert stat.S_IMODE((target / "program").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o755
    unpack(made, target, IN_SANDBOX)
    assert stat.S_IMODE((target / "program").stat().st_mode) == 0o6755
    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o7777


@pytest.fixture
def private_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("private_umask")
def test_on_the_host_an_archive_gives_nobody_more_rights_than_the_user_does(target: Path) -> None:
    (target / "keys").mkdir(mode=0o750)
    (target / "keys").chmod(0o750)
    (target / "old").write_text("old")
    made = archive(
        special("keys", tarfile.DIRTYPE, mode=0o777),
        file("keys/new", b"content", mode=0o666),
        file("old", mode=0o444),
        file("program", mode=0o755),
        special("made", tarfile.DIRTYPE, mode=0o777),
    )
    unpack(made, target, ON_HOST)
    names = ("keys", "keys/new", "old", "program", "made")
    assert [stat.S_IMODE((target / name).stat().st_mode) for name in names] == [0o750, 0o600, 0o400, 0o700, 0o700]
    assert (target / "keys/new").read_bytes() == b"content"
    unpack(made, target, IN_SANDBOX)
    assert [stat.S_IMODE((target / name).stat().st_mode) for name in names] == [0o777, 0o666, 0o444, 0o755, 0o777]


def test_a_directory_in_the_way_of_a_file_stays(target: Path) -> None:
    (target / "d").mkdir()
    for entry in (file("d"), link("d", "x")):
        with pytest.raises(IsADirectoryError):
            unpack(archive(entry), target)
    assert (target / "d").is_dir()


def test_a_file_in_the_way_of_a_directory_is_an_error(target: Path) -> None:
    (target / "f").touch()
    with pytest.raises(NotADirectoryError):
        unpack(archive(file("f/x")), target)


def header(name: bytes = b"x", kind: bytes = b"0", size: bytes = b"00000000001\0", **_: object) -> bytes:
    """One by hand, with a right checksum."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = size.ljust(12, b"\0")
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extended(content: bytes) -> bytes:
    size = b"%011o\0" % len(content)
    return header(kind=b"x", size=size) + content + padding(len(content))


@pytest.mark.parametrize(
    "lie",
    [
        header(size=b"-0000000001"),
        header(size=b"\xff" * 12),
        header(size=b"\x80" + b"\xff" * 11),
        header(size=b"0x10"),
        header(size=b"99999999999"),
        extended(b"13 size=-100\n") + header(),
        extended(b"31 size=99999999999999999999\n") + header(),
        extended(b"5 a=b\n"),
        extended(b"99 a=b\n"),
        extended(b"x a=b\n"),
        extended(b"0 a=b\n"),
        extended(b"6 a=bc"),
        extended(b"11 path=a\0b\n"),
        header(kind=b"x", size=b"%011o\0" % (MAX_EXTENDED + 1)),
        header(kind=b"L", size=b"\x80" + (2**62).to_bytes(11, "big")),
        header(kind=b"g", size=b"%011o\0" % 2**30),
        header(kind=b"5"),
        header(kind=b"2"),
        b"x" * BLOCK,
        header()[:-1] + b"x",
        b"PK\x03\x04" + b"\0" * 1000,
    ],
    ids=lambda lie: f"{len(lie)}-{lie[156:157].hex()}",
)
def test_a_header_that_lies_is_an_error_before_anything_is_made(target: Path, lie: bytes) -> None:
    with pytest.raises(AtollError) as caught:
        unpack(lie + b"x" + padding(1) + END, target)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert os.listdir(target) == []


def test_a_sparse_file_in_extended_headers_is_refused(target: Path) -> None:
    with pytest.raises(AtollError, match="sparse"):
        unpack(extended(b"22 GNU.sparse.major=1\n") + header() + END, target)


@pytest.mark.parametrize("cut", [0, 100, 512, 600, 1024, 1535])
def test_an_archive_that_ends_in_the_middle_is_an_error(target: Path, cut: int) -> None:
    whole = archive(file("f", b"x" * 600))
    with pytest.raises(AtollError, match="ends in the middle"):
        unpack(whole[:cut], target)


def test_a_reader_holds_no_more_than_a_header_whatever_it_is_fed() -> None:
    reader = TarReader()
    for _ in range(100):
        for part in reader.feed(extended(b"%d comment=%b\n" % (60_000, b"x" * (60_000 - 15)))):
            assert isinstance(part, Entry)
    assert len(reader._held) + sum(map(len, reader._extended.values())) <= MAX_EXTENDED


def test_a_reader_keeps_nothing_of_extended_headers_that_no_entry_follows() -> None:
    reader = TarReader()
    tracemalloc.start()
    for number in range(200):
        record = b" %06d=%b\n" % (number, b"x" * 50_000)
        for _ in reader.feed(extended(b"%d%b" % (len(record) + 5, record))):
            raise AssertionError("there is no entry")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2**20


@given(st.binary(max_size=2000))
def test_noise_gives_entries_or_a_typed_error(noise: bytes) -> None:
    try:
        for _ in TarReader().feed(noise):
            pass
    except AtollError as error:
        assert error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNSAFE_ARCHIVE)


@given(st.data())
def test_a_damaged_archive_gives_entries_or_a_typed_error(data: st.DataObject) -> None:
    whole = bytearray(archive(file("f", b"x" * 600), link("l", "f"), file("n" * 150)))
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        for _ in TarReader().feed(bytes(whole)):
            pass
    except AtollError as error:
        assert error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNSAFE_ARCHIVE)


def test_an_error_of_the_file_system_is_about_the_current_entry(target: Path) -> None:
    directory = os.open(target, os.O_RDONLY)
    try:
        with Unpacker(directory, ON_HOST) as unpacker, pytest.raises(OSError, match="too long"):
            unpacker.feed(archive(file("before"), file("n" * 300)))
        assert unpacker.current == b"n" * 300
    finally:
        os.close(directory)
