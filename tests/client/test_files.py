"""Files in the SDK, against a server that follows the contract or breaks it: what is sent, returned and raised."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import io
import os
import signal
import socket
import tarfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from atoll.client import files as client_files
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.files import (
    ChangeMode,
    ChangeType,
    CopyFile,
    DeleteDirectory,
    DeleteFile,
    FileChange,
    FileChanges,
    FileDone,
    FileInfo,
    FileList,
    FileType,
    ListFiles,
    MakeDirectory,
    MoveFile,
    PackFiles,
    ReadFile,
    StatFile,
    UnpackFiles,
    WatchFiles,
    WriteFile,
)
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import encode_message
from atoll.values.files import LeftOutWarning
from tests.client.halves import AsyncHalf, Half
from tests.client.peers import ContractServer, Conversation, RawServer, reset

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
LARGE = bytes(range(256)) * 16_000  # 4 MB


def info(path: str = "/workspace/a.txt", size: int = 0, **fields: Any) -> FileInfo:
    given: dict[str, Any] = {
        "type": FileType.FILE,
        "mode": 0o644,
        "modified_at": datetime(2026, 1, 2, tzinfo=UTC),
    } | fields
    return FileInfo(raw_path=os.fsencode(path), size=size, **given)


def sandbox_of(half: Half, stub: ContractServer) -> Any:
    return half.get_sandbox("user-123", url=stub.url)


class FileAgent:
    """Keeps what is written, and hands it out again."""

    def __init__(self, content: bytes = b"", **fields: Any) -> None:
        self.content = content
        self.info = info(size=len(content), **fields)
        self.calls: list[Any] = []
        self.left = threading.Event()

    def __call__(self, conversation: Conversation) -> None:
        self.calls.append(conversation.call)
        match conversation.call:
            case WriteFile():
                self.write(conversation)
            case ReadFile(offset=offset, length=length):
                conversation.send(FrameKind.EVENT, encode_message(self.info))
                end = len(self.content) if length is None else offset + length
                for start in range(offset, min(end, len(self.content)), 100_000):
                    conversation.send(FrameKind.DATA, self.content[start : min(end, start + 100_000)])
                conversation.answer(FileDone())
            case DeleteFile() | DeleteDirectory():
                conversation.answer(FileDone(count=1))
            case _:
                conversation.answer(self.info)

    def write(self, conversation: Conversation) -> None:
        try:
            content = b"".join(conversation.input())
        except (OSError, ValueError):
            self.left.set()
            return
        self.content = content
        conversation.answer(info(size=len(self.content)))


@pytest.fixture
def agent(stub: ContractServer) -> FileAgent:
    agent = FileAgent()
    stub.on_call = agent
    return agent


def opened(path: Path, content: bytes, mode: str) -> Any:
    path.write_bytes(content)
    return path.open(mode)


# Writing


@pytest.mark.parametrize(
    "content",
    [b"", b"x", "grün", bytearray(b"ab"), memoryview(b"abc"), LARGE, LARGE.decode("latin-1")],
    ids=lambda value: type(value).__name__,
)
async def test_what_is_written_arrives_as_it_is(
    half: Half, stub: ContractServer, agent: FileAgent, content: Any
) -> None:
    written = await half.run(sandbox_of(half, stub).write_file, "dir/a.txt", content, mode=0o600, sync=True)
    expected = content.encode() if isinstance(content, str) else bytes(content)
    assert agent.content == expected
    assert agent.calls == [WriteFile(path=b"dir/a.txt", session_id="default", mode=0o600, sync=True)]
    assert (written.path, written.size, written.name) == ("/workspace/a.txt", len(expected), "a.txt")


@pytest.mark.parametrize("mode", ["rb", "r"])
async def test_a_file_object_is_written_in_pieces(
    half: Half, stub: ContractServer, agent: FileAgent, tmp_path: Path, mode: str
) -> None:
    text = ("grün\n" * 500_000).encode()
    with opened(tmp_path / "file", text, mode) as file:
        await half.run(sandbox_of(half, stub).write_file, "a", file)
    assert agent.content == text


async def test_any_iterable_of_bytes_is_written(half: Half, stub: ContractServer, agent: FileAgent) -> None:
    await half.run(sandbox_of(half, stub).write_file, "a", (b"%d\n" % number for number in range(1000)))
    assert agent.content == b"".join(b"%d\n" % number for number in range(1000))
    await half.run(sandbox_of(half, stub).write_file, "a", [b"", LARGE, b""])
    assert agent.content == LARGE
    await half.run(sandbox_of(half, stub).write_file, "a", [])
    assert agent.content == b""


async def test_what_is_iterated_asynchronously_is_written_too(stub: ContractServer, agent: FileAgent) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield LARGE

    async_half = AsyncHalf()
    await sandbox_of(async_half, stub).write_file("a", pieces())
    assert agent.content == 3 * LARGE
    async_half.server.shared_server.cache_clear()


@pytest.mark.parametrize("content", ["aGVs\nbG8=", b"aGVsbG8=", io.BytesIO(b"aGVsbG8="), ["aG", "VsbG", "8="]])
async def test_base64_is_decoded_before_it_is_sent(
    half: Half, stub: ContractServer, agent: FileAgent, content: Any
) -> None:
    if isinstance(content, io.BytesIO):
        content.seek(0)
    await half.run(sandbox_of(half, stub).write_file, "a", content, encoding="base64")
    assert agent.content == b"hello"


BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], ErrorCode]] = [
    ("write_file", ("", b""), {}, ErrorCode.INVALID_PATH),
    ("write_file", ("a\0b", b""), {}, ErrorCode.INVALID_PATH),
    ("write_file", (3, b""), {}, ErrorCode.INVALID_PATH),
    ("write_file", ("a" * 5000, b""), {}, ErrorCode.NAME_TOO_LONG),
    ("write_file", ("a", 3), {}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", None), {}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", {"a": 1}), {}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", Path("b")), {}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "\ud800"), {}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"encoding": "latin-1"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"encoding": None}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"encoding": "bytes"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"encoding": "utf-8-sig"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"encoding": "utf-8\0"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"encoding": "\udcff"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"encoding": b"utf-8"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "not base64!"), {"encoding": "base64"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "abc"), {"encoding": "base64"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "grün"), {"encoding": "base64"}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"mode": 0o10000}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"mode": -1}, ErrorCode.INVALID_REQUEST),
    ("write_file", ("a", "b"), {"mode": "644"}, ErrorCode.INVALID_REQUEST),
    ("read_file", ("",), {}, ErrorCode.INVALID_PATH),
    ("read_file", ("a",), {"encoding": "hex"}, ErrorCode.INVALID_REQUEST),
    ("read_file", ("a",), {"offset": -1}, ErrorCode.INVALID_REQUEST),
    ("read_file", ("a",), {"offset": 1.5}, ErrorCode.INVALID_REQUEST),
    ("read_file", ("a",), {"length": -1}, ErrorCode.INVALID_REQUEST),
    ("read_file", ("a",), {"length": True}, ErrorCode.INVALID_REQUEST),
    ("chmod", ("a", 0o77777), {}, ErrorCode.INVALID_REQUEST),
    ("mkdir", ("a",), {"mode": "755"}, ErrorCode.INVALID_REQUEST),
    ("rename_file", ("a", ""), {}, ErrorCode.INVALID_PATH),
    ("move_file", ("", "a"), {}, ErrorCode.INVALID_PATH),
    ("copy_file", ("a", None), {}, ErrorCode.INVALID_PATH),
    ("list_files", ("",), {}, ErrorCode.INVALID_PATH),
    ("exists", ("",), {}, ErrorCode.INVALID_PATH),
    ("upload", ("/no/such/file", "a"), {}, ErrorCode.FILE_NOT_FOUND),
    ("upload", ("/etc/hostname/x", "a"), {}, ErrorCode.NOT_DIRECTORY),
    ("upload", ("", "a"), {}, ErrorCode.INVALID_PATH),
    ("download", ("a", ""), {}, ErrorCode.INVALID_PATH),
]


@pytest.mark.parametrize(("method", "arguments", "options", "code"), BAD)
async def test_bad_input_is_a_typed_error_before_anything_is_sent(
    half: Half,
    stub: ContractServer,
    method: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    code: ErrorCode,
) -> None:
    with pytest.raises(AtollError) as caught:
        await half.run(getattr(sandbox_of(half, stub), method), *arguments, **options)
    assert caught.value.code is code
    assert caught.value.remedy
    assert caught.value.context
    assert not stub.requests


async def test_bad_arguments_of_what_is_not_awaited_are_told_at_once(half: Half, stub: ContractServer) -> None:
    sandbox = sandbox_of(half, stub)
    calls: tuple[Callable[[], object], ...] = (
        lambda: sandbox.open_file("a", "r+"),
        lambda: sandbox.open_file("a", "rb", encoding="utf-8"),
        lambda: sandbox.open_file(""),
        lambda: sandbox.read_file_stream("a", offset=-1),
        lambda: sandbox.watch(""),
        lambda: sandbox.watch("a", include=[""]),
        lambda: sandbox.watch("a", exclude=[3]),
    )
    for call in calls:
        with pytest.raises(AtollError):
            call()


async def test_a_stream_with_bad_base64_writes_nothing(half: Half, stub: ContractServer, agent: FileAgent) -> None:
    with pytest.raises(AtollError, match="not base64"):
        await half.run(sandbox_of(half, stub).write_file, "a", [LARGE.hex(), "!"], encoding="base64")
    assert await asyncio.to_thread(agent.left.wait, 60)


async def test_an_iterable_that_fails_or_is_no_bytes_writes_nothing(
    half: Half, stub: ContractServer, agent: FileAgent
) -> None:
    def failing() -> Iterator[bytes]:
        yield b"some"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await half.run(sandbox_of(half, stub).write_file, "a", failing())
    assert await asyncio.to_thread(agent.left.wait, 60)
    agent.left.clear()
    with pytest.raises(AtollError, match="cannot be written"):
        await half.run(sandbox_of(half, stub).write_file, "a", [b"some", 3])
    assert await asyncio.to_thread(agent.left.wait, 60)


async def test_a_write_that_fails_early_ends_early(half: Half, stub: ContractServer) -> None:
    """A server that answers before it has everything gets no more, whether or not it reads on."""
    made = 0

    def endless() -> Iterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield LARGE

    def full(conversation: Conversation) -> None:
        next(conversation.input())
        conversation.failed(error(ErrorCode.NO_SPACE, "no space is left", remedy="Delete something."))
        with contextlib.suppress(OSError):
            conversation.wait_for_hang_up()

    stub.on_call = full
    with pytest.raises(OSError, match="no space is left"):
        await half.run(sandbox_of(half, stub).write_file, "a", endless())
    assert made < 1000


async def test_an_agent_that_is_done_before_it_has_everything_is_not_believed(half: Half, stub: ContractServer) -> None:
    def hasty(conversation: Conversation) -> None:
        next(conversation.input())
        conversation.answer(info())
        with contextlib.suppress(OSError):
            conversation.wait_for_hang_up()

    stub.on_call = hasty
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox_of(half, stub).write_file, "a", (LARGE for _ in range(1000)))
    assert caught.value.code is ErrorCode.AGENT_MISBEHAVED


# Reading


@pytest.mark.parametrize(
    ("content", "encoding", "expected"),
    [
        (b"", None, ("", "utf-8", False, "text/plain", 0)),
        (b"gr\xc3\xbcn", None, ("grün", "utf-8", False, "text/plain", 5)),
        (b"gr\xc3\xbcn", "bytes", (b"gr\xc3\xbcn", "bytes", False, "text/plain", 5)),
        (b"gr\xc3\xbcn", "base64", ("Z3LDvG4=", "base64", False, "text/plain", 5)),
        (b"a\xff", None, ("Yf8=", "base64", True, "text/plain", 2)),
        (b"a\xff", "utf-8", ("a�", "utf-8", True, "text/plain", 2)),
        (b"a\xff", "utf8", ("a�", "utf-8", True, "text/plain", 2)),
        (b"a\xff", "UTF-8", ("a�", "utf-8", True, "text/plain", 2)),
        (b"a\xff", "Utf_8", ("a�", "utf-8", True, "text/plain", 2)),
        (b"a\xff", "U8", ("a�", "utf-8", True, "text/plain", 2)),
        (b"a\xff", "Base64", ("Yf8=", "base64", True, "text/plain", 2)),
        (b"a\xff", "BYTES", (b"a\xff", "bytes", True, "text/plain", 2)),
        (b"a\0b", None, ("YQBi", "base64", True, "text/plain", 3)),
        (PNG, "bytes", (PNG, "bytes", True, "image/png", len(PNG))),
        (LARGE, "bytes", (LARGE, "bytes", True, "text/plain", len(LARGE))),
    ],
)
async def test_content_is_text_if_it_is_text_or_what_was_asked_for(
    half: Half, stub: ContractServer, content: bytes, encoding: Any, expected: tuple[Any, ...]
) -> None:
    stub.on_call = FileAgent(content)
    read = await half.run(sandbox_of(half, stub).read_file, "a.txt", encoding=encoding)
    assert (read.content, read.encoding, read.is_binary, read.mime_type, read.size) == expected
    assert len(repr(read)) < 200


async def test_parts_of_a_file_are_read(half: Half, stub: ContractServer) -> None:
    stub.on_call = agent = FileAgent(b"0123456789")
    read = await half.run(sandbox_of(half, stub).read_file, "a", offset=3, length=4)
    assert read.content == "3456"
    assert agent.calls == [ReadFile(path=b"a", session_id="default", offset=3, length=4)]


async def test_read_file_keeps_no_more_in_memory_than_it_says(
    half: Half, stub: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atoll.client_sync import files as blocking_files

    for module in (client_files, blocking_files):
        monkeypatch.setattr(module, "MAX_READ", 1000)
    stub.on_call = FileAgent(LARGE)
    with pytest.raises(OSError, match="reads up to 1,000") as caught:
        await half.run(sandbox_of(half, stub).read_file, "a")
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is ErrorCode.FILE_TOO_LARGE
    assert caught.value.context == {"size": len(LARGE), "limit": 1000, "path": "/workspace/a.txt"}
    assert caught.value.filename == "/workspace/a.txt"
    assert "open_file()" in caught.value.remedy and "offset=" in caught.value.remedy
    end = await half.run(sandbox_of(half, stub).read_file, "a", encoding="bytes", offset=len(LARGE) - 1000)
    assert end.content == LARGE[-1000:]
    read = await half.run(sandbox_of(half, stub).read_file, "a", encoding="bytes", length=len(LARGE))
    assert read.content == LARGE


async def test_a_file_that_is_too_large_is_refused_before_any_of_it_is_read(half: Half, stub: ContractServer) -> None:
    """Its size comes first; this agent says it, and then nothing."""

    def waits(conversation: Conversation) -> None:
        conversation.send(FrameKind.EVENT, encode_message(info("/workspace/huge", size=2**40)))
        with contextlib.suppress(OSError):
            conversation.wait_for_hang_up()

    stub.on_call = waits
    with pytest.raises(OSError, match="1,099,511,627,776 bytes") as caught:
        await half.run(sandbox_of(half, stub).read_file, "huge")
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.FILE_TOO_LARGE


async def test_a_file_that_grows_while_it_is_read_is_refused_when_it_has_become_too_large(
    half: Half, stub: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atoll.client_sync import files as blocking_files

    for module in (client_files, blocking_files):
        monkeypatch.setattr(module, "MAX_READ", 1000)

    def grows(conversation: Conversation) -> None:
        conversation.send(FrameKind.EVENT, encode_message(info("/proc/endless", size=0)))
        with contextlib.suppress(OSError):
            while True:
                conversation.send(FrameKind.DATA, b"x" * 600)

    stub.on_call = grows
    with pytest.raises(OSError, match="'/proc/endless' has 1,200 bytes") as caught:
        await half.run(sandbox_of(half, stub).read_file, "/proc/endless")
    assert caught.value.filename == "/proc/endless"


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
async def test_what_is_no_file_is_not_uploaded_and_not_waited_for(
    half: Half, stub: ContractServer, agent: FileAgent, tmp_path: Path, kind: str
) -> None:
    local = tmp_path / kind
    with socket.socket(socket.AF_UNIX) as bound:
        match kind:
            case "fifo":
                os.mkfifo(local)
            case "socket":
                bound.bind(str(local))
            case _:
                local.symlink_to("/dev/zero")
        with pytest.raises(OSError, match=f"(?i)neither a file nor a directory, but a {kind}") as caught:
            await half.run(sandbox_of(half, stub).upload, local, "a")
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.NOT_A_FILE
    assert caught.value.filename == str(local) and caught.value.remedy
    assert agent.calls == []


async def test_a_stream_that_is_left_ends_the_reading(half: Half, stub: ContractServer) -> None:
    gone = threading.Event()

    def endless(conversation: Conversation) -> None:
        conversation.send(FrameKind.EVENT, encode_message(info(size=2**40)))
        with contextlib.suppress(OSError):
            while True:
                conversation.send(FrameKind.DATA, LARGE[:1_000_000])
        gone.set()

    stub.on_call = endless
    async with half.entered(sandbox_of(half, stub).read_file_stream("a")) as stream:
        assert stream.info.size == 2**40
        async for chunk in half.iterate(stream):
            assert chunk and LARGE.startswith(chunk)  # as much as came at once
            break
    assert await asyncio.to_thread(gone.wait, 60)
    assert [chunk async for chunk in half.iterate(stream)] == []


@pytest.mark.parametrize(
    "misbehave",
    [
        lambda conversation: conversation.send(FrameKind.DATA, b"no info first"),
        lambda conversation: conversation.send(FrameKind.EVENT, b"nonsense"),
        lambda conversation: conversation.answer(FileDone()),
        lambda conversation: conversation.send_raw(b"\xff" * 10),
        lambda conversation: (
            conversation.send(FrameKind.EVENT, encode_message(info())),
            conversation.send(FrameKind.DATA, b"more than asked"),
        ),
        lambda conversation: (
            conversation.send(FrameKind.EVENT, encode_message(info())),
            conversation.send(FrameKind.STDOUT, b"x"),
        ),
    ],
)
async def test_an_agent_that_breaks_the_rules_of_reading_is_not_believed(
    half: Half, stub: ContractServer, misbehave: Callable[[Conversation], None]
) -> None:
    stub.on_call = misbehave
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox_of(half, stub).read_file, "a", length=3)
    assert caught.value.code is ErrorCode.AGENT_MISBEHAVED


async def test_a_file_that_is_not_there_is_pythons_own_error(half: Half, stub: ContractServer) -> None:
    stub.on_call = lambda conversation: conversation.failed(
        error(ErrorCode.FILE_NOT_FOUND, "'/workspace/a' does not exist", remedy="Check the path.")
    )
    sandbox = sandbox_of(half, stub)
    for call, arguments in ((sandbox.read_file, ("a",)), (sandbox.stat, ("a",)), (sandbox.list_files, ("a",))):
        with pytest.raises(FileNotFoundError):
            await half.run(call, *arguments)
    assert await half.run(sandbox.exists, "a") is False
    with pytest.raises(FileNotFoundError):
        async with half.entered(sandbox.open_file("a")):
            pass


# Open files


async def test_an_open_file_reads_as_pythons_own_does(half: Half, stub: ContractServer) -> None:
    content = b"".join(b"line %d\n" % number for number in range(50_000)) + b"no newline"
    stub.on_call = agent = FileAgent(content)
    local = io.BytesIO(content)
    async with half.entered(sandbox_of(half, stub).open_file("a")) as file:
        for step in (
            ("read", 10),
            ("readline",),
            ("readline", 3),
            ("seek", 100_000),
            ("read", 300_000),
            ("seek", -20, os.SEEK_CUR),
            ("readline",),
            ("seek", -5, os.SEEK_END),
            ("read",),
            ("read", 1),
            ("readline",),
            ("seek", len(content) + 10),
            ("read",),
            ("seek", 0),
            ("read", 0),
            ("readlines",),
        ):
            name, *arguments = step
            expected = getattr(local, str(name))(*arguments)
            assert await half.run(getattr(file, str(name)), *arguments) == expected, step
            assert file.tell() == local.tell()
        assert (file.readable(), file.writable(), file.seekable(), file.closed) == (True, False, True, False)
        with pytest.raises(AtollError, match="before the beginning"):
            await half.run(file.seek, -1)
        await half.run(file.seek, 0)
        assert [line async for line in half.iterate(file)] == content.splitlines(keepends=True)
        buffer = bytearray(4)
        await half.run(file.seek, 0)
        assert await half.run(file.readinto, buffer) == 4
        assert buffer == b"line"
        assert await half.run(file.read1, 2) == b" 0"
    assert file.closed
    with pytest.raises(ValueError, match="is closed"):
        await half.run(file.read)
    assert all(call.path == b"a" for call in agent.calls)


class FailingAgent(FileAgent):
    """Hangs up in the middle of a file, as often as it is told to."""

    def __init__(self, stub: ContractServer, content: bytes, failures: int) -> None:
        super().__init__(content)
        self.stub = stub
        self.failures = failures

    def __call__(self, conversation: Conversation) -> None:
        if not self.failures:
            super().__call__(conversation)
            return
        self.failures -= 1
        self.calls.append(conversation.call)
        conversation.send(FrameKind.EVENT, encode_message(self.info))
        conversation.send(FrameKind.DATA, self.content[conversation.call.offset :][:4])
        self.stub.hang_up()


async def test_a_read_that_failed_is_not_followed_by_the_end_of_the_file(half: Half, stub: ContractServer) -> None:
    stub.on_call = agent = FailingAgent(stub, b"one\ntwo\nthree\n", failures=3)
    file = sandbox_of(half, stub).open_file("a")
    assert await half.run(file.readline) == b"one\n"
    for _ in range(2):
        with pytest.raises(ConnectionError, match="SERVER_LOST"):
            await half.run(file.read, 100)
        assert file.tell() == 4  # what had come before the failure comes again
    assert await half.run(file.readline) == b"two\n"
    with pytest.raises(ConnectionError, match="SERVER_LOST"):
        await half.run(file.readline)
    assert await half.run(file.read) == b"three\n"
    assert await half.run(file.read) == b""
    assert [call.offset for call in agent.calls] == [0, 4, 4, 8]
    await half.close(file)


async def test_a_read_that_was_cancelled_is_not_followed_by_the_end_of_the_file(stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.send(FrameKind.EVENT, encode_message(info()))
        conversation.send(FrameKind.DATA, b"some")
        with contextlib.suppress(OSError):
            conversation.wait_for_hang_up()

    stub.on_call = agent
    file = sandbox_of(AsyncHalf(), stub).open_file("a")
    reading = asyncio.create_task(file.read())
    while not file._ahead:
        await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    stub.on_call = FileAgent(b"some more")
    assert await file.read() == b"some more"
    await file.aclose()
    AsyncHalf.server.shared_server.cache_clear()


async def test_what_is_written_to_an_open_file_is_committed_when_it_is_closed(
    half: Half, stub: ContractServer, agent: FileAgent
) -> None:
    async with half.entered(sandbox_of(half, stub).open_file("a", "wb")) as file:
        assert await half.run(file.write, b"abc") == 3
        assert await half.run(file.write, memoryview(LARGE)) == len(LARGE)
        for number in range(1000):
            await half.run(file.write, b"%d" % number)
        assert file.tell() == 3 + len(LARGE) + 2890
        assert agent.content == b""
    assert agent.content == b"abc" + LARGE + b"".join(b"%d" % number for number in range(1000))
    assert file.info.size == len(agent.content)
    await half.close(file)
    with pytest.raises(AtollError, match="is closed"):
        await half.run(file.write, b"x")
    async with half.entered(sandbox_of(half, stub).open_file("b", "xb")) as file:
        with pytest.raises(AtollError, match="is not bytes"):
            await half.run(file.write, "text")
    assert agent.calls[-1] == WriteFile(path=b"b", session_id="default", exclusive=True)
    assert agent.content == b""


async def test_an_exception_leaves_what_was_there(half: Half, stub: ContractServer, agent: FileAgent) -> None:
    with pytest.raises(ZeroDivisionError):
        async with half.entered(sandbox_of(half, stub).open_file("a", "wb")) as file:
            await half.run(file.write, LARGE)
            raise ZeroDivisionError
    assert await asyncio.to_thread(agent.left.wait, 60)
    assert file.closed


async def test_a_writer_that_is_dropped_writes_nothing(half: Half, stub: ContractServer, agent: FileAgent) -> None:
    file = sandbox_of(half, stub).open_file("a", "wb")
    await half.run(file.write, LARGE)
    del file
    gc.collect()
    assert await asyncio.to_thread(agent.left.wait, 60)


async def test_opening_what_cannot_be_written_fails_at_the_latest_when_it_is_closed(
    half: Half, stub: ContractServer
) -> None:
    stub.on_call = lambda conversation: conversation.failed(
        error(ErrorCode.IS_DIRECTORY, "'/workspace' is a directory", remedy="Give a file.")
    )
    with pytest.raises(IsADirectoryError):
        async with half.entered(sandbox_of(half, stub).open_file("a", "wb")) as file:
            await half.run(file.write, b"x")
    assert file.closed


# The rest


async def test_every_method_sends_its_call(half: Half, stub: ContractServer, agent: FileAgent) -> None:
    sandbox = sandbox_of(half, stub)
    session: Any = {"session_id": "default"}
    for method, arguments, options, call in (
        ("mkdir", ("d",), {}, MakeDirectory(path=b"d", **session)),
        ("mkdir", (Path("d"), True), {"mode": 0o700}, MakeDirectory(path=b"d", recursive=True, mode=0o700, **session)),
        ("delete_file", (b"d\xff",), {}, DeleteFile(path=b"d\xff", **session)),
        ("delete_file", ("d\udcff",), {}, DeleteFile(path=b"d\xff", **session)),
        ("delete_dir", ("d",), {}, DeleteDirectory(path=b"d", **session)),
        ("delete_dir", ("d", False), {}, DeleteDirectory(path=b"d", recursive=False, **session)),
        ("rename_file", ("a", "b"), {}, MoveFile(source=b"a", target=b"b", **session)),
        ("move_file", ("a", "b"), {}, MoveFile(source=b"a", target=b"b", into_directory=True, **session)),
        ("copy_file", ("a", "b"), {}, CopyFile(source=b"a", target=b"b", **session)),
        ("stat", ("a",), {}, StatFile(path=b"a", **session)),
        ("stat", ("a",), {"follow_symlinks": False}, StatFile(path=b"a", follow=False, **session)),
        ("exists", ("a",), {}, StatFile(path=b"a", **session)),
        ("chmod", ("a", 0o4755), {}, ChangeMode(path=b"a", mode=0o4755, **session)),
        ("rm", ("a",), {}, DeleteFile(path=b"a", **session)),
    ):
        await half.run(getattr(sandbox, method), *arguments, **options)
        assert agent.calls.pop() == call


async def test_rm_deletes_directories_only_if_it_is_told_to(half: Half, stub: ContractServer) -> None:
    calls = []

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        if isinstance(conversation.call, DeleteFile):
            conversation.failed(error(ErrorCode.IS_DIRECTORY, "'d' is a directory", remedy="Use delete_dir."))
        else:
            conversation.answer(FileDone(count=3))

    stub.on_call = agent
    with pytest.raises(IsADirectoryError):
        await half.run(sandbox_of(half, stub).rm, "d")
    await half.run(sandbox_of(half, stub).rm, "d", recursive=True)
    assert [type(call) for call in calls] == [DeleteFile, DeleteFile, DeleteDirectory]


async def test_a_list_comes_in_as_many_pieces_as_it_takes(half: Half, stub: ContractServer) -> None:
    calls = []

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        for start in range(0, 1000, 100):
            files = [info(f"/workspace/{number}\udcff") for number in range(start, start + 100)]
            conversation.send(FrameKind.EVENT, encode_message(FileList(files=files)))
        conversation.answer(FileDone(count=1000))

    stub.on_call = agent
    found = await half.run(sandbox_of(half, stub).list_files, ".", recursive=True, include_hidden=True)
    assert [file.name for file in found] == [f"{number}\udcff" for number in range(1000)]
    assert calls == [ListFiles(path=b".", session_id="default", recursive=True, include_hidden=True)]
    assert (await half.run(sandbox_of(half, stub).readdir, "."))[1] == "1\udcff"


async def test_a_list_without_end_is_not_kept(
    half: Half, stub: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atoll.client_sync import files as blocking_files

    for module in (client_files, blocking_files):
        monkeypatch.setattr(module, "MAX_LISTED", 1000)

    def agent(conversation: Conversation) -> None:
        with contextlib.suppress(OSError):
            while True:
                conversation.send(FrameKind.EVENT, encode_message(FileList(files=[info()] * 100)))

    stub.on_call = agent
    with pytest.raises(OSError, match="more than 1000 files"):
        await half.run(sandbox_of(half, stub).list_files, ".")


async def test_a_watch_is_ready_when_it_is_entered_and_ends_when_it_is_left(half: Half, stub: ContractServer) -> None:
    calls = []
    has_answered, may_begin, gone = threading.Event(), threading.Event(), threading.Event()

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        conversation.begin()
        has_answered.set()
        assert may_begin.wait(60)
        conversation.send(FrameKind.EVENT, encode_message(FileChanges(changes=[])))
        change = FileChange(type=ChangeType.CREATE, raw_path=b"/workspace/a\xff")
        moved = FileChange(type=ChangeType.MOVE, raw_path=b"/workspace/b", raw_old_path=b"/workspace/a\xff")
        conversation.send(FrameKind.EVENT, encode_message(FileChanges(changes=[change, moved])))
        with contextlib.suppress(OSError):
            conversation.wait_for_hang_up()
        gone.set()

    stub.on_call = agent
    watch = sandbox_of(half, stub).watch("/workspace", include="*.py", exclude=[".git", "build"])
    entering = half.entered(watch)
    waiting = asyncio.create_task(entering.__aenter__())
    assert await asyncio.to_thread(has_answered.wait, 60)
    await half.list_sandboxes(url=stub.url)  # by then it has seen that its answer has begun
    assert not waiting.done()
    may_begin.set()
    changes = await waiting
    seen = []
    async for change in half.iterate(changes):
        seen.append((change.type.value, change.path, change.old_path))
        if len(seen) == 2:
            break
    await entering.__aexit__(None, None, None)
    assert seen == [("create", "/workspace/a\udcff", None), ("move", "/workspace/b", "/workspace/a\udcff")]
    assert await asyncio.to_thread(gone.wait, 60)
    assert calls == [
        WatchFiles(path=b"/workspace", session_id="default", include=[b"*.py"], exclude=[b".git", b"build"])
    ]


async def test_closing_a_watch_wakes_whoever_waits_for_it(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.send(FrameKind.EVENT, encode_message(FileChanges(changes=[])))
        with contextlib.suppress(OSError):
            conversation.wait_for_hang_up()

    stub.on_call = agent
    async with half.entered(sandbox_of(half, stub).watch(".")) as watch:

        async def collect() -> list[Any]:
            return [change async for change in half.iterate(watch)]

        waiting = asyncio.create_task(collect())
        while not watch._frames._response._stream._is_waiting:
            await asyncio.sleep(0.01)
        await half.close(watch)
        assert await waiting == []


# Copies


async def test_a_file_is_uploaded_with_its_mode_and_progress(
    half: Half, stub: ContractServer, agent: FileAgent, tmp_path: Path
) -> None:
    local = tmp_path / "a file"
    local.write_bytes(LARGE)
    local.chmod(0o4751)
    seen: list[tuple[int, int | None]] = []
    await half.run(
        sandbox_of(half, stub).upload, local, "there/", on_progress=lambda done, total: seen.append((done, total))
    )
    assert agent.content == LARGE
    assert agent.calls == [WriteFile(path=b"there/a file", session_id="default", mode=0o751)]
    assert seen[0] == (0, len(LARGE))
    assert seen[-1] == (len(LARGE), len(LARGE))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


async def test_a_file_is_downloaded_as_a_whole_or_not_at_all(half: Half, stub: ContractServer, tmp_path: Path) -> None:
    stub.on_call = agent = FileAgent(LARGE, mode=0o6755)
    sandbox = sandbox_of(half, stub)
    seen: list[tuple[int, int | None]] = []
    await half.run(
        sandbox.download, "/workspace/a.txt", tmp_path / "b", on_progress=lambda *numbers: seen.append(numbers)
    )
    assert (tmp_path / "b").read_bytes() == LARGE
    assert (tmp_path / "b").stat().st_mode & 0o7777 == 0o755
    assert seen[-1] == (len(LARGE), len(LARGE))
    await half.run(sandbox.download, "/workspace/a.txt", tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == LARGE

    def breaks_off(conversation: Conversation) -> None:
        if isinstance(conversation.call, StatFile):
            conversation.answer(agent.info)
            return
        conversation.send(FrameKind.EVENT, encode_message(agent.info))
        conversation.send(FrameKind.DATA, b"new")
        conversation.failed(error(ErrorCode.FILESYSTEM_ERROR, "the disk is broken", remedy="Get a new one."))

    stub.on_call = breaks_off
    with pytest.raises(OSError, match="the disk is broken"):
        await half.run(sandbox.download, "/workspace/a.txt", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == LARGE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b", "server.sock"]


async def test_a_pipe_or_a_device_takes_a_download_and_stays(half: Half, stub: ContractServer, tmp_path: Path) -> None:
    stub.on_call = FileAgent(LARGE)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    reading = asyncio.create_task(asyncio.to_thread((tmp_path / "fifo").read_bytes))
    await half.run(sandbox_of(half, stub).download, "a", tmp_path / "link")
    assert await reading == LARGE
    assert (tmp_path / "fifo").is_fifo()
    assert (tmp_path / "link").is_symlink()


async def test_a_download_that_is_cancelled_leaves_nothing(stub: ContractServer, tmp_path: Path) -> None:
    has_begun = threading.Event()

    def slow(conversation: Conversation) -> None:
        if isinstance(conversation.call, StatFile):
            conversation.answer(info(size=len(LARGE)))
            return
        conversation.send(FrameKind.EVENT, encode_message(info(size=len(LARGE))))
        conversation.send(FrameKind.DATA, LARGE[:1_000_000])
        has_begun.set()
        with contextlib.suppress(OSError):
            conversation.wait_for_hang_up()

    stub.on_call = slow
    async_half, target = AsyncHalf(), tmp_path / "target"
    target.mkdir()
    downloading = asyncio.create_task(sandbox_of(async_half, stub).download("a", target / "b"))
    await asyncio.to_thread(has_begun.wait, 60)
    while not list(target.iterdir()):
        await asyncio.sleep(0.01)
    downloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await downloading
    while list(target.iterdir()):  # a thread that was just making it tidies up when it is done
        await asyncio.sleep(0.01)
    async_half.server.shared_server.cache_clear()


class SlowFile:
    """A file that nobody gets to open while we have the lease on it, as if its disk were slow."""

    def __init__(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self._descriptor = os.open(path, os.O_RDONLY)
        self._on_break = signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    async def wait_for_opener(self) -> None:
        while fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) == fcntl.F_WRLCK:
            await asyncio.sleep(0)

    def let_go(self) -> None:
        os.close(self._descriptor)
        signal.signal(signal.SIGIO, self._on_break)


async def test_what_was_being_opened_when_an_upload_is_cancelled_is_closed(
    stub: ContractServer, agent: FileAgent, tmp_path: Path
) -> None:
    slow = SlowFile(tmp_path / "slow", b"too late")
    uploading = asyncio.create_task(sandbox_of(AsyncHalf(), stub).upload(tmp_path / "slow", "a"))
    await slow.wait_for_opener()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    slow.let_go()
    assert agent.calls == []


async def test_a_server_that_is_lost_in_the_middle_of_a_write_is_told(half: Half, tmp_path: Path) -> None:
    def behave(peer: socket.socket) -> None:
        peer.recv(1000)
        reset(peer)

    with RawServer(behave, tmp_path / "raw.sock") as raw:
        sandbox = half.get_sandbox("user-123", url=raw.url)
        with pytest.raises(AtollError) as caught:
            await half.run(sandbox.write_file, "a", (LARGE for _ in range(1000)))
        assert caught.value.code is ErrorCode.SERVER_LOST


async def test_where_a_download_cannot_go_is_told(half: Half, stub: ContractServer, tmp_path: Path) -> None:
    stub.on_call = FileAgent(b"x")
    with pytest.raises(FileNotFoundError, match="on this machine") as missing:
        await half.run(sandbox_of(half, stub).download, "/workspace/a.txt", tmp_path / "no/such/file")
    assert missing.value.filename == str(tmp_path / "no")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as in_the_way:
        await half.run(sandbox_of(half, stub).download, "/workspace/a.txt", tmp_path / "file/below")
    assert in_the_way.value.filename == str(tmp_path / "file")
    with pytest.raises(AtollError, match="has no name"):
        await half.run(sandbox_of(half, stub).download, "/..", tmp_path)


class TreeAgent:
    """Has one directory, which is this archive; and takes any."""

    def __init__(self, archive: bytes = b"") -> None:
        self.archive = archive
        self.calls: list[Any] = []

    def __call__(self, conversation: Conversation) -> None:
        self.calls.append(conversation.call)
        match conversation.call:
            case UnpackFiles():
                self.archive = b"".join(conversation.input())
                conversation.answer(FileDone(count=1))
            case PackFiles():
                for start in range(0, len(self.archive), 700):
                    conversation.send(FrameKind.DATA, self.archive[start : start + 700])
                conversation.answer(FileDone(count=1))
            case _:
                conversation.answer(info("/workspace/tree", type=FileType.DIRECTORY, mode=0o755))


def archive_of(*members: tuple[str, dict[str, Any]], content: bytes = b"evil") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields in members:
            member = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(member, field, value)
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return buffer.getvalue()


async def test_a_directory_is_copied_as_an_archive(half: Half, stub: ContractServer, tmp_path: Path) -> None:
    stub.on_call = agent = TreeAgent()
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/file").write_bytes(LARGE)
    (tree / "run").write_text("#!/bin/sh")
    (tree / "run").chmod(0o755)
    (tree / "link").symlink_to("sub/file")
    seen: list[tuple[int, int | None]] = []
    made = await half.run(
        sandbox_of(half, stub).upload, tree, "there", on_progress=lambda *numbers: seen.append(numbers)
    )
    assert made.is_directory
    assert agent.calls[0] == UnpackFiles(path=b"there", session_id="default")
    with tarfile.open(fileobj=io.BytesIO(agent.archive)) as archive:
        assert sorted(archive.getnames()) == [".", "link", "run", "sub", "sub/file"]
    assert seen[-1] == (len(agent.archive), None)
    await half.run(sandbox_of(half, stub).download, "tree", tmp_path / "new/back")
    assert (tmp_path / "new/back/link").read_bytes() == LARGE
    assert os.readlink(tmp_path / "new/back/link") == "sub/file"
    assert os.access(tmp_path / "new/back/run", os.X_OK)


LINK, HARD_LINK, DEVICE, FIFO = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE
ATTACKS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "up": [("../outside/evil", {})],
    "up from within": [("sub/../../outside/evil", {})],
    "absolute": [("{outside}/evil", {})],
    "a hard link": [("door", {"type": HARD_LINK, "linkname": "../outside/kept"}), ("door", {})],
    "an absolute hard link": [("door", {"type": HARD_LINK, "linkname": "{outside}/kept"})],
    "a device": [("null", {"type": DEVICE, "devmajor": 1, "devminor": 3})],
    "a fifo": [("pipe", {"type": FIFO})],
    "through a link that was there": [("was-there/evil", {})],
    "into a directory that is a link": [
        ("was-there", {"type": tarfile.DIRTYPE, "mode": 0o777}),
        ("was-there/evil", {}),
    ],
}


# The link itself stays where it is; what comes after it finds no link.
LINKS_OUT: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "through a link": [("door", {"type": LINK, "linkname": "../outside"}), ("door/file", {})],
    "through an absolute link": [("door", {"type": LINK, "linkname": "{outside}"}), ("door/file", {})],
    "through two links": [
        ("sub", {"type": tarfile.DIRTYPE, "mode": 0o755}),
        ("sub/a", {"type": LINK, "linkname": ".."}),
        ("door", {"type": LINK, "linkname": "sub/a/../../outside"}),
        ("door/file", {}),
    ],
    "over a link": [("door", {"type": LINK, "linkname": "../outside/kept"}), ("door", {})],
    "a link to a secret": [("door", {"type": LINK, "linkname": "/etc/shadow"})],
}


@pytest.mark.parametrize("attack", LINKS_OUT)
async def test_a_link_that_leads_out_is_left_out_and_named(
    half: Half, stub: ContractServer, tmp_path: Path, attack: str
) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (outside / "kept").write_text("as it was")
    members = [
        (name, {key: _filled(value, outside) for key, value in fields.items()}) for name, fields in LINKS_OUT[attack]
    ]
    stub.on_call = TreeAgent(archive_of(*members, ("after", {})))
    with pytest.warns(LeftOutWarning, match="a link that leads out of it: 'door' to") as told:
        await half.run(sandbox_of(half, stub).download, "tree", target)
    assert len(told) == 1
    assert not (target / "door").is_symlink()
    assert (target / "after").is_file()
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "as it was"


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_archive_of_a_hostile_sandbox_writes_nothing_outside(
    half: Half, stub: ContractServer, tmp_path: Path, attack: str
) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (outside / "kept").write_text("as it was")
    (target / "was-there").symlink_to(outside)
    members = [
        (name.format(outside=outside), {key: _filled(value, outside) for key, value in fields.items()})
        for name, fields in ATTACKS[attack]
    ]
    stub.on_call = TreeAgent(archive_of(*members))
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox_of(half, stub).download, "tree", target)
    assert caught.value.code is ErrorCode.UNSAFE_ARCHIVE
    assert caught.value.remedy
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "as it was"
    assert outside.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "server.sock", "target"]


def _filled(value: Any, outside: Path) -> Any:
    return value.format(outside=outside) if isinstance(value, str) else value


async def test_a_program_that_becomes_root_is_not_brought_home(
    half: Half, stub: ContractServer, tmp_path: Path
) -> None:
    stub.on_call = TreeAgent(archive_of(("program", {"mode": 0o6755, "uid": 0})))
    await half.run(sandbox_of(half, stub).download, "tree", tmp_path / "target")
    assert (tmp_path / "target/program").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "archive",
    [b"", b"\0" * 100, b"no archive" * 100, archive_of(("a", {}))[:700], archive_of(("a", {}))[:512] + b"\xff" * 2000],
    ids=["empty", "short", "nonsense", "cut", "damaged"],
)
async def test_an_archive_that_is_none_is_told(
    half: Half, stub: ContractServer, tmp_path: Path, archive: bytes
) -> None:
    stub.on_call = TreeAgent(archive)
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox_of(half, stub).download, "tree", tmp_path / "target")
    assert caught.value.remedy


async def test_an_upload_keeps_nobody_waiting(stub: ContractServer, agent: FileAgent, tmp_path: Path) -> None:
    """The near end is a file that cannot be opened yet; the loop goes on."""
    slow = SlowFile(tmp_path / "slow", b"at last")
    async_half = AsyncHalf()
    uploading = asyncio.create_task(sandbox_of(async_half, stub).upload(tmp_path / "slow", "a"))
    await slow.wait_for_opener()
    assert not uploading.done()
    slow.let_go()
    await uploading
    assert agent.content == b"at last"
    async_half.server.shared_server.cache_clear()
