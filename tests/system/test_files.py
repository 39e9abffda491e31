"""Files through the SDK, both halves, against the real server and real sandboxes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.files import FileType
from atoll.server.routes.relay import BEGIN_SECONDS
from atoll.values.files import LeftOutWarning
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import RunningServer

NAMES = [
    b"with space",
    b"new\nline",
    b'quo\'te "s"',
    "grün \N{GRINNING FACE}".encode(),
    b"not utf-8 \xff\xfe",
    b"$(touch no); *?[a]",
    b"-rf",
    b"\x1b[31mred",
    b"x" * 255,
    b"\xff" * 255,
]
LARGE = bytes(range(256)) * 16_000  # 4 MB


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def half(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Half]:
    half: Half = request.param()
    yield half
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.shared_server.cache_clear()


@pytest.fixture
def sandbox(half: Half, server: RunningServer) -> Any:
    return half.get_sandbox("files", url=server.unix_url)


async def shell(half: Half, sandbox: Any, command: str) -> str:
    result = await half.run(sandbox.exec, command)
    assert result.exit_code == 0, result
    return str(result.stdout)


@pytest.mark.parametrize("content", [b"", b"x", b"\0", "grün\n".encode(), LARGE])
async def test_what_is_written_is_read_again(half: Half, sandbox: Any, content: bytes) -> None:
    written = await half.run(sandbox.write_file, "some/where/file", content, mode=0o640)
    assert (written.path, written.size, written.mode) == ("/workspace/some/where/file", len(content), 0o640)
    read = await half.run(sandbox.read_file, "some/where/file", encoding="bytes")
    assert read.content == content
    sums = await shell(half, sandbox, "sha256sum some/where/file; stat -c '%a %s' some/where/file")
    assert sums.split()[0] == hashlib.sha256(content).hexdigest()
    assert sums.split()[-2:] == ["640", str(len(content))]
    async with half.entered(sandbox.read_file_stream("some/where/file", offset=1)) as stream:
        assert b"".join([chunk async for chunk in half.iterate(stream)]) == content[1:]


@pytest.mark.parametrize("name", NAMES)
async def test_every_name_that_a_file_can_have(half: Half, sandbox: Any, tmp_path: Path, name: bytes) -> None:
    text = os.fsdecode(name)
    await half.run(sandbox.write_file, name, b"content")
    assert (await half.run(sandbox.read_file, text)).content == "content"
    assert text in await half.run(sandbox.readdir, ".")
    assert (await half.run(sandbox.stat, f"./{text}")).name == text
    await half.run(sandbox.copy_file, text, "copy")
    await half.run(sandbox.delete_file, text)
    assert not await half.run(sandbox.exists, text)
    await half.run(sandbox.rename_file, "copy", text)
    target = os.path.join(os.fsencode(tmp_path), b"down")
    await half.run(sandbox.download, text, target)
    assert Path(os.fsdecode(target)).read_bytes() == b"content"
    local = os.path.join(os.fsencode(tmp_path), name)
    Path(os.fsdecode(local)).write_bytes(b"up")
    await half.run(sandbox.upload, local, "into/")
    assert (await half.run(sandbox.read_file, b"into/" + name)).content == "up"
    assert (
        await shell(half, sandbox, "find . -mindepth 1 -maxdepth 1 -printf x") == "xx"
    )  # nothing of it was taken for anything else


async def test_a_name_that_is_too_long_is_told(half: Half, sandbox: Any) -> None:
    for call, *content in ((sandbox.write_file, b""), (sandbox.read_file,), (sandbox.mkdir,), (sandbox.stat,)):
        with pytest.raises(AtollError) as caught:
            await half.run(call, "y" * 256, *content)
        assert caught.value.code is ErrorCode.NAME_TOO_LONG


async def test_relative_paths_count_from_the_directory_of_the_session(half: Half, sandbox: Any) -> None:
    await shell(half, sandbox, "mkdir -p /tmp/a && cd /tmp/a")
    session = await half.run(sandbox.create_session, "other", cwd="/var")
    await half.run(sandbox.write_file, "one", "1")
    await half.run(session.write_file, "two", "2")
    assert await half.run(sandbox.exists, "/tmp/a/one")
    assert (await half.run(session.read_file, "/var/two")).content == "2"
    assert (await half.run(session.stat, "two")).path == "/var/two"


async def test_a_write_is_seen_as_a_whole_or_not_at_all(half: Half, sandbox: Any) -> None:
    await half.run(sandbox.write_file, "file", "before")
    pieces = iter([LARGE, b"end"])

    def watched() -> Iterator[bytes]:
        yield next(pieces)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await half.run(sandbox.write_file, "file", watched())
    assert (await half.run(sandbox.read_file, "file")).content == "before"
    with pytest.raises(ZeroDivisionError):
        async with half.entered(sandbox.open_file("file", "wb")) as file:
            await half.run(file.write, LARGE)
            assert (await half.run(sandbox.read_file, "file")).content == "before"
            raise ZeroDivisionError
    assert (await half.run(sandbox.read_file, "file")).content == "before"
    while await shell(half, sandbox, "ls -A") != "file\n":  # the agent learns of it in its own time
        pass
    async with half.entered(sandbox.open_file("file", "wb")) as file:
        await half.run(file.write, LARGE)
    assert (await half.run(sandbox.stat, "file")).size == len(LARGE)
    with pytest.raises(FileExistsError):
        async with half.entered(sandbox.open_file("file", "xb")) as file:
            await half.run(file.write, b"x")


async def test_a_sparse_file_of_4_gib_is_read_where_it_has_something(half: Half, sandbox: Any, tmp_path: Path) -> None:
    size = 4 * 2**30 + 5
    await shell(
        half, sandbox, f"truncate -s {size} sparse && printf end | dd of=sparse seek={size - 3} bs=1 conv=notrunc"
    )
    assert (await half.run(sandbox.stat, "sparse")).size == size
    assert (await half.run(sandbox.read_file, "sparse", offset=size - 3)).content == "end"
    async with half.entered(sandbox.open_file("sparse")) as file:
        assert await half.run(file.seek, -5, os.SEEK_END) == size - 5
        assert await half.run(file.read) == b"\0\0end"
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox.read_file, "sparse")
    assert caught.value.code is ErrorCode.FILE_TOO_LARGE


async def test_content_streams_through_the_server_in_constant_memory(server: RunningServer) -> None:
    sandbox, size, chunk = server.sandbox("large"), 2**29, bytes(2**20)
    await sandbox.exec("true")
    before = most = server.memory()

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal most
        for _ in range(128):
            yield chunk
            most = max(most, server.memory())

    await sandbox.write_file("zeros", pieces())
    await sandbox.exec(f"truncate -s {size} zeros")
    count = 0
    async for piece in sandbox.read_file_stream("zeros"):
        if (count + len(piece)) // 2**25 > count // 2**25:
            most = max(most, server.memory())
        count += len(piece)
    assert count == size
    assert most - before < 64 * 2**20
    await sandbox.aclose()


async def test_content_may_come_as_slowly_as_it_likes(half: Half, sandbox: Any) -> None:
    def slow() -> Iterator[bytes]:
        for number in range(3):
            yield b"%d" % number * 100_000
            time.sleep(BEGIN_SECONDS * 0.6)

    await half.run(sandbox.write_file, "slow", slow())
    found = await half.run(sandbox.read_file, "slow", encoding="bytes")
    assert found.content == b"0" * 100_000 + b"1" * 100_000 + b"2" * 100_000


async def test_what_cannot_be_copied_with_a_directory_is_told(half: Half, sandbox: Any, tmp_path: Path) -> None:
    local = tmp_path / "tree"
    (local / "sub").mkdir(parents=True)
    (local / "file").touch()
    os.mkfifo(local / "sub/fi\nfo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(local / "socket"))
    with pytest.warns(LeftOutWarning) as warned:
        await half.run(lambda: sandbox.upload(local, "tree"))
    assert len(warned) == 1
    assert str(warned[0].message).startswith(f"left out of '{local}', as no file, directory or link: ")
    assert {"'sub/fi\\nfo'", "'socket'"} == set(str(warned[0].message).partition("link: ")[2].split(", "))
    assert "src/atoll" not in warned[0].filename  # but where upload() was called
    assert [file.name for file in await half.run(sandbox.list_files, "tree", recursive=True)] == ["file", "sub"]
    await half.run(sandbox.exec, "for n in $(seq 12); do mkfifo tree/fifo-$n; done")
    with pytest.warns(LeftOutWarning, match=r"left out of 'tree', .*'fifo-\d+'.* and 2 more$") as warned:
        await half.run(lambda: sandbox.download("tree", tmp_path / "back"))
    assert "src/atoll" not in warned[0].filename
    assert sorted(os.listdir(tmp_path / "back")) == ["file", "sub"]


async def test_10_000_small_files_are_listed_copied_and_deleted(half: Half, sandbox: Any, tmp_path: Path) -> None:
    local = tmp_path / "tree"
    for number in range(100):
        directory = local / f"dir-{number:02}"
        directory.mkdir(parents=True)
        for inner in range(100):
            (directory / f"file-{inner:02}").write_bytes(b"%d" % inner)
    await half.run(sandbox.upload, local, "tree")
    found = await half.run(sandbox.list_files, "tree", recursive=True)
    assert len(found) == 10_100
    assert [file.path for file in found if file.type is FileType.FILE][:2] == [
        "/workspace/tree/dir-00/file-00",
        "/workspace/tree/dir-00/file-01",
    ]
    await half.run(sandbox.download, "tree", tmp_path / "back")
    names = {path.relative_to(local) for path in local.rglob("*")}
    assert {path.relative_to(tmp_path / "back") for path in (tmp_path / "back").rglob("*")} == names
    assert (tmp_path / "back/dir-99/file-42").read_bytes() == b"42"
    await half.run(sandbox.delete_dir, "tree")
    assert await half.run(sandbox.list_files, ".") == []


async def test_links_are_followed_by_reading_and_not_by_listing(half: Half, sandbox: Any) -> None:
    await shell(
        half, sandbox, "mkdir d; echo hi > d/file; ln -s d/file link; ln -s loop loop; ln -s . d/up; ln -s no gone"
    )
    assert (await half.run(sandbox.read_file, "link")).content == "hi\n"
    assert (await half.run(sandbox.stat, "link")).type is FileType.FILE
    link = await half.run(sandbox.stat, "link", follow_symlinks=False)
    assert (link.type, link.target) == (FileType.SYMLINK, "d/file")
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox.read_file, "loop")
    assert caught.value.code is ErrorCode.TOO_MANY_LINKS
    assert [await half.run(sandbox.exists, name) for name in ("loop", "gone", "link", "link/x")] == [
        False,
        False,
        True,
        False,
    ]
    found = await half.run(sandbox.list_files, ".", recursive=True)
    assert [file.path for file in found if file.path.startswith("/workspace/d/")] == [
        "/workspace/d/file",
        "/workspace/d/up",
    ]
    await half.run(sandbox.write_file, "link", "through")
    assert (await half.run(sandbox.read_file, "d/file")).content == "through"
    await half.run(sandbox.delete_file, "link")
    assert await half.run(sandbox.exists, "d/file")


async def test_what_is_no_file_is_told_apart(half: Half, sandbox: Any) -> None:
    await shell(half, sandbox, "mkfifo fifo; mkdir dir")
    for name, code in (
        ("fifo", ErrorCode.NOT_A_FILE),
        ("dir", ErrorCode.IS_DIRECTORY),
        ("no", ErrorCode.FILE_NOT_FOUND),
    ):
        with pytest.raises(AtollError) as caught:
            await half.run(sandbox.read_file, name)
        assert caught.value.code is code
    assert (await half.run(sandbox.stat, "fifo")).type is FileType.FIFO
    status = await half.run(sandbox.read_file, "/proc/self/status")
    assert status.content.startswith("Name:")
    assert (await half.run(sandbox.stat, "/proc/self/status")).size == 0
    assert (await half.run(sandbox.read_file, "/sys/kernel/mm/transparent_hugepage/enabled")).size
    with pytest.raises(NotADirectoryError):
        await half.run(sandbox.list_files, "/etc/os-release/x")
    with pytest.raises(IsADirectoryError):
        await half.run(sandbox.write_file, "dir", b"")
    with pytest.raises(IsADirectoryError):
        await half.run(sandbox.delete_file, "dir")
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox.write_file, "/proc/version", b"")
    assert caught.value.code in (ErrorCode.READ_ONLY, ErrorCode.PERMISSION_DENIED, ErrorCode.FILE_NOT_FOUND)


async def test_directories_are_made_moved_and_deleted(half: Half, sandbox: Any) -> None:
    made = await half.run(sandbox.mkdir, "a", mode=0o700)
    assert (made.is_directory, made.mode) == (True, 0o700)
    with pytest.raises(FileExistsError):
        await half.run(sandbox.mkdir, "a")
    with pytest.raises(FileNotFoundError):
        await half.run(sandbox.mkdir, "x/y/z")
    await half.run(sandbox.mkdir, "x/y/z", recursive=True)
    await half.run(sandbox.mkdir, "x/y/z", recursive=True)
    await half.run(sandbox.write_file, "x/y/z/file", "1")
    moved = await half.run(sandbox.move_file, "x/y", "a")
    assert moved.path == "/workspace/a/y"
    assert (await half.run(sandbox.rename_file, "a/y", "b")).path == "/workspace/b"
    assert (await half.run(sandbox.chmod, "b/z/file", 0o4755)).mode == 0o4755
    with pytest.raises(OSError, match="not empty"):
        await half.run(sandbox.delete_dir, "b", recursive=False)
    with pytest.raises(IsADirectoryError):
        await half.run(sandbox.rm, "b")
    await half.run(sandbox.rm, "b", recursive=True)
    assert await half.run(sandbox.readdir, ".") == ["a", "x"]
    await half.run(sandbox.delete_dir, "a", recursive=False)


async def test_a_directory_that_changes_while_it_is_listed(half: Half, sandbox: Any) -> None:
    await shell(half, sandbox, "mkdir busy && cd busy && touch $(seq 500); cd /workspace")
    session = await half.run(sandbox.create_session, "busy")
    changing = asyncio.create_task(
        half.run(session.exec, "cd busy; for i in $(seq 30); do touch a-$i; rm -f $i; mkdir d-$i; mv d-$i e-$i; done")
    )
    while not changing.done():
        found = await half.run(sandbox.list_files, "busy", recursive=True)
        assert len({file.path for file in found}) == len(found) >= 470
    await changing
    assert len(await half.run(sandbox.list_files, "busy")) == 500 + 30


async def test_changes_are_seen_as_they_happen(half: Half, sandbox: Any) -> None:
    await half.run(sandbox.mkdir, "watched/d", recursive=True)
    async with half.entered(sandbox.watch("watched", exclude="*.tmp")) as changes:
        await shell(
            half, sandbox, "cd watched; echo 1 > d/new; echo 1 > no.tmp; mv d/new d/old; rm d/old; mkdir e; cd .."
        )
        seen = []
        async for change in half.iterate(changes):
            seen.append((change.type.value, change.path.removeprefix("/workspace/watched/")))
            if seen[-1] == ("create", "e"):
                break
    assert seen[0] == ("create", "d/new")
    assert [one for one in seen if one[0] != "modify"][1:] == [("move", "d/old"), ("delete", "d/old"), ("create", "e")]


async def test_an_open_file_is_one_to_other_libraries(server: RunningServer, sandbox: Any, half: Half) -> None:
    if half.name == "async":
        return  # zipfile awaits nothing
    program = "import zipfile; z = zipfile.ZipFile('a.zip', 'w'); [z.writestr(f'{n}', 'x' * n) for n in range(200)]"
    await half.run(sandbox.exec, ["python3", "-c", program])

    def names() -> list[str]:
        with zipfile.ZipFile(sandbox.open_file("a.zip")) as archive:
            assert archive.read("150") == b"x" * 150
            return archive.namelist()

    assert await half.run(names) == [str(number) for number in range(200)]


async def test_over_tcp_it_is_the_same(server: RunningServer, tmp_path: Path) -> None:
    sandbox = server.sandbox("remote", tcp=True)
    (tmp_path / "file").write_bytes(LARGE)
    await sandbox.upload(tmp_path / "file", "file")
    await sandbox.download("file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == LARGE
    with pytest.raises(IsADirectoryError):
        await sandbox.write_file("/tmp", [LARGE] * 100)
    await sandbox.aclose()


async def test_a_file_goes_from_one_sandbox_to_another(half: Half, sandbox: Any, server: RunningServer) -> None:
    other = half.get_sandbox("other", url=server.unix_url)
    await half.run(sandbox.write_file, "file", LARGE)
    await half.run(other.write_file, "stream", sandbox.read_file_stream("file"))
    await half.run(other.write_file, "opened", sandbox.open_file("file"))
    for name in ("stream", "opened"):
        assert (await half.run(other.read_file, name, encoding="bytes")).content == LARGE


async def test_a_full_disk_is_told_and_leaves_nothing(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("small-disk", url=server.unix_url, limits={"disk": "64MiB"})
    with pytest.raises(OSError, match="space") as caught:
        await half.run(sandbox.write_file, "big", (os.urandom(2**20) for _ in range(200)))
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is ErrorCode.NO_SPACE
    assert await half.run(sandbox.list_files, ".", include_hidden=True) == []


async def test_a_directory_goes_in_and_out_as_it_is(half: Half, sandbox: Any, tmp_path: Path) -> None:
    local = tmp_path / "tree"
    (local / "empty").mkdir(parents=True)
    (local / "run.sh").write_text("#!/bin/sh\necho it runs\n")
    (local / "run.sh").chmod(0o755)
    (local / "link").symlink_to("run.sh")
    for name in NAMES:
        Path(os.fsdecode(os.path.join(os.fsencode(local), name))).write_bytes(name)
    seen: list[int] = []
    await half.run(sandbox.upload, local, "tree", on_progress=lambda done, total: seen.append(done))
    assert seen[-1] > 10_000
    assert await shell(half, sandbox, "tree/link") == "it runs\n"
    await half.run(sandbox.download, "tree", tmp_path / "back")
    back = tmp_path / "back"
    assert sorted(os.listdir(os.fsencode(back))) == sorted(os.listdir(os.fsencode(local)))
    assert os.readlink(back / "link") == "run.sh"
    assert (back / "run.sh").stat().st_mode & 0o777 == 0o755
    for name in NAMES:
        assert Path(os.fsdecode(os.path.join(os.fsencode(back), name))).read_bytes() == name
