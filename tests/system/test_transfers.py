"""Trees that are copied in and out of a real sandbox: what is left out, and that it is told."""

from __future__ import annotations

import csv
import inspect
import io
import subprocess
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.values.files import LeftOutWarning
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import RunningServer

PROJECT = ("app.py", "app.pyc", "keep.pyc", ".git/config", "node_modules/a/index.js", "logs/a.log", "logs/b.txt")
RULES = ["*.pyc", "!keep.pyc", "node_modules/", "/logs/*.log", ".git"]
LEFT = ["app.py", "keep.pyc", "logs", "logs/b.txt"]


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def half(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Half]:
    half: Half = request.param()
    yield half
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.shared_server.cache_clear()


@pytest.fixture
async def sandbox(half: Half, server: RunningServer) -> AsyncIterator[Any]:
    sandbox = half.get_sandbox("transfers", url=server.unix_url)
    yield sandbox
    await half.run(sandbox.destroy)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in PROJECT:
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(name)
    return tmp_path / "project"


def names_below(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


async def test_a_tree_with_a_virtual_environment_comes_home(half: Half, sandbox: Any, tmp_path: Path) -> None:
    made = await half.run(sandbox.exec, "mkdir app && python3 -m venv --without-pip app/.venv && touch app/main.py")
    assert made.success, made.stderr
    with pytest.warns(LeftOutWarning, match="a link that leads out of it: '.venv/bin/python3' to '/usr/bin/python3'"):
        await half.run(sandbox.download, "app", tmp_path / "app")
    assert (tmp_path / "app/main.py").is_file()
    assert (tmp_path / "app/.venv/pyvenv.cfg").is_file()
    assert not (tmp_path / "app/.venv/bin/python3").is_symlink()
    assert (tmp_path / "app/.venv/bin/python").is_symlink()  # to python3 beside it


async def test_an_upload_leaves_out_what_is_excluded(half: Half, sandbox: Any, project: Path) -> None:
    await half.run(sandbox.upload, project, "in", exclude=RULES)
    found = await half.run(sandbox.exec, "cd in && find . -mindepth 1 | cut -c3- | LC_ALL=C sort")
    assert found.stdout.splitlines() == LEFT


async def test_a_download_leaves_out_what_is_excluded_and_does_not_fetch_it(
    half: Half, sandbox: Any, project: Path, tmp_path: Path
) -> None:
    await half.run(sandbox.upload, project, "all")
    await half.run(sandbox.exec, "truncate -s 0 all/node_modules/big; head -c 2M /dev/urandom > all/node_modules/big")
    told: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is excluded needs no telling
        await half.run(
            sandbox.download,
            "all",
            tmp_path / "out",
            exclude=RULES,
            max_bytes="100kB",
            max_entries=5,
            on_progress=lambda done, total: told.append(done),
        )
    assert names_below(tmp_path / "out") == LEFT
    assert told[-1] < 100_000


async def test_rules_come_from_a_file_too(half: Half, sandbox: Any, project: Path, tmp_path: Path) -> None:
    rules = project / ".gitignore"
    rules.write_bytes(b"\xef\xbb\xbf# not kept\r\n*.pyc\r\n!keep.pyc\r\n\r\nnode_modules/\r\n/logs/*.log\r\n")
    await half.run(sandbox.upload, project, "in", exclude=".git", exclude_from=rules)
    await half.run(sandbox.download, "in", tmp_path / "out", exclude="logs", exclude_from=rules)
    assert names_below(tmp_path / "out") == [".gitignore", "app.py", "keep.pyc"]


async def test_what_excludes_is_what_git_would_not_keep(
    half: Half, sandbox: Any, project: Path, tmp_path: Path
) -> None:
    (project / ".git/config").unlink()
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / ".gitignore").write_text("*.pyc\nlogs/*\n!logs/b.txt\nnode_modules")
    kept = subprocess.run(
        ["git", "-C", project, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True
    ).stdout.split()
    await half.run(sandbox.upload, project, "in", exclude=[".git"], exclude_from=project / ".gitignore")
    found = await half.run(sandbox.exec, "cd in && find . -type f | cut -c3-")
    assert sorted(found.stdout.split()) == sorted(kept)


async def test_rules_have_a_bound_and_a_file_of_them_must_be_there(half: Half, sandbox: Any, project: Path) -> None:
    for options, code in (
        ({"exclude": ["a" * 4000] * 20}, ErrorCode.INVALID_REQUEST),
        ({"exclude_from": project / "no"}, ErrorCode.FILE_NOT_FOUND),
        ({"exclude_from": project}, ErrorCode.IS_DIRECTORY),
        ({"exclude": 5}, ErrorCode.INVALID_REQUEST),
    ):
        for transfer in (sandbox.upload, sandbox.download):
            with pytest.raises(AtollError) as caught:
                await half.run(transfer, project, "in", **options)
            assert caught.value.code is code


async def test_a_directory_is_copied_with_all_that_is_in_it(half: Half, sandbox: Any) -> None:
    made = await half.run(
        sandbox.exec,
        "mkdir -p from/sub && echo 1 > from/sub/file && chmod 640 from/sub/file && ln -s sub/file from/link && "
        "touch -d 2001-02-03 from/sub && mkdir from/empty && mkfifo from/fifo && ln -s from way && mkdir there",
    )
    assert made.success, made.stderr
    copied = await half.run(sandbox.copy_file, "from", "to")
    assert (copied.path, copied.type) == ("/workspace/to", "directory")
    same = await half.run(sandbox.exec, "for d in from to; do (cd $d; ls -lR --time-style=+%F; cat sub/file); done")
    listed = same.stdout.splitlines()
    assert listed[: len(listed) // 2] == listed[len(listed) // 2 :]
    assert (await half.run(sandbox.copy_file, "way", "there")).path == "/workspace/there"  # an empty one is replaced
    assert await half.run(sandbox.exists, "there/sub/file")
    for target, code in (
        ("to", ErrorCode.DIRECTORY_NOT_EMPTY),
        ("to/sub/file", ErrorCode.NOT_DIRECTORY),
        ("from/sub/inside", ErrorCode.INVALID_PATH),
        ("no/such/place", ErrorCode.FILE_NOT_FOUND),
    ):
        with pytest.raises(AtollError) as caught:
            await half.run(sandbox.copy_file, "from", target)
        assert caught.value.code is code, target
    left = await half.run(sandbox.exec, "find . -name '.atoll-*'")
    assert left.stdout == ""


async def test_a_copy_of_a_directory_that_fails_leaves_nothing(half: Half, server: RunningServer) -> None:
    small = half.get_sandbox("small", url=server.unix_url, limits={"disk": "20MiB"})
    await half.run(small.exec, "mkdir from && head -c 12M /dev/urandom > from/large; sync -f from")
    await half.run(small.exec, "mkdir /dev/shm/other && cat from/large > /dev/shm/other/large")
    with pytest.raises(OSError) as caught:
        await half.run(small.copy_file, "/dev/shm/other", "to")
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.NO_SPACE
    assert await half.run(small.readdir) == ["from"]
    await half.run(small.destroy)


async def test_what_is_appended_goes_to_the_end_of_the_same_file(half: Half, sandbox: Any) -> None:
    await half.run(sandbox.exec, "echo one > log; ln log name; exec 5<log; read line <&5")
    async with half.entered(sandbox.open_file("log", "ab")) as file:
        await half.run(file.write, b"two\n")
        assert (await half.run(sandbox.read_file, "log")).content == "one\n"  # not before the block ends
        await half.run(sandbox.exec, "echo meanwhile >> log")
    assert file.info.size == len("one\nmeanwhile\ntwo\n")
    assert (await half.run(sandbox.exec, "cat <&5; cat name")).stdout == "meanwhile\ntwo\none\nmeanwhile\ntwo\n"
    with pytest.raises(ZeroDivisionError):
        async with half.entered(sandbox.open_file("log", "ab")) as file:
            await half.run(file.write, b"nothing of this")
            raise ZeroDivisionError
    assert (await half.run(sandbox.stat, "log")).size == len("one\nmeanwhile\ntwo\n")


async def test_what_is_appended_to_nothing_makes_a_file(half: Half, sandbox: Any) -> None:
    async with half.entered(sandbox.open_file("new/log", "a")) as file:
        await half.run(file.write, "grün\n")
    assert (await half.run(sandbox.read_file, "new/log")).content == "grün\n"
    async with half.entered(sandbox.open_file("/dev/null", "ab")) as file:
        await half.run(file.write, b"nowhere")
    with pytest.raises(IsADirectoryError):
        async with half.entered(sandbox.open_file("new", "ab")) as file:
            await half.run(file.write, b"x")


async def test_what_cannot_be_appended_as_a_whole_is_taken_back(half: Half, server: RunningServer) -> None:
    small = half.get_sandbox("small", url=server.unix_url, limits={"disk": "40MiB"})
    await half.run(small.exec, "echo 1 > log; head -c 20M /dev/urandom > ballast; sync -f ballast")
    with pytest.raises(OSError) as caught:
        async with half.entered(small.open_file("log", "ab")) as file:
            await half.run(file.write, bytes(range(256)) * 48_000)
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.NO_SPACE
    assert (await half.run(small.read_file, "log")).content == "1\n"
    await half.run(small.destroy)


async def test_text_is_read_and_written_as_text(half: Half, sandbox: Any) -> None:
    async with half.entered(sandbox.open_file("a.txt", "w")) as file:
        assert await half.run(file.write, "grün\n") == 5
        await half.run(file.writelines, ["zwei\n", "drei"])
        assert (file.name, file.mode, file.encoding, file.closed) == ("a.txt", "w", "utf-8", False)
    assert file.closed and file.info.size == 15
    async with half.entered(sandbox.open_file("a.txt", "r")) as file:
        assert await half.run(file.read, 2) == "gr"
        assert await half.run(file.readline) == "ün\n"
        assert [line async for line in half.iterate(file)] == ["zwei\n", "drei"]
        assert await half.run(file.read) == ""
        await half.run(file.seek, 0)
        assert await half.run(file.readlines) == ["grün\n", "zwei\n", "drei"]
    with pytest.raises(FileExistsError):
        async with half.entered(sandbox.open_file("a.txt", "x")) as file:
            await half.run(file.write, "x")
    await half.run(sandbox.write_file, "other", "ä\r\nb\rc\u2028d".encode("utf-16"))
    async with half.entered(sandbox.open_file("other", "r", encoding="utf-16")) as file:
        assert await half.run(file.readlines) == ["ä\n", "b\n", "c\u2028d"]
    async with half.entered(sandbox.open_file("other", "r", encoding="utf-16", newline="")) as file:
        assert await half.run(file.read) == "ä\r\nb\rc\u2028d"
    await half.run(sandbox.write_file, "bad", b"a\xff\xc3")
    async with half.entered(sandbox.open_file("bad", "r", errors="replace")) as file:
        assert await half.run(file.read) == "a\ufffd\ufffd"
    with pytest.raises(UnicodeDecodeError):
        async with half.entered(sandbox.open_file("bad", "r")) as file:
            await half.run(file.read)
    with pytest.raises(ValueError, match="cannot be written as ascii"):
        async with half.entered(sandbox.open_file("never", "w", encoding="ascii")) as file:
            await half.run(file.write, "grün")
    assert not await half.run(sandbox.exists, "never")


async def test_characters_that_come_in_pieces_are_whole(half: Half, sandbox: Any) -> None:
    text = "äöü€😀\n" * 100_000
    async with half.entered(sandbox.open_file("long", "w")) as file:
        for start in range(0, len(text), 99_991):
            await half.run(file.write, text[start : start + 99_991])
    async with half.entered(sandbox.open_file("long", "r")) as file:
        pieces = []
        while piece := await half.run(file.read, 77_777):
            pieces.append(piece)
    assert "".join(pieces) == text


async def test_a_list_is_of_the_sessions_directory_and_counts_from_there(half: Half, sandbox: Any) -> None:
    await half.run(sandbox.exec, "mkdir -p here/sub && touch here/sub/file here/.hidden && cd here")
    found = await half.run(sandbox.list_files, recursive=True)
    assert [(file.relative_path, file.path) for file in found] == [
        ("sub", "/workspace/here/sub"),
        ("sub/file", "/workspace/here/sub/file"),
    ]
    assert await half.run(sandbox.readdir) == [".hidden", "sub"]
    await half.run(sandbox.exec, "cd /workspace && ln -s here link")
    linked = await half.run(sandbox.list_files, "link/sub/")
    assert [file.relative_path for file in linked] == ["file"]
    assert "workspace" in [file.relative_path for file in await half.run(sandbox.list_files, "/")]
    told = await half.run(sandbox.stat, "here/sub/file")
    assert (told.relative_path, told == found[1], hash(told) == hash(found[1])) == ("file", True, True)


async def test_a_stream_says_what_it_is(half: Half, sandbox: Any) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    for name, content, kind, is_binary in (
        ("picture", png, "image/png", True),
        ("a.py", b"print(1)\n", "text/x-python", False),
        ("plain", "grün\n".encode() * 100_000, "text/plain", False),
        ("nothing", b"", "inode/x-empty", False),
    ):
        await half.run(sandbox.write_file, name, content)
        async with half.entered(sandbox.read_file_stream(name)) as stream:
            assert (stream.mime_type, stream.is_binary, stream.info.size) == (kind, is_binary, len(content))
            assert b"".join([piece async for piece in half.iterate(stream)]) == content
        assert (await half.run(sandbox.read_file, name)).mime_type == kind


async def test_content_comes_from_another_file(half: Half, sandbox: Any) -> None:
    """A stream is an iterable of bytes, which in the async half is awaited."""
    await half.run(sandbox.write_file, "a", b"x" * 1_000_000)
    await half.run(sandbox.write_file, "b", sandbox.read_file_stream("a"))
    assert (await half.run(sandbox.stat, "b")).size == 1_000_000


async def test_an_open_file_says_what_it_cannot_do(half: Half, sandbox: Any) -> None:
    await half.run(sandbox.write_file, "a", "x")
    reader, writer = sandbox.open_file("a"), sandbox.open_file("b", "wb")
    for use, arguments in (
        (reader.write, (b"x",)),
        (reader.truncate, ()),
        (reader.fileno, ()),
        (writer.read, ()),
        (writer.read1, ()),
        (writer.seek, (0,)),
        (writer.truncate, ()),
        (writer.fileno, ()),
    ):
        with pytest.raises(io.UnsupportedOperation) as caught:
            outcome = use(*arguments)
            if inspect.isawaitable(outcome):
                await outcome
        assert isinstance(caught.value, AtollError)
        assert caught.value.code is ErrorCode.UNSUPPORTED_OPERATION and caught.value.filename in ("a", "b")
    assert not reader.isatty() and not writer.isatty()


def test_python_makes_text_of_an_open_file(server: RunningServer) -> None:
    sandbox = atoll.get_sandbox("wrapped", url=server.unix_url)
    with io.TextIOWrapper(sandbox.open_file("a.csv", "wb"), encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["a", "grün"], [1, 2]])
    with io.TextIOWrapper(sandbox.open_file("a.csv"), encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["a", "grün"], ["1", "2"]]
    sandbox.destroy()
    sandbox.close()
