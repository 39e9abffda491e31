"""What the agent does with files, on an image with everything and on one with nothing but busybox."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from atoll.protocol import files
from atoll.protocol.files import FileChange, FileType
from atoll.protocol.frames import FrameKind
from atoll.supervisor.agent_link import AgentConnection
from tests.conftest import Box
from tests.system.file_calls import FileCalls


@pytest.fixture
def calls(box: Box) -> FileCalls:
    return FileCalls(box.link)


@pytest.fixture
def host_calls(host_box: Box) -> FileCalls:
    return FileCalls(host_box.link)


@pytest.mark.parametrize("size", [0, 1, 1000, 65_536, 2**20 - 1, 2**20, 5 * 2**20 + 3])
async def test_what_is_written_is_read_back_byte_for_byte(calls: FileCalls, size: int) -> None:
    content = (bytes(range(256)) * (size // 256 + 1))[:size]
    info = await calls.write(b"/tmp/file", content)
    assert (info.size, info.type, info.mode, info.raw_path) == (size, FileType.FILE, 0o644, b"/tmp/file")
    assert await calls.read(b"/tmp/file") == content
    assert (await calls.stat(b"/tmp/file")).size == size


async def test_entries_are_listed_sorted_with_what_they_are(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/d/sub; cd /tmp/d; ln -s nowhere link; mkfifo pipe; touch file .hidden sub/deep")
    listed = await calls.entries(b"/tmp/d")
    assert [(info.name, info.type, info.target) for info in listed] == [
        ("file", FileType.FILE, None),
        ("link", FileType.SYMLINK, "nowhere"),
        ("pipe", FileType.FIFO, None),
        ("sub", FileType.DIRECTORY, None),
    ]
    everything = await calls.names(b"/tmp/d/", recursive=True, include_hidden=True)
    assert everything == [b".hidden", b"file", b"link", b"pipe", b"sub", b"sub/deep"]


async def test_a_directory_goes_in_and_out_as_an_archive(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/d/sub; cd /tmp/d; ln -s sub link; mkfifo pipe; echo x >sub/file; chmod 750 sub/file")
    *data, done = await calls.ask(files.PackFiles(path=b"/tmp/d"))
    assert files.decode_file_done(done.payload).count == 3
    archive = b"".join(frame.payload for frame in data)
    assert (await calls.done(files.UnpackFiles(path=b"/tmp/made/here"), archive)).count == 3
    assert await box.text("cd /tmp/made/here; cat link/file; stat -c %a sub/file; ls") == "x\n750\nlink\nsub"


class Watch:
    """Changes of a watched directory, one after the other."""

    def __init__(self, connection: AgentConnection) -> None:
        self._connection = connection
        self._changes: deque[FileChange] = deque()

    async def next(self) -> tuple[str, str, str | None]:
        while not self._changes:
            frame = await self._connection.next_frame()
            assert frame.kind is FrameKind.EVENT, frame
            self._changes.extend(files.decode_file_changes(frame.payload).changes)
        change = self._changes.popleft()
        return change.type.value, change.path, change.old_path


@asynccontextmanager
async def watching(calls: FileCalls, path: bytes, **options: Any) -> AsyncIterator[Watch]:
    async with calls.link.operation(files.WatchFiles(path=path, **options)) as connection:
        frame = await connection.next_frame()
        assert files.decode_file_changes(frame.payload).changes == []
        yield Watch(connection)


async def test_changes_are_told_as_they_happen(calls: FileCalls, box: Box) -> None:
    await box.text("mkdir -p /tmp/w/sub")
    async with watching(calls, b"/tmp/w") as watch:
        await box.text("echo x >/tmp/w/sub/file")
        assert await watch.next() == ("create", "/tmp/w/sub/file", None)
        await box.text("for i in 1 2 3 4 5; do echo $i >>/tmp/w/sub/file; done; rm /tmp/w/sub/file")
        assert await watch.next() == ("modify", "/tmp/w/sub/file", None)
        assert await watch.next() == ("delete", "/tmp/w/sub/file", None)
        await box.text("touch /tmp/w/a; mv /tmp/w/a /tmp/w/sub/b")
        assert await watch.next() == ("create", "/tmp/w/a", None)
        assert await watch.next() == ("move", "/tmp/w/sub/b", "/tmp/w/a")
        await calls.write(b"/tmp/w/sub/b", b"new")
        assert await watch.next() == ("modify", "/tmp/w/sub/b", None)
