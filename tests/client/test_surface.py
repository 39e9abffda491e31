"""The surface of the SDK: the same names in both halves, and handles that are equal where they name the same."""

from __future__ import annotations

import copy
import inspect
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

import atoll
from atoll.protocol.processes import ProcessInfo, ProcessStatus
from atoll.protocol.terminals import TerminalInfo
from tests.client.halves import Half

HERE, THERE = "unix:///nowhere/server.sock", "unix:///elsewhere/server.sock"
NOW = datetime.now(UTC)
# As they are called in each half; everything else differs by "Async" alone.
TWINS = {
    "get_sandbox": "get_async_sandbox",
    "list_sandboxes": "list_sandboxes_async",
    "temporary_sandbox": "temporary_async_sandbox",
    "events": "events_async",
    "follow_events": "follow_events_async",
}
FOR_BOTH = {"proxy_to_sandbox"}
ONLY_ASYNC = {"aclose"}  # `close` is there too


def blocking_classes() -> list[str]:
    return [name for name in atoll.__all__ if f"Async{name}" in atoll.__all__]


def public(name: str) -> set[str]:
    return {member for member in dir(getattr(atoll, name)) if not member.startswith("_")}


@pytest.mark.parametrize("name", blocking_classes())
def test_both_halves_have_the_same_names(name: str) -> None:
    assert public(f"Async{name}") - ONLY_ASYNC == public(name)
    assert ("aclose" in public(f"Async{name}")) <= ("close" in public(name))


@pytest.mark.parametrize("name", blocking_classes())
def test_both_halves_take_the_same_arguments(name: str) -> None:
    for member in public(name):
        one, other = (getattr(getattr(atoll, f"{prefix}{name}"), member) for prefix in ("", "Async"))
        if inspect.isfunction(one):
            assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), member


def test_every_blocking_name_has_an_async_one() -> None:
    classes = blocking_classes()
    assert len(classes) >= 10
    functions = [name for name in atoll.__all__ if inspect.isfunction(getattr(atoll, name))]
    assert set(functions) == {*TWINS, *TWINS.values(), *FOR_BOTH}


def test_close_is_the_same_as_aclose() -> None:
    for name in blocking_classes():
        if hasattr(kind := getattr(atoll, f"Async{name}"), "aclose"):
            assert kind.close is kind.aclose


def handles(half: Half, url: str = HERE, sandbox_id: str = "a", api_key: str | None = None) -> list[Any]:
    """One of each kind, of the same names."""
    from atoll import client, client_sync

    package, prefix = (client, "Async") if half.name == "async" else (client_sync, "")
    modules = {name: __import__(f"{package.__name__}.{name}", fromlist=["x"]) for name in ("sessions", "processes")}
    modules["terminals"] = __import__(f"{package.__name__}.terminals", fromlist=["x"])
    sandbox = half.get_sandbox(sandbox_id, url=url, api_key=api_key)
    process = ProcessInfo(
        id="b", pid=2, command="a", status=ProcessStatus.RUNNING, start_time=NOW, session_id="default"
    )
    terminal = TerminalInfo(id="b", pid=2, cols=80, rows=24, command=["sh"], created_at=NOW, viewers=0)
    return [
        sandbox,
        getattr(modules["sessions"], f"{prefix}Session")(sandbox._sandbox, "b"),
        getattr(modules["processes"], f"{prefix}Process")(sandbox._sandbox, process),
        getattr(modules["terminals"], f"{prefix}Terminal")(sandbox._sandbox, terminal),
    ]


def test_handles_that_name_the_same_are_equal(half: Half) -> None:
    ours = handles(half)
    for same in (
        handles(half),
        handles(half, api_key="another-key"),
        copy.copy(ours),
        pickle.loads(pickle.dumps(ours)),
    ):
        assert ours == same
        assert [hash(handle) for handle in ours] == [hash(handle) for handle in same]
    assert len({*ours, *handles(half)}) == len(ours)


def test_handles_that_name_something_else_are_not(half: Half) -> None:
    ours = handles(half)
    for others in (handles(half, THERE), handles(half, sandbox_id="b")):
        assert all(one != other for one in ours for other in others)
    assert len(set(ours)) == 4
    assert all(handle != handle.id for handle in ours)


def test_a_process_is_itself_when_it_is_over(half: Half) -> None:
    process = handles(half)[2]
    over = ProcessInfo(
        id="b", pid=2, command="a", status=ProcessStatus.COMPLETED, start_time=NOW, session_id="s", exit_code=0
    )
    assert type(process)(process._sandbox, over) == process
    assert process.to_dict()["status"] == "running"
