"""Every parameter of the SDK, given what cannot be meant: a typed error that names it, before anything is sent."""

from __future__ import annotations

import importlib
import inspect
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.protocol.errors import AtollError, ErrorCode, shown
from atoll.protocol.processes import ProcessInfo, ProcessStatus
from atoll.protocol.terminals import TerminalInfo
from atoll.values.promised import PROMISED
from tests.client.halves import Half

NOWHERE = "unix:///nowhere/server.sock"  # whoever asks it for something gets an error that is no ValueError
INFO = ProcessInfo(
    id="p",
    pid=2,
    command="true",
    status=ProcessStatus.RUNNING,
    start_time=datetime.now(UTC),
    session_id="default",
)
TERMINAL = TerminalInfo(id="t", pid=2, cols=80, rows=24, command=["sh"], created_at=INFO.start_time, viewers=0)

PATH = (5, None, "", "a\0b", ["a"])
REQUIRED_TEXT = (5, None, "", b"a", ["a"])
ID = (*REQUIRED_TEXT, "a b", "a" * 64)
FLAG = ("yes", 1, None, 0, "")
TIME = ("soon", -1, True, float("nan"), float("inf"), [1], b"1s", "")
COUNT = ("5", -1, True, 1.5, [1], "", 2**63, 10**30)
DIRECTORY = (5, "", b"/tmp", ["/tmp"], "a\0b", "\udc80", False)
ENVIRONMENT: tuple[Any, ...] = (
    5,
    [],
    "",
    "A=1",
    ["A=1"],
    {"A": 1},
    {1: "a"},
    {"": "a"},
    {"A=B": "c"},
    {"A": "\0"},
    {"A": "\udc80"},
    {"A": 10**5000},
    {10**5000: "a"},
)
NO_SHELL_NAMES = ({"a-b": "1"}, {"1a": "1"}, {"a b": "1"}, {"ä": "1"})  # fine for a command without a shell
CALLBACK: tuple[Any, ...] = (5, "print", [], 0)
COMMAND: tuple[Any, ...] = (5, None, [], ["a", 1], b"true", {"a": "b"}, [b"true"])
SIGNAL = ("SIGNOTHING", 0, -1, 1000, True, None, 1.5, "")
SIZE = (0, -1, "80", None, True, 1.5, 10**6)
STDIN = (5, True, object)
MODE = ("0644", -1, True, 0o10000, 1.5)
PATTERNS = (5, [5], "", [""], b"*", True)
FILE = (5, "", "a\0b", ["a"])
EXPOSABLE = (0, 80, 1023, 65536, "8080", None, True, 1.5)
SINCE = (-1, "1", True, 1.5, 2**63)
LABELS: tuple[Any, ...] = (
    5,
    [],
    "",
    "a=b",
    {"a": 1},
    {1: "a"},
    {"": "a"},
    {"a=b": "c"},
    {"a": "\udc80"},
    {"a": 10**5000},
)
NETWORK: tuple[Any, ...] = (
    5,
    "",
    "all",
    [],
    {"permit": []},
    {"allow": "a"},
    {"allow": [5]},
    {"deny": ["a b"]},
    {"allow": ["10.0.0.1/8"]},
    {"allow": ["a:0"]},
    True,
)
URL = (5, "", b"http://a", "nowhere", "ftp://a", "http://", "http://a:x", True)
KEY = (5, "", b"key", "kéy", "a\nb", True)

# What no parameter takes, and Python neither makes a float of nor writes down in digits.
HUGE = (10**400, 10**5000, -(10**5000))

# What each parameter is given, and HUGE; a method's other parameters are as in USUAL.
WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "get_sandbox": {
        "id": (*ID, "Upper", "-a", "a-"),
        "image": (5, "", b"host", True),
        "sleep_after": (*TIME, None),
        "keep_alive": FLAG,
        "create": FLAG,
        "env": (*ENVIRONMENT, *NO_SHELL_NAMES, {"A": None}),
        "limits": (
            5,
            [],
            "",
            "huge",
            {"cpus": "many"},
            {"ram": 1},
            {"memory": -1},
            {"cpus": 10**5000},
            {"disk": 10**5000},
            True,
        ),
        "labels": LABELS,
        "stop_after": TIME,
        "ttl": (*TIME, 0),
        "network": NETWORK,
        "strict": FLAG,
        "url": URL,
        "api_key": KEY,
    },
    "temporary_sandbox": {"id": (5, "", b"a", "Upper")},
    "list_sandboxes": {
        "labels": LABELS,
        "state": (5, "", "asleep", True),
        "limit": (0, -1, "5", True, 1.5),
        "after": (5, "", "Upper", "-a", "a-", b"a"),
        "usage": FLAG,
        "url": URL,
        "api_key": KEY,
    },
    "Sandbox.exec": {
        "command": COMMAND,
        "cwd": DIRECTORY,
        "env": ENVIRONMENT,
        "timeout": TIME,
        "stdin": STDIN,
        "on_output": CALLBACK,
        "max_output": COUNT,
    },
    "Sandbox.exec_stream": {
        "command": COMMAND,
        "cwd": DIRECTORY,
        "env": ENVIRONMENT,
        "timeout": TIME,
        "stdin": STDIN,
        "max_output": COUNT,
    },
    "Sandbox.set_ttl": {"ttl": (*TIME, 0)},
    "Sandbox.set_network": {"network": NETWORK},
    "Sandbox.set_limits": {
        "limits": (5, [], "", "huge", {"cpus": "many"}, {"ram": 1}, True, None, {}),
        "cpus": ("many", 0, -1, True, [1]),
        "memory": ("", -1, "huge", True, 1.5),
        "disk": ("", -1, "huge", True, 1.5),
        "pids": ("5", 0, True, 1.5),
    },
    "Sandbox.set_env_vars": {"env": (*ENVIRONMENT, *NO_SHELL_NAMES, None)},
    "Sandbox.sleep": {"stop": FLAG},
    "Sandbox.set_sleep_after": {"sleep_after": (*TIME, None)},
    "Sandbox.set_keep_alive": {"keep_alive": FLAG},
    "Sandbox.set_stop_after": {"stop_after": TIME},
    "Sandbox.set_labels": {"labels": (*LABELS, None)},
    "Sandbox.events": {"since": SINCE},
    "Sandbox.follow_events": {"since": SINCE},
    "Sandbox.create_session": {
        "id": ("", 5, b"a", "a b", True),
        "env": (*ENVIRONMENT, *NO_SHELL_NAMES),
        "cwd": DIRECTORY,
    },
    "Sandbox.get_session": {"id": ID},
    "Sandbox.delete_session": {"id": ID},
    "Sandbox.start_process": {
        "command": COMMAND,
        "process_id": ("", 5, b"a", "a b", True),
        "cwd": DIRECTORY,
        "env": ENVIRONMENT,
        "timeout": TIME,
        "restart": (5, "", "sometimes", True),
    },
    "Sandbox.get_process": {"id": ID},
    "Sandbox.is_process_running": {"id": ID},
    "Sandbox.kill_process": {"id": ID, "signal": SIGNAL},
    "Sandbox.get_process_logs": {"id": ID},
    "Sandbox.stream_process_logs": {"id": ID, "follow": FLAG, "since": SINCE},
    "Sandbox.create_terminal": {
        "cols": SIZE,
        "rows": SIZE,
        "shell": (5, "", [], [5], b"sh", True),
        "cwd": DIRECTORY,
        "env": ENVIRONMENT,
    },
    "Sandbox.get_terminal": {"id": REQUIRED_TEXT},
    "Sandbox.write_file": {
        "path": PATH,
        "content": (5, None, {"a": 1}, "\udc80"),
        "encoding": (5, None, "", "latin-1"),
        "mode": MODE,
        "sync": FLAG,
    },
    "Sandbox.read_file": {
        "path": PATH,
        "encoding": (5, "", "latin-1"),
        "offset": (*COUNT, None),
        "length": COUNT,
    },
    "Sandbox.read_file_stream": {"path": PATH, "offset": (*COUNT, None), "length": COUNT},
    "Sandbox.open_file": {
        "path": PATH,
        "mode": (5, None, "", "r+", "a+", "br", "rU"),
        "encoding": (5, "", "latin-99", "base64", "utf-8"),
        "errors": (5, "", "ignored", "strict"),
        "newline": (5, "", "\r", "x"),
    },
    "Sandbox.mkdir": {"path": PATH, "recursive": FLAG, "mode": (*MODE, None)},
    "Sandbox.delete_file": {"path": PATH},
    "Sandbox.delete_dir": {"path": PATH, "recursive": FLAG},
    "Sandbox.rm": {"path": PATH, "recursive": FLAG},
    "Sandbox.rename_file": {"old_path": PATH, "new_path": PATH},
    "Sandbox.move_file": {"source_path": PATH, "destination_path": PATH},
    "Sandbox.copy_file": {"source_path": PATH, "destination_path": PATH},
    "Sandbox.list_files": {"path": PATH, "recursive": FLAG, "include_hidden": FLAG},
    "Sandbox.readdir": {"path": PATH},
    "Sandbox.exists": {"path": PATH},
    "Sandbox.stat": {"path": PATH, "follow_symlinks": FLAG},
    "Sandbox.chmod": {"path": PATH, "mode": (*MODE, None)},
    "Sandbox.watch": {
        "path": PATH,
        "recursive": FLAG,
        "include": PATTERNS,
        "exclude": PATTERNS,
    },
    "Sandbox.upload": {
        "local": PATH,
        "remote": PATH,
        "exclude": PATTERNS,
        "exclude_from": FILE,
        "on_progress": CALLBACK,
    },
    "Sandbox.download": {
        "remote": PATH,
        "local": PATH,
        "exclude": PATTERNS,
        "exclude_from": FILE,
        "on_progress": CALLBACK,
        "max_bytes": (-1, "much", True, 1.5, b"1"),
        "max_entries": (-1, "many", True, 1.5, b"1"),
        "max_depth": (-1, "deep", True, 1.5, b"1"),
    },
    "Process.kill": {"signal": SIGNAL},
    "Process.stream_logs": {"follow": FLAG, "since": SINCE},
    "Process.wait_for_log": {"wanted": (5, None, "", b"a"), "timeout": TIME},
    "Sandbox.expose_port": {
        "port": EXPOSABLE,
        "name": (5, "", b"a", True, "a\nb", "a" * 65, "\udc80"),
        "token": (5, "", b"a", True, "A", "a-b", "a" * 17),
        "expires": (*TIME, 0),
    },
    "Sandbox.unexpose_port": {"port": EXPOSABLE},
    "Sandbox.is_port_exposed": {"port": EXPOSABLE},
    "Process.wait_for_port": {
        "port": (0, -1, 65536, "80", None, True, 1.5),
        "mode": (5, None, "", "udp"),
        "path": (5, None, "", "a", "/ä", "/a b"),
        "status": (5, None, "200", (200,), (1, 2, 3), ("a", "b"), True, 600),
        "timeout": TIME,
    },
    "Process.wait_for_exit": {"timeout": TIME},
    "Terminal.attach": {"stdin": STDIN},
    "Terminal.write": {"data": (5, None, "\udc80", ["a"])},
    "Terminal.resize": {"cols": SIZE, "rows": SIZE},
}
# A noun may have its own with its own tests, as `WRONG_ARGUMENTS`.
for file in sorted(Path(__file__).parents[1].glob("*/test_*.py")):
    if "\nWRONG_ARGUMENTS" in file.read_text():
        for where, arguments in importlib.import_module(
            f"tests.{file.parent.name}.{file.stem}"
        ).WRONG_ARGUMENTS.items():
            WRONG[where] = {**WRONG.get(where, {}), **arguments}
USUAL: dict[str, dict[str, Any]] = {
    "get_sandbox": {"id": "user-123", "url": NOWHERE},
    "temporary_sandbox": {"url": NOWHERE},
    "list_sandboxes": {"url": NOWHERE},
    "Sandbox.exec": {"command": "true"},
    "Sandbox.exec_stream": {"command": "true"},
    "Sandbox.start_process": {"command": "true"},
    "Sandbox.kill_process": {"id": "p"},
    "Sandbox.stream_process_logs": {"id": "p"},
    "Sandbox.write_file": {"path": "a", "content": "b"},
    "Sandbox.rename_file": {"old_path": "a", "new_path": "b"},
    "Sandbox.move_file": {"source_path": "a", "destination_path": "b"},
    "Sandbox.copy_file": {"source_path": "a", "destination_path": "b"},
    "Sandbox.chmod": {"path": "a", "mode": 0o644},
    "Sandbox.upload": {"local": "/etc/hostname", "remote": "b"},
    "Sandbox.download": {"remote": "a", "local": "/nowhere/b"},
    "Process.wait_for_log": {"wanted": "a"},
    "Sandbox.expose_port": {"port": 8080},
    "Process.wait_for_port": {"port": 80},
    "Terminal.resize": {"cols": 80, "rows": 24},
    **{
        f"Sandbox.{name}": {"path": "a"}
        for name in (
            "read_file",
            "read_file_stream",
            "open_file",
            "mkdir",
            "delete_dir",
            "rm",
            "list_files",
            "stat",
            "watch",
        )
    },
}
SPELLED_AGAIN = {"spawn"}
LATER = set(PROMISED)
COMES_LATER = {name.rstrip("=") for name in PROMISED}  # NOT_AVAILABLE_YET, whatever they are

CASES = [
    pytest.param(where, name, id=f"{where}({name}=)") for where, parameters in WRONG.items() for name in parameters
]


def target(half: Half, where: str) -> Any:
    kind, _, method = where.rpartition(".")
    sandbox = half.get_sandbox("user-123", url=NOWHERE)
    package, prefix = ("client", "Async") if half.name == "async" else ("client_sync", "")
    match kind:
        case "":
            return getattr(half, method)
        case "Sandbox":
            return getattr(sandbox, method)
        case "Session":
            module = importlib.import_module(f"atoll.{package}.sessions")
            return getattr(getattr(module, f"{prefix}Session")(sandbox._sandbox, "s"), method)
        case "Process":
            module = importlib.import_module(f"atoll.{package}.processes")
            return getattr(getattr(module, f"{prefix}Process")(sandbox._sandbox, INFO), method)
    module = importlib.import_module(f"atoll.{package}.terminals")
    return getattr(getattr(module, f"{prefix}Terminal")(sandbox._sandbox, TERMINAL), method)


async def run(half: Half, where: str, function: Any, arguments: dict[str, Any]) -> None:
    if where == "list_sandboxes":
        await function(**arguments)
    else:
        await half.run(function, **arguments)


@pytest.mark.parametrize(("where", "name"), CASES)
async def test_what_cannot_be_meant_is_refused_before_anything_is_sent(half: Half, where: str, name: str) -> None:
    function = target(half, where)
    for value in (*WRONG[where][name], *HUGE):
        with pytest.raises(AtollError) as caught:
            await run(half, where, function, {**USUAL.get(where, {}), name: value})
        problem = caught.value
        assert problem.code.value.startswith("INVALID_"), shown(value)
        assert isinstance(problem, ValueError) or problem.code is ErrorCode.INVALID_API_KEY, shown(value)
        assert problem.remedy, shown(value)
        assert "cannot be sent" not in problem.message, shown(value)
        assert len(str(problem)) < 1000, shown(value)


async def test_a_wrong_value_is_shown_with_its_name(half: Half) -> None:
    sandbox = half.get_sandbox("user-123", url=NOWHERE)
    for name, value in (("cwd", 5), ("on_output", 5), ("max_output", "5")):
        with pytest.raises(ValueError, match=f"{name}={value!r} ") as caught:
            await half.run(sandbox.exec, "true", **{name: value})
        assert isinstance(caught.value, AtollError)
        assert (caught.value.context["field"], caught.value.context["value"]) == (name, repr(value))


@pytest.mark.parametrize("whence", [os.SEEK_SET, os.SEEK_CUR])
async def test_a_place_that_no_file_has_is_refused_before_anything_is_sent(half: Half, whence: int) -> None:
    file = half.get_sandbox("user-123", url=NOWHERE).open_file("a")
    assert await half.run(file.seek, 5) == 5
    for place in (1.5, "1", True, None, 2**63, 2**63 - 1 if whence else 2**70, -6, *HUGE):
        with pytest.raises(ValueError) as caught:
            await half.run(file.seek, place, whence)
        assert isinstance(caught.value, AtollError)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert "Give a" in caught.value.remedy
        assert file.tell() == 5


async def test_the_table_has_every_parameter_there_is(half: Half) -> None:
    sandbox, process, terminal = (target(half, f"{kind}.__init__") for kind in ("Sandbox", "Process", "Terminal"))
    missing = []
    for kind, thing in (("Sandbox", sandbox), ("Process", process), ("Terminal", terminal)):
        for method, function in inspect.getmembers(thing.__self__, inspect.ismethod):
            if not method.startswith("_") and method not in SPELLED_AGAIN | LATER:
                where = f"{kind}.{method}"
                missing += [(where, name) for name in parameters(function) if name not in WRONG.get(where, {})]
    for where, known in (("get_sandbox", half.get_sandbox), ("list_sandboxes", atoll.list_sandboxes)):
        missing += [(where, name) for name in parameters(known) if name not in WRONG[where]]
    assert not [(where, name) for where, name in missing if name not in COMES_LATER]


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)
