"""Values as users see them: plain, equal to what they look like, and taken in whatever form Python has them."""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import pytest

import atoll
from atoll.protocol.arguments import check_command, check_count, check_directory, check_offset
from atoll.protocol.durations import parse_duration
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.files import check_mode
from atoll.protocol.limits import Limits, parse_bounds
from atoll.protocol.plain import Plain
from atoll.protocol.processes import check_port, parse_signal
from atoll.protocol.terminals import TerminalInfo, check_size, to_words

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROCESS = atoll.ProcessInfo(
    id="web", pid=2, command=["a"], status=atoll.ProcessStatus.RUNNING, start_time=NOW, session_id="default"
)
VALUES: tuple[Plain, ...] = (
    atoll.ExecResult(
        exit_code=3, stdout_bytes=b"a\xff", stderr_bytes=b"", command="a", duration=0.5, timestamp=NOW, session_id="s"
    ),
    atoll.ExecEvent(type="stdout", timestamp=NOW, data_bytes=b"a", text_bytes=b"a"),
    atoll.ExecEvent(type="error", timestamp=NOW, error=error(ErrorCode.AGENT_LOST, "gone", remedy="Ask again.")),
    atoll.FileContent(content="a", encoding="utf-8", is_binary=False, mime_type="text/plain", size=1),
    atoll.FileContent(content=b"\xff", encoding="bytes", is_binary=True, mime_type="application/octet-stream", size=1),
    atoll.FileInfo(raw_path=b"/a/\xff", type=atoll.FileType.SYMLINK, size=1, mode=0o777, modified_at=NOW),
    atoll.FileChange(type=atoll.ChangeType.MOVE, raw_path=b"/b", raw_old_path=b"/a"),
    PROCESS,
    atoll.ProcessLogs(stdout_bytes=b"a", stderr_bytes=b"b", number=2),
    atoll.ProcessEvent(type="exit", number=3, timestamp=NOW, exit_code=0, status=atoll.ProcessStatus.COMPLETED),
    atoll.LogMatch(line="ready", stream="stdout"),
    atoll.SessionInfo(id="s", cwd="/workspace", created_at=NOW, commands_waiting=0),
    TerminalInfo(id="t", pid=2, cols=80, rows=24, command=["sh"], created_at=NOW, viewers=0),
    atoll.SandboxEvent(number=1, time=NOW, what="created", cause="asked for", by="local"),
    atoll.SandboxInfo(
        id="a",
        state=atoll.SandboxState.RUNNING,
        since=NOW,
        cause="asked for",
        created_at=NOW,
        image="host",
        image_state="1",
        isolation="native",
        limits=Limits(),
        labels={"a": "b"},
        env=["A"],
        sleep_after=600.0,
        keep_alive=False,
    ),
)
# What a plain value has in another form: exact bytes, what only Python has, and where a relative path begins.
IN_ANOTHER_FORM = {
    "stdout_bytes",
    "stderr_bytes",
    "data_bytes",
    "text_bytes",
    "raw_path",
    "raw_old_path",
    "raw_target",
    "match",
    "listed_from",
}


class Whole:
    """A number as NumPy has them: none of Python's classes, and yet one of its numbers."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


class Real:
    def __init__(self, value: float) -> None:
        self._value = value

    def __float__(self) -> float:
        return self._value


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_json_without_a_helper_and_has_all_that_its_users_see(value: Plain) -> None:
    plain = value.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    seen = {name for name, _ in inspect.getmembers(value) if not name.startswith("_") and name != "to_dict"}
    assert set(plain) == seen - IN_ANOTHER_FORM


def test_a_plain_value_has_what_the_value_has() -> None:
    result = VALUES[0].to_dict()
    assert (result["success"], result["exit_code"], result["stdout"]) == (False, 3, "a\ufffd")
    assert result["timestamp"] == "2026-01-02T03:04:05Z"
    assert VALUES[2].to_dict()["error"] == {
        "code": "AGENT_LOST",
        "message": "gone",
        "context": {},
        "remedy": "Ask again.",
    }
    assert VALUES[5].to_dict()["path"] == "/a/\udcff"
    assert VALUES[-1].to_dict()["limits"]["pids"] == 1024


def test_an_enum_is_its_text() -> None:
    members: list[Any] = [
        *atoll.SandboxState,
        *atoll.FileType,
        *atoll.ChangeType,
        *atoll.ProcessStatus,
        *atoll.ErrorCode,
    ]
    for member in members:
        assert member == member.value
        assert f"{member}" == str(member) == member.value
        assert json.dumps(member) == f'"{member.value}"'
    assert {"running": 1}[atoll.SandboxState.RUNNING] == 1


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172800),
        ("1m500ms", 60.5),
        ("1.5h", 5400),
        ("90", 90),
        (timedelta(minutes=2), 120),
        (Whole(7), 7),
        (Real(0.5), 0.5),
        (Decimal("1.5"), 1.5),
        (Fraction(1, 2), 0.5),
    ],
)
def test_a_time_is_taken_in_every_form(given: Any, seconds: float) -> None:
    assert parse_duration(given) == seconds


@pytest.mark.parametrize("given", ["30m1h", "1m1m", "1h-5m", "h", "1 x", "1h30", timedelta(-1), "٣s"])
def test_what_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(AtollError, match="is not a time"):
        parse_duration(given)


def test_a_number_is_taken_of_every_type_that_is_one() -> None:
    numbers = [
        check_count(Whole(5), "n"),
        check_offset(Whole(-5)),
        check_mode(Whole(0o644)),
        check_port(Whole(80)),
        parse_signal(Whole(9)),
        *check_size(Whole(80), Whole(24)),
        parse_bounds(Whole(5)).max_bytes,
    ]
    assert numbers == [5, -5, 0o644, 80, 9, 80, 24, 5]
    assert {type(number) for number in numbers} == {int}
    limits = Limits(cpus=Real(0.5), memory=Whole(2**30), disk=Whole(2**30), pids=Whole(64))  # type: ignore[arg-type]
    assert (limits.cpus, limits.memory, limits.disk, limits.pids) == (0.5, 2**30, 2**30, 64)


def test_a_path_is_taken_as_an_object() -> None:
    path = PurePosixPath("/workspace")
    assert check_directory(path) == "/workspace"
    assert check_command(["ls", path]) == ["ls", "/workspace"]
    assert to_words(PurePosixPath("/bin/sh")) == ["/bin/sh"]


def test_an_error_is_plain_too() -> None:
    problem = error(ErrorCode.FILE_NOT_FOUND, "no a", remedy="Make it.", path="a")
    assert json.loads(json.dumps(problem.to_dict())) == {
        "code": "FILE_NOT_FOUND",
        "message": "no a",
        "context": {"path": "a"},
        "remedy": "Make it.",
    }
