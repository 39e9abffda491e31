"""What a watch makes of the kernel's events, mostly without a kernel."""

from __future__ import annotations

import os
import struct
from contextlib import closing
from pathlib import Path

import pytest

from atoll.agent.files import watch
from atoll.agent.files.inotify import RawEvent, parse
from atoll.agent.files.watch import Changes, DirectoryWatch, Filter
from atoll.protocol.files import ChangeType, WatchFiles

ALL = Filter([], [])


def told(changes: Changes) -> list[tuple[str, str, str | None]]:
    return [(change.type.value, change.path, change.old_path) for change in changes.take(b"/w")]


def test_many_changes_of_a_file_are_one() -> None:
    changes = Changes(ALL)
    for _ in range(100):
        changes.add(ChangeType.MODIFY, b"a")
        changes.add(ChangeType.MODIFY, b"b")
    assert told(changes) == [("modify", "/w/a", None), ("modify", "/w/b", None)]
    changes.add(ChangeType.MODIFY, b"a")
    assert told(changes) == [("modify", "/w/a", None)]


def test_a_file_that_is_made_and_written_is_made() -> None:
    changes = Changes(ALL)
    for kind in (ChangeType.CREATE, ChangeType.MODIFY, ChangeType.DELETE, ChangeType.CREATE, ChangeType.MODIFY):
        changes.add(kind, b"a")
    assert [kind for kind, _, _ in told(changes)] == ["create", "delete", "create"]


def test_both_halves_of_a_move_are_a_move_also_with_others_in_between() -> None:
    changes = Changes(ALL)
    changes.moved_from(7, b"a", False)
    changes.moved_from(8, b"x", False)
    assert changes.moved_to(7, b"b", False) == b"a"
    assert changes.moved_to(9, b"y", False) is None
    assert told(changes) == [("move", "/w/b", "/w/a"), ("delete", "/w/x", None), ("create", "/w/y", None)]


def test_a_write_of_our_own_is_a_change_of_the_file() -> None:
    changes = Changes(ALL)
    temporary = b"d/.atoll-0123456789abcdef"
    changes.add(ChangeType.CREATE, temporary)
    changes.moved_from(1, temporary, False)
    changes.moved_to(1, b"d/file", False)
    assert told(changes) == [("modify", "/w/d/file", None)]


def test_what_happens_in_a_directory_that_has_left_is_not_told() -> None:
    changes = Changes(ALL)
    changes.moved_from(1, b"d", True)
    changes.add(ChangeType.CREATE, b"d/elsewhere")
    changes.add(ChangeType.CREATE, b"d", is_directory=True)
    changes.add(ChangeType.CREATE, b"d/here")
    assert changes.directories_that_left() == [b"d"]
    assert told(changes) == [("delete", "/w/d", None), ("create", "/w/d", None), ("create", "/w/d/here", None)]


def test_more_than_is_held_is_said_to_be_unknown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_HELD", 2)
    changes = Changes(ALL)
    for number in range(10):
        changes.add(ChangeType.CREATE, b"%d" % number)
    assert told(changes) == [("create", "/w/0", None), ("create", "/w/1", None), ("overflow", "/w", None)]


def test_no_more_is_remembered_of_a_new_directory_than_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_HELD", 100)
    (tmp_path / "watched").mkdir()
    (tmp_path / "large").mkdir()
    for number in range(500):
        (tmp_path / f"large/{number}").touch()
    path = os.fsencode(tmp_path / "watched")
    with closing(DirectoryWatch(WatchFiles(path=path), path)) as watching:
        watching.begin()
        (tmp_path / "large").rename(tmp_path / "watched/large")
        changes = watching.take()
        assert [change.type for change in changes[-2:]] == [ChangeType.CREATE, ChangeType.OVERFLOW]
        assert len(watching._found) < len(changes) == 101


@pytest.mark.parametrize(
    ("path", "is_admitted"),
    [
        (b"a.py", True),
        (b"src/a.py", True),
        (b"a.txt", False),
        (b"docs/a.txt", True),
        (b"docs/deep/a.txt", True),
        (b"build/a.py", False),
        (b"src/build/a.py", False),
        (b"\xff.py", True),
        (b"new\nline.py", True),
    ],
)
def test_patterns_match_the_path_or_the_name(path: bytes, is_admitted: bool) -> None:
    assert Filter([b"*.py", b"docs/*"], [b"build"]).admits(path) is is_admitted


def test_events_are_parsed_with_and_without_a_name() -> None:
    data = struct.pack("iIII", 1, 2, 0, 16) + b"name".ljust(16, b"\0") + struct.pack("iIII", -1, 0x4000, 0, 0)
    assert list(parse(data)) == [RawEvent(1, 2, 0, b"name"), RawEvent(-1, 0x4000, 0, b"")]
