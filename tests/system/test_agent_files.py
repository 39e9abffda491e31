"""What the agent does with files, on an image with everything and on one with nothing but busybox."""

from __future__ import annotations

import pytest

from atoll.protocol import files
from atoll.protocol.files import FileType
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
