"""What the server makes of an agent's frames about files and logs: whole documents, exact lengths, and no trust."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime

import pytest

from atoll.protocol.errors import AgentMisbehavedError, AtollError, ErrorCode, error
from atoll.protocol.file_answers import ListFold, ReadFold, WatchFold
from atoll.protocol.files import (
    ChangeType,
    FileChange,
    FileChanges,
    FileDone,
    FileInfo,
    FileList,
    FileType,
    ListFiles,
    ReadFile,
    WatchFiles,
)
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.messages import encode_message
from atoll.protocol.processes import LogEntry, LogPart, OutputStream
from atoll.server.routes.files import bytes_in, changes, content, etag, first_bytes, last_modified, listing, sized
from atoll.server.routes.processes import collect

DONE = Frame(FrameKind.DONE, encode_message(FileDone()))
READ, LIST, WATCH = ReadFile(path=b"/a"), ListFiles(path=b"/"), WatchFiles(path=b"/")
BROKEN = error(ErrorCode.FILESYSTEM_ERROR, "the disk is broken", remedy="Get a new one.")


def info(**fields: object) -> FileInfo:
    given = {"type": FileType.FILE, "size": 3, "mode": 0o644, "modified_at": datetime(2026, 1, 1, tzinfo=UTC)} | fields
    return FileInfo(raw_path=b"/a\xff", **given)  # type: ignore[arg-type]


def data(payload: bytes) -> Frame:
    return Frame(FrameKind.DATA, payload)


def files(count: int) -> Frame:
    return Frame(FrameKind.EVENT, encode_message(FileList(files=[info()] * count)))


async def frames(*given: Frame | AtollError) -> AsyncGenerator[Frame, None]:
    for frame in given:
        if isinstance(frame, AtollError):
            raise frame
        yield frame


def pieces(*given: Frame) -> AsyncGenerator[bytes, None]:
    """The bytes of a file of which it has been said what it is."""
    fold = ReadFold(READ)
    fold.take(Frame(FrameKind.EVENT, encode_message(info())))
    return bytes_in(frames(*given), fold)


def watching() -> WatchFold:
    fold = WatchFold(WATCH)
    fold.take(Frame(FrameKind.EVENT, encode_message(FileChanges(changes=[]))))
    return fold


async def no_rest() -> None:
    """There is nobody whose turn it could be."""


async def joined(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


@pytest.mark.parametrize("counts", [(), (1,), (2, 3), (100, 100)])
async def test_a_list_is_one_document_however_it_comes(counts: tuple[int, ...]) -> None:
    first, *rest = [*map(files, counts), DONE]
    document = json.loads(await joined(listing(no_rest, ListFold(LIST), first, frames(*rest))))
    assert document["count"] == len(document["files"]) == sum(counts)
    assert "error" not in document


async def test_a_list_that_ends_early_says_so() -> None:
    document = json.loads(await joined(listing(no_rest, ListFold(LIST), files(2), frames(files(0)))))
    assert (document["count"], document["error"]["code"]) == (2, "AGENT_MISBEHAVED")
    document = json.loads(await joined(listing(no_rest, ListFold(LIST), files(2), frames(BROKEN))))
    assert (document["count"], document["error"]["code"]) == (2, "FILESYSTEM_ERROR")
    document = json.loads(await joined(listing(no_rest, ListFold(LIST), files(2), frames(data(b"what?")))))
    assert (document["count"], document["error"]["code"]) == (2, "AGENT_MISBEHAVED")
    document = json.loads(await joined(listing(no_rest, ListFold(LIST), Frame(FrameKind.EVENT, b"nonsense"), frames())))
    assert (document["files"], document["error"]["code"]) == ([], "AGENT_MISBEHAVED")


async def test_content_is_as_long_as_was_promised_or_breaks_off() -> None:
    assert await joined(content(b"abc", pieces(data(b"def"), DONE), None)) == b"abcdef"
    assert await joined(content(b"abc", pieces(data(b"def"), DONE), 6)) == b"abcdef"
    assert await joined(content(b"abc", pieces(data(b"def"), data(b"ghi")), 4)) == b"abcd"
    assert await joined(content(b"abc", pieces(data(b"def")), 2)) == b"ab"
    for given in (pieces(data(b"def"), DONE), pieces(data(b"def")), pieces(files(1))):
        with pytest.raises(AgentMisbehavedError):
            await joined(content(b"abc", given, 7))


async def parts_of(*entries: list[bytes]) -> AsyncGenerator[LogPart | None, None]:
    for data in entries:
        found = [LogEntry(number=1, time=0.0, stream=OutputStream.STDOUT, data=piece) for piece in data]
        yield LogPart(number=1, entries=found)


async def test_a_log_is_gathered_and_what_an_agent_cannot_have_sent_ends_it() -> None:
    assert (await collect(parts_of([b"a", b"b"], [], [b"c"]))).stdout == "abc"
    endless = [b"x" * 2**20] * 8
    with pytest.raises(AgentMisbehavedError):
        await collect(parts_of(*[endless] * 9))


async def test_the_first_bytes_are_waited_for_until_they_tell() -> None:
    assert await first_bytes(pieces(data(b"a"), data(b"b"), DONE)) == (b"ab", True)
    assert await first_bytes(pieces(DONE)) == (b"", True)
    assert await first_bytes(pieces(data(b"x" * 5000), data(b"y"))) == (b"x" * 5000, False)
    with pytest.raises(AgentMisbehavedError):
        await first_bytes(pieces(files(1)))


async def test_changes_are_events_and_so_is_their_end() -> None:
    change = FileChange(type=ChangeType.MOVE, raw_path=b"/a\nb", raw_old_path=b"/\xff")
    event = Frame(FrameKind.EVENT, encode_message(FileChanges(changes=[change])))
    text = (await joined(changes(no_rest, watching(), frames(event, BROKEN)))).decode()
    ready, moved, failed, rest = text.split("\n\n")
    assert ready.startswith("event: ready")
    assert moved.startswith("event: move\n")
    body = json.loads(moved.partition("data: ")[2])
    assert (body["path"], body["old_path"], body["old_path_base64"]) == ("/a\nb", "/�", "L/8=")
    assert failed.startswith("event: error\n")
    assert rest == ""


def test_a_time_may_be_anything_an_agent_says() -> None:
    for moment in (datetime.min, datetime.max.replace(tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)):
        assert etag(info(modified_at=moment))
        assert last_modified(info(modified_at=moment)).endswith("GMT")


def test_a_size_that_is_known_to_be_wrong_is_none() -> None:
    assert sized(info(size=0), 4096) is None
    assert sized(info(size=10_000), 4096) == 10_000
