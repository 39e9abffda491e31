"""Answers about files, folded: the same however they are cut into frames, and an agent that lies is found out."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.errors import AgentMisbehavedError
from atoll.protocol.file_answers import ListFold, PackFold, ReadFold, WatchFold
from atoll.protocol.file_maps import FileMap
from atoll.protocol.files import (
    ChangeType,
    FileChange,
    FileChanges,
    FileDone,
    FileInfo,
    FileList,
    FileType,
    ListFiles,
    PackFiles,
    ReadFile,
    WatchFiles,
)
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.messages import encode_message

INFO = FileInfo(raw_path=b"/a", type=FileType.FILE, size=3, mode=0o644, modified_at=datetime(2026, 1, 1, tzinfo=UTC))
MAP = FileMap(size=9, places=[(0, 3)])
CHANGE = FileChange(type=ChangeType.CREATE, raw_path=b"/a")
DONE = Frame(FrameKind.DONE, encode_message(FileDone(count=3)))
READ, WITH_HOLES, PART = ReadFile(path=b"/a"), ReadFile(path=b"/a", holes=True), ReadFile(path=b"/a", length=3)
cuts = st.lists(st.integers(0, 100), max_size=6)


def event(said: object) -> Frame:
    return Frame(FrameKind.EVENT, encode_message(said))


def data(payload: bytes) -> Frame:
    return Frame(FrameKind.DATA, payload)


def places(size: int, at: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(sorted({place % (size + 1) for place in at} | {0, size})))


@given(content=st.binary(min_size=1, max_size=30), at=cuts)
def test_content_is_the_same_however_it_is_cut(content: bytes, at: list[int]) -> None:
    for first in ([event(INFO)], [event(INFO), event(MAP)], []):
        fold = ReadFold(WITH_HOLES) if first else PackFold(PackFiles(path=b"/a"))
        frames = [*first, *(data(content[start:end]) for start, end in places(len(content), at))]
        assert b"".join(fold.take(frame) or b"" for frame in frames) == content
        assert fold.done is None
        assert fold.take(DONE) is None
        assert fold.done == FileDone(count=3)
        if isinstance(fold, ReadFold):
            assert (fold.info, fold.map) == (INFO, MAP if len(first) > 1 else None)


@given(count=st.integers(1, 20), at=cuts)
def test_lists_and_changes_are_the_same_however_they_are_cut(count: int, at: list[int]) -> None:
    files, changes = ListFold(ListFiles(path=b"/")), WatchFold(WatchFiles(path=b"/"))
    assert changes.take(event(FileChanges(changes=[]))) == []
    listed, seen = [], []
    for start, end in places(count, at):
        listed += files.take(event(FileList(files=[INFO] * (end - start)))) or []
        seen += changes.take(event(FileChanges(changes=[CHANGE] * (end - start)))) or []
    assert (listed, seen) == ([INFO] * count, [CHANGE] * count)
    assert files.take(DONE) is None and changes.take(DONE) is None


LIES: dict[str, tuple[ReadFold | PackFold | ListFold | WatchFold, list[Frame]]] = {
    "content before it is said of what": (ReadFold(READ), [data(b"x")]),
    "the end before anything": (ReadFold(READ), [DONE]),
    "a file that is told twice": (ReadFold(READ), [event(INFO), event(INFO)]),
    "holes that nobody takes": (ReadFold(READ), [event(INFO), event(MAP)]),
    "holes after content": (ReadFold(WITH_HOLES), [event(INFO), data(b"x"), event(MAP)]),
    "holes twice": (ReadFold(WITH_HOLES), [event(INFO), event(MAP), event(MAP)]),
    "more than was asked for": (ReadFold(PART), [event(INFO), data(b"ab"), data(b"cd")]),
    "content without a byte": (ReadFold(READ), [event(INFO), data(b"")]),
    "output of a command": (ReadFold(READ), [event(INFO), Frame(FrameKind.STDOUT, b"x")]),
    "an end that is none": (ReadFold(READ), [event(INFO), Frame(FrameKind.DONE, b"\xc1")]),
    "an archive without a byte": (PackFold(PackFiles(path=b"/a")), [data(b"")]),
    "an archive that is told": (PackFold(PackFiles(path=b"/a")), [event(INFO)]),
    "a list without an entry": (ListFold(ListFiles(path=b"/")), [event({"files": []})]),
    "a list of bytes": (ListFold(ListFiles(path=b"/")), [data(b"x")]),
    "a watch that ends before it begins": (WatchFold(WatchFiles(path=b"/")), [DONE]),
    "no changes, again": (WatchFold(WatchFiles(path=b"/")), [event({"changes": []}), event({"changes": []})]),
    "changes that are none": (WatchFold(WatchFiles(path=b"/")), [event({"changes": [{"type": "burn"}]})]),
}


@pytest.mark.parametrize(("fold", "frames"), LIES.values(), ids=LIES.keys())
def test_a_lie_is_misbehaviour(fold: ReadFold | PackFold | ListFold | WatchFold, frames: list[Frame]) -> None:
    for frame in frames[:-1]:
        fold.take(frame)
    with pytest.raises(AgentMisbehavedError):
        fold.take(frames[-1])
