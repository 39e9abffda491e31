"""Downloads in the SDK, from an agent that tells the truth and from one that does not: bounds, holes, nothing left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from atoll.archives.tar import END, Entry, EntryType, encode_entry, padding
from atoll.client import open_files as async_open_files
from atoll.client_sync import open_files as sync_open_files
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.file_maps import FileMap
from atoll.protocol.files import FileDone, FileType, PackFiles, ReadFile, StatFile, WriteFile
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import encode_message
from atoll.protocol.transfer_bounds import Bounds
from tests.client.halves import Half
from tests.client.peers import ContractServer, Conversation
from tests.client.test_files import FileAgent, info, sandbox_of

EXBIBYTE = 2**60


class ToldAgent:
    """Has one file or directory, and says of it whatever it is told to say."""

    def __init__(self, *frames: tuple[FrameKind, bytes], is_directory: bool = False, size: int = 0) -> None:
        self.frames = frames
        self.info = info("/workspace/a", size, type=FileType.DIRECTORY if is_directory else FileType.FILE)
        self.calls: list[Any] = []

    def __call__(self, conversation: Conversation) -> None:
        self.calls.append(conversation.call)
        if isinstance(conversation.call, StatFile):
            conversation.answer(self.info)
            return
        if isinstance(conversation.call, ReadFile):
            conversation.send(FrameKind.EVENT, encode_message(self.info))
        for kind, payload in self.frames:
            conversation.send(kind, payload)
        conversation.answer(FileDone())


def holes(size: int, *places: tuple[int, int]) -> tuple[FrameKind, bytes]:
    return FrameKind.EVENT, encode_message(FileMap(size=size, places=list(places)))


def data(content: bytes) -> tuple[FrameKind, bytes]:
    return FrameKind.DATA, content


def left(tmp_path: Path) -> list[str]:
    return sorted(name for name in os.listdir(tmp_path) if name != "server.sock")


async def test_a_file_with_holes_comes_with_holes(half: Half, stub: ContractServer, tmp_path: Path) -> None:
    stub.on_call = agent = ToldAgent(holes(2**36, (0, 2), (2**35, 3)), data(b"ab"), data(b"cde"), size=2**36)
    seen: list[tuple[int, int | None]] = []
    await half.run(
        sandbox_of(half, stub).download, "a", tmp_path / "b", on_progress=lambda *numbers: seen.append(numbers)
    )
    assert (tmp_path / "b").stat().st_size == 2**36
    assert (tmp_path / "b").stat().st_blocks * 512 < 2**20
    with (tmp_path / "b").open("rb") as file:
        assert file.read(3) == b"ab\0"
        file.seek(2**35)
        assert file.read(4) == b"cde\0"
    assert seen[-1] == (5, 5)
    assert agent.calls[1] == ReadFile(path=b"a", session_id="default", holes=True, max_bytes=32 * 2**30)


async def test_a_local_file_with_holes_goes_without_them(half: Half, stub: ContractServer, tmp_path: Path) -> None:
    stub.on_call = agent = FileAgent()
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"begin")
        file.truncate(2**36)
    seen: list[tuple[int, int | None]] = []
    await half.run(
        sandbox_of(half, stub).upload, tmp_path / "sparse", "a", on_progress=lambda *numbers: seen.append(numbers)
    )
    (call,) = agent.calls
    assert isinstance(call, WriteFile) and call.map and call.map.size == 2**36
    assert agent.content == b"begin".ljust(call.map.count, b"\0") and call.map.count < 2**20
    assert seen[-1] == (call.map.count, call.map.count)


LIES = {
    "a map with a flaw": ToldAgent(holes(10, (5, 6)), data(b"123456")),
    "a map of a negative size": ToldAgent(holes(-1)),
    "no map": ToldAgent((FrameKind.EVENT, b"nonsense")),
    "a map after some bytes": ToldAgent(data(b"1"), holes(10, (5, 1))),
    "two maps": ToldAgent(holes(10, (5, 1)), holes(10, (5, 1)), data(b"1")),
    "more than its map says": ToldAgent(holes(10, (5, 1)), data(b"12")),
    "less than its map says": ToldAgent(holes(10, (5, 2)), data(b"1")),
    "a directory with a map": ToldAgent(holes(10, (5, 2)), data(b"1"), is_directory=True),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_agent_that_lies_about_holes_leaves_nothing(
    half: Half, stub: ContractServer, tmp_path: Path, lie: str
) -> None:
    stub.on_call = LIES[lie]
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox_of(half, stub).download, "a", tmp_path / "b")
    assert caught.value.code is ErrorCode.AGENT_MISBEHAVED
    assert left(tmp_path) == []


def file_entry(name: bytes, size: int = 0) -> bytes:
    return encode_entry(Entry(name, EntryType.FILE, size)) + b"x" * size + padding(size)


ENTRIES = [file_entry(b"sub/%d" % number, 1000) for number in range(10)]
FLOODS: dict[str, tuple[dict[str, int], ToldAgent]] = {
    "bytes of a file": ({"max_bytes": 3000}, ToldAgent(*[data(b"x" * 1000)] * 4)),
    "bytes by a map": ({"max_bytes": 3000}, ToldAgent(holes(2**40, (2**39, 4000)), *[data(b"x" * 1000)] * 4)),
    "bytes of a tree": ({"max_bytes": 3000}, ToldAgent(data(b"".join(ENTRIES) + END), is_directory=True)),
    "entries": ({"max_entries": 3}, ToldAgent(data(b"".join(ENTRIES) + END), is_directory=True)),
    "names for nothing": (
        {"max_entries": 3},
        ToldAgent(data(encode_entry(Entry(b".", EntryType.DIRECTORY)) * 4 + END), is_directory=True),
    ),
    "depth": ({"max_depth": 3}, ToldAgent(data(file_entry(b"a/b/c/d") + END), is_directory=True)),
    "a size that is only claimed": (
        {"max_bytes": 2**40},
        ToldAgent(data(encode_entry(Entry(b"a", EntryType.FILE, EXBIBYTE))), is_directory=True),
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_the_near_end_counts_too(half: Half, stub: ContractServer, tmp_path: Path, flood: str) -> None:
    """The agent was told of the bound, and sends all the same."""
    bounds, stub.on_call = FLOODS[flood]
    ((bound, limit),) = bounds.items()
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox_of(half, stub).download, "a", tmp_path / "b", **bounds)
    assert caught.value.code is ErrorCode.DOWNLOAD_TOO_LARGE
    assert (caught.value.context["bound"], caught.value.context["limit"]) == (bound, limit)
    assert bound in caught.value.remedy
    assert left(tmp_path) == []


async def test_what_is_added_to_a_directory_is_whole_files(half: Half, stub: ContractServer, tmp_path: Path) -> None:
    stub.on_call = ToldAgent(data(ENTRIES[0] + ENTRIES[1][:1000]), is_directory=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/kept").touch()
    with pytest.raises(AtollError):
        await half.run(sandbox_of(half, stub).download, "a", tmp_path / "b")
    assert left(tmp_path / "b") == ["kept", "sub"]
    assert left(tmp_path / "b/sub") == ["0"]


async def test_a_size_that_no_file_here_can_have_is_told_at_once(
    half: Half, stub: ContractServer, tmp_path: Path
) -> None:
    stub.on_call = ToldAgent(holes(7 * EXBIBYTE), size=7 * EXBIBYTE)
    if os.statvfs(tmp_path).f_frsize and not can_have(tmp_path, 7 * EXBIBYTE):
        with pytest.raises(OSError, match="on this machine cannot be used") as caught:
            await half.run(sandbox_of(half, stub).download, "a", tmp_path / "b")
        assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.FILE_TOO_LARGE
        assert left(tmp_path) == []
    else:
        await half.run(sandbox_of(half, stub).download, "a", tmp_path / "b")
        assert (tmp_path / "b").stat().st_blocks == 0


def can_have(directory: Path, size: int) -> bool:
    with (directory / "probe").open("wb") as file:
        try:
            file.truncate(size)
        except OSError:
            return False
        finally:
            (directory / "probe").unlink()
    return True


async def test_the_bounds_travel_with_the_call(half: Half, stub: ContractServer, tmp_path: Path) -> None:
    stub.on_call = agent = ToldAgent(data(END), is_directory=True)
    download = sandbox_of(half, stub).download
    await half.run(download, "a", tmp_path / "b", max_bytes="1KiB", max_entries=2, max_depth=3)
    await half.run(download, "a", tmp_path / "b", max_bytes=None, max_entries=None, max_depth=None)
    packed = [call.bounds for call in agent.calls if isinstance(call, PackFiles)]
    assert packed == [Bounds(max_bytes=1024, max_entries=2, max_depth=3), Bounds()]


@pytest.mark.parametrize("options", [{"max_bytes": -1}, {"max_entries": True}, {"max_depth": "deep"}])
async def test_what_is_no_bound_is_told_before_anything_is_asked(
    half: Half, stub: ContractServer, tmp_path: Path, options: dict[str, Any]
) -> None:
    stub.on_call = agent = ToldAgent()
    with pytest.raises(ValueError, match="is not a bound"):
        await half.run(sandbox_of(half, stub).download, "a", tmp_path / "b", **options)
    assert agent.calls == []


@pytest.mark.parametrize("way", ["read_file", "read_file of a part", "read", "read so many", "readlines", "readline"])
async def test_more_of_a_file_than_fits_into_memory_is_told_at_once(
    half: Half, stub: ContractServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for module in (async_open_files, sync_open_files):
        monkeypatch.setattr(module, "MAX_HELD", 1000)
    lies = way in ("readline", "readlines")  # these go by what they have, not by what is said
    size = 0 if lies else 7 * EXBIBYTE
    stub.on_call = ToldAgent(*[data(b"x" * 500)] * 3 if lies else [], size=size)
    sandbox = sandbox_of(half, stub)
    with pytest.raises(OSError, match="keeps them in memory") as caught:
        match way:
            case "read_file":
                await half.run(sandbox.read_file, "a")
            case "read_file of a part":
                await half.run(sandbox.read_file, "a", offset=5, length=6 * EXBIBYTE)
            case _:
                arguments = (5 * EXBIBYTE,) if way == "read so many" else ()
                async with half.entered(sandbox.open_file("a")) as file:
                    await half.run(getattr(file, way.split()[0]), *arguments)
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.FILE_TOO_LARGE
    assert caught.value.remedy
