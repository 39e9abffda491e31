"""Which version a call needs, and that every call says so which is not of the first."""

from __future__ import annotations

import msgspec
import pytest

from atoll.protocol.calls import FIRST
from atoll.protocol.commands import Exec
from atoll.protocol.kinds import KINDS
from atoll.protocol.messages import encode_message
from atoll.protocol.terminals import CreateTerminal, ListTerminals
from atoll.protocol.versions import PROTOCOL_VERSION, SINCE, version_needed

# Never longer: what comes later says so. The second of each is the fields it had.
OF_THE_FIRST_VERSION: dict[str, set[str]] = {
    "exec": {"argv", "session_id", "cwd", "env", "stdin", "timeout", "max_output"},
    "exec_shell": {"command", "session_id", "cwd", "env", "stdin", "timeout", "max_output"},
    "create_session": {"session_id", "cwd", "env"},
    "delete_session": {"session_id"},
    "list_sessions": set(),
    "set_environment": {"env"},
    "ping": set(),
    "read_file": {"session_id", "path", "offset", "length", "holes", "max_bytes"},
    "write_file": {"session_id", "path", "mode", "sync", "exclusive", "map"},
    "list_files": {"session_id", "path", "recursive", "include_hidden"},
    "stat_file": {"session_id", "path", "follow"},
    "make_directory": {"session_id", "path", "recursive", "mode"},
    "delete_file": {"session_id", "path"},
    "delete_directory": {"session_id", "path", "recursive"},
    "move_file": {"session_id", "source", "target", "into_directory"},
    "copy_file": {"session_id", "source", "target"},
    "change_mode": {"session_id", "path", "mode"},
    "pack_files": {"session_id", "path", "bounds"},
    "unpack_files": {"session_id", "path"},
    "watch_files": {"session_id", "path", "recursive", "include", "exclude"},
    "start_process": {"command", "process_id", "session_id", "cwd", "env", "timeout", "restart"},
    "list_processes": set(),
    "get_process": {"process_id"},
    "kill_process": {"process_id", "signal"},
    "kill_all_processes": set(),
    "clean_up_processes": set(),
    "stream_process_log": {"process_id", "since", "follow", "timeout"},
    "wait_for_port": {"process_id", "port", "mode", "path", "min_status", "max_status", "timeout"},
    "wait_for_exit": {"process_id", "timeout"},
    "create_terminal": {"cols", "rows", "shell", "cwd", "env", "session_id"},
    "attach_terminal": {"terminal_id"},
    "write_terminal": {"terminal_id", "data"},
    "resize_terminal": {"terminal_id", "cols", "rows"},
    "wait_terminal": {"terminal_id"},
    "close_terminal": {"terminal_id"},
    "list_terminals": set(),
}


def fields_of_calls() -> dict[str, set[str]]:
    calls = (kind.__struct_config__.tag for kind in KINDS)
    kinds = dict(zip(calls, KINDS, strict=True))
    return {str(tag): {field.encode_name for field in msgspec.structs.fields(kind)} for tag, kind in kinds.items()}


def test_what_came_later_than_the_first_version_says_when() -> None:
    found = fields_of_calls()
    for tag, fields in found.items():
        if tag not in OF_THE_FIRST_VERSION:
            assert tag in SINCE, f"{tag} is new: say in it which version it came_with"
            continue
        for field in fields - OF_THE_FIRST_VERSION[tag]:
            assert f"{tag}.{field}" in SINCE, f"{tag}.{field} is new: say so in fields_came_with"
    assert all(found[tag] >= fields for tag, fields in OF_THE_FIRST_VERSION.items()), "nothing goes"


def test_what_says_when_it_came_is_there_and_not_of_the_future() -> None:
    found = fields_of_calls()
    for what, version in SINCE.items():
        tag, _, field = what.partition(".")
        assert tag in found and (not field or field in found[tag]), what
        assert FIRST < version <= PROTOCOL_VERSION, what


def test_a_call_needs_the_latest_version_of_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version_needed(encode_message(ListTerminals())) == FIRST
    monkeypatch.setitem(SINCE, "list_terminals", 2)
    monkeypatch.setitem(SINCE, "exec.stdin", 3)
    assert version_needed(encode_message(ListTerminals())) == 2
    assert version_needed(encode_message(Exec(argv=["true"]))) == FIRST
    assert version_needed(encode_message(Exec(argv=["true"], stdin=True))) == 3
    assert version_needed(encode_message(CreateTerminal())) == FIRST


@pytest.mark.parametrize(
    "message", [b"", b"\x90", b"\x80", b"\xc1", b"\x81\xa4type\x07", b"\x81\xa4type\xa4none", b"\x91" * 9999]
)
def test_what_is_no_call_needs_none(monkeypatch: pytest.MonkeyPatch, message: bytes) -> None:
    monkeypatch.setitem(SINCE, "list_terminals", 2)
    assert version_needed(message) == FIRST
