"""What users may write for ids, image names and limits, and what they are told otherwise."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from atoll.images.names import parse_image_name
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.limits import SIZES, Limits, parse_limits
from atoll.protocol.processes import ProcessInfo
from atoll.protocol.sessions import SessionInfo
from atoll.protocol.terminals import TerminalInfo


@pytest.mark.parametrize("text", ["a", "user-123", "0", "a" * 63, "a--b"])
def test_ids_that_are_host_names_are_taken_as_they_are(text: str) -> None:
    assert parse_sandbox_id(text) == text


@pytest.mark.parametrize(
    "text", ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "..", "a" * 64, "é", "a\n", "a b", "a\0", None, 7, b"a"]
)
def test_everything_else_is_an_error_with_value_and_remedy(text: Any) -> None:
    with pytest.raises(ValueError) as caught:
        parse_sandbox_id(text)
    assert isinstance(caught.value, AtollError)
    assert caught.value.code == ErrorCode.INVALID_SANDBOX_ID
    assert repr(text)[:40] in caught.value.message
    assert "hyphen" in caught.value.remedy


NOW = datetime(2026, 1, 1, tzinfo=UTC)
SAID: dict[type[ProcessInfo | TerminalInfo | SessionInfo], dict[str, Any]] = {
    ProcessInfo: {"pid": 1, "command": "x", "status": "running", "start_time": NOW, "session_id": "default"},
    TerminalInfo: {"pid": 1, "cols": 80, "rows": 24, "command": ["x"], "created_at": NOW, "viewers": 0},
    SessionInfo: {"cwd": "/", "created_at": NOW, "commands_waiting": 0},
}


@pytest.mark.parametrize("shape", SAID)
def test_an_id_that_an_agent_made_is_safe_to_print_and_to_paste(
    shape: type[ProcessInfo | TerminalInfo | SessionInfo],
) -> None:
    for text in ("terminal-0a1b2c3d", "web", "A.b_c-9", "x" * 63):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode({"id": text} | SAID[shape]), type=shape).id == text
    for text in ("", "a; rm -rf /", "$(reboot)", "a\n", "\x1b[2J", "-f", "x" * 64, "é"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode({"id": text} | SAID[shape]), type=shape)


@pytest.mark.parametrize("text", ["", "../x", ".x", "a/b", "A", "x" * 200, "a\n"])
def test_image_names_cannot_leave_their_directory(text: str) -> None:
    with pytest.raises(AtollError) as caught:
        parse_image_name(text)
    assert caught.value.code == ErrorCode.INVALID_IMAGE_NAME


def test_default_limits() -> None:
    limits = parse_limits(None)
    assert (limits.cpus, limits.memory, limits.disk, limits.pids) == (2.0, 2 * 2**30, 4 * 2**30, 1024)


def test_named_sizes() -> None:
    assert parse_limits("lite") == Limits(cpus=1 / 16, memory=256 * 2**20, disk=2 * 10**9)
    assert parse_limits("basic") == Limits(cpus="1/4", memory="1GiB", disk="4GB")
    assert [SIZES[f"standard-{number}"].cpus for number in (1, 2, 3, 4)] == [0.5, 1, 2, 4]
    assert parse_limits("standard-4") == Limits(cpus=4, memory="12GiB", disk="20GB")


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 2**29), ("1.5 gib", 3 * 2**29), ("30MB", 30_000_000), ("33554432", 2**25), ("64M", 64_000_000)],
)
def test_sizes_in_words(text: str, size: int) -> None:
    assert Limits(memory=text).memory == size


@pytest.mark.parametrize(
    "fields",
    [
        {"cpus": 0},
        {"cpus": -1},
        {"cpus": "1/0"},
        {"cpus": float("nan")},
        {"cpus": float("inf")},
        {"cpus": "many"},
        {"cpus": True},
        {"cpus": "9" * 5000},
        {"cpus": "1e9999999999"},
        {"cpus": "1/1e9"},
        {"memory": "1MiB"},
        {"memory": "lots"},
        {"memory": -5},
        {"memory": 1e9},
        {"memory": "9" * 5000},
        {"memory": 2**70},
        {"disk": 0},
        {"disk": "4XB"},
        {"pids": 0},
        {"pids": 2**30},
        {"pids": "12"},
        {"pids": True},
        {"colour": "red"},
    ],
)
def test_impossible_limits_name_the_field_and_say_what_is_possible(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        parse_limits(fields)
    assert isinstance(caught.value, AtollError)
    assert caught.value.code == ErrorCode.INVALID_LIMITS
    assert caught.value.remedy


@pytest.mark.parametrize("value", ["huge", 7, [1]])
def test_unknown_sizes_list_the_known(value: Any) -> None:
    with pytest.raises(AtollError) as caught:
        parse_limits(value)
    assert "standard-1" in caught.value.remedy


def test_limits_survive_a_message_and_are_checked_on_the_way_in() -> None:
    limits = Limits(cpus=0.25, memory="1GiB")
    assert msgspec.json.decode(msgspec.json.encode(limits), type=Limits) == limits
    with pytest.raises((AtollError, msgspec.ValidationError)):
        msgspec.json.decode(b'{"cpus": -1, "memory": 1, "disk": 1, "pids": 0}', type=Limits)
