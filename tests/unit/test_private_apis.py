"""Other people's insides: each that we build on, by name, and whether it still is what was looked at.

What a library documents it keeps; the rest may go with any release. So whatever of it is used stands in the table here,
and a release that takes something away, or changes it, is told as that and not by a failure elsewhere. For what has
changed: read it, see whether ours still does what it is for, then put the new digest here.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import inspect
import os
import selectors
import textwrap
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.websockets import websockets_sansio_impl
from uvicorn.server import ServerState

from atoll.agent.loop import AgentLoop

SOURCE = Path(__file__).parents[2] / "src/atoll"
LOOKED_AT = "uvicorn 0.54.0"


class Method(NamedTuple):
    """A method of another's class that one of ours extends or calls, and the digest of what was looked at."""

    owner: type
    name: str
    digest: str
    used_by: str


class Attribute(NamedTuple):
    """What the methods of another's class set on `self`."""

    owner: type
    name: str
    used_by: str


def methods(owner: type, used_by: str, digests: dict[str, str]) -> list[Method]:
    return [Method(owner, name, digest, used_by) for name, digest in digests.items()]


def attributes(owner: type, used_by: str, names: str) -> list[Attribute]:
    return [Attribute(owner, name, used_by) for name in names.split()]


IN_CONNECTIONS, IN_RUN = "server/connections.py", "server/run.py"
METHODS = [
    *methods(
        httptools_impl.HttpToolsProtocol,
        f"ClientConnection in {IN_CONNECTIONS}",
        {
            "__init__": "2c6ec6633cc7",
            "connection_made": "57022c8ff63c",
            "connection_lost": "d94c8f881c93",
            "data_received": "77d64a8ed713",
            "on_message_begin": "edabbefc2c67",
            "on_url": "d69b800a2340",
            "on_header": "3c6232bfbe8d",
            "on_headers_complete": "2e824b77a965",
            "on_body": "a8b4e86add6c",
            "on_message_complete": "637e321f44da",
            "on_response_complete": "04f458814d56",
            "handle_websocket_upgrade": "616bf4fb0754",
            "send_400_response": "8e00496f6435",
        },
    ),
    *methods(
        httptools_impl.RequestResponseCycle,
        f"Wire and its answer in {IN_CONNECTIONS}, which stand in for its transport",
        {"__init__": "08d1b2451355", "run_asgi": "ea88af1b2d3e", "send": "cf43f4fee48d", "receive": "e8e7d1f9ef89"},
    ),
    *methods(
        flow_control.FlowControl,
        f"WatchedFlow in {IN_CONNECTIONS}",
        {
            "drain": "e53a5dabeb82",
            "__init__": "d2016f533cfd",
            "pause_reading": "6c5659c6930f",
            "resume_reading": "a7ad58bdb0ba",
        },
    ),
    *methods(
        websockets_sansio_impl.WebSocketsSansIOProtocol,
        f"ClientWebSocket in {IN_CONNECTIONS}",
        {
            "connection_made": "aec33d43e849",
            "connection_lost": "abb19c92bca1",
            "send_receive_event_to_app": "ee7442e15ed2",
            "run_asgi": "e7cd437ec983",
            "send": "337c88bc1bbb",
        },
    ),
]
ATTRIBUTES = [
    *attributes(
        httptools_impl.HttpToolsProtocol,
        f"ClientConnection in {IN_CONNECTIONS}",
        "client connections cycle flow headers loop pipeline scope server server_state transport url",
    ),
    *attributes(
        httptools_impl.RequestResponseCycle,
        f"ClientConnection in {IN_CONNECTIONS}",
        "disconnected keep_alive response_complete transport",
    ),
    *attributes(flow_control.FlowControl, f"WatchedFlow and Wire in {IN_CONNECTIONS}", "read_paused write_paused"),
    *attributes(
        websockets_sansio_impl.WebSocketsSansIOProtocol,
        f"ClientWebSocket in {IN_CONNECTIONS}",
        "handshake_complete loop read_paused scope transport",
    ),
    *attributes(ServerState, f"{IN_CONNECTIONS} and end_when_idle in {IN_RUN}", "connections total_requests"),
    *attributes(uvicorn.Server, f"end_when_idle in {IN_RUN}", "server_state should_exit"),
]
# Private names of others that the source may use, where, and by which test below each is held.
PRIVATE_NAMES = {
    ("agent/loop.py", "_make_self_pipe"): "test_a_loop_takes_no_descriptor_before_it_is_opened",
    ("agent/loop.py", "_close_self_pipe"): "test_a_loop_that_was_never_opened_can_be_closed",
    ("client/plumbing/blocking_waiting.py", "_is_owned"): "test_a_lock_knows_whether_this_thread_has_it",
    ("client_sync/plumbing/waiting.py", "_is_owned"): "test_a_lock_knows_whether_this_thread_has_it",
}
NOT_PRIVATE = {"_exit", "_replace", "_asdict", "_fields"}  # documented, in spite of their names


def told(thing: Method | Attribute) -> str:
    return f"{thing.owner.__module__}.{thing.owner.__qualname__}.{thing.name}"


def digest_of(function: Any) -> str:
    lines = [line.strip() for line in inspect.getsource(function).splitlines()]
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()[:12]


@pytest.mark.parametrize("method", METHODS, ids=told)
def test_a_method_of_uvicorn_is_the_one_that_was_looked_at(method: Method) -> None:
    here = f"uvicorn {version('uvicorn')}"
    found = vars(method.owner).get(method.name)
    assert found is not None, f"{told(method)} is gone in {here}; {method.used_by} builds on it"
    digest = digest_of(found)
    if digest != method.digest:
        pytest.fail(
            f"{told(method)} has changed between {LOOKED_AT} and {here}. Read it, see whether {method.used_by} still "
            f"does what it is for, and then put {digest} in place of {method.digest} here.",
            pytrace=False,
        )


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=told)
def test_an_attribute_of_uvicorn_is_there(attribute: Attribute) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(attribute.owner)))
    set_there = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    fields = set(getattr(attribute.owner, "__annotations__", {}))
    assert attribute.name in set_there | fields, (
        f"{told(attribute)} is gone in uvicorn {version('uvicorn')}; {attribute.used_by} reads or sets it"
    )


def test_a_status_line_of_uvicorn_is_a_whole_line() -> None:
    assert httptools_impl.STATUS_LINE[431] == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


def test_a_loop_takes_no_descriptor_before_it_is_opened() -> None:
    """asyncio makes its pair of sockets in `_make_self_pipe`, and an EpollSelector opens its epoll in `__init__`."""
    before = set(os.listdir("/proc/self/fd"))
    loop = AgentLoop()
    closed = set(os.listdir("/proc/self/fd"))
    loop.open()
    opened = set(os.listdir("/proc/self/fd"))
    loop.call_soon_threadsafe(loop.stop)  # by that pair
    loop.run_forever()
    loop.close()
    assert closed == before, "a loop is made with descriptors now: asyncio makes them elsewhere"
    assert len(opened - before) == 3
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_loop_that_was_never_opened_can_be_closed() -> None:
    AgentLoop().close()


def test_a_loop_that_is_opened_has_the_names_that_it_overrides() -> None:
    for name in ("_make_self_pipe", "_close_self_pipe"):
        assert callable(getattr(asyncio.SelectorEventLoop, name, None)), (
            f"asyncio has no {name} any more; agent/loop.py"
        )
    assert inspect.signature(selectors.EpollSelector.__init__).parameters.keys() == {"self"}


def test_a_lock_knows_whether_this_thread_has_it() -> None:
    lock: Any = threading.RLock()
    assert hasattr(lock, "_is_owned"), "RLock has no _is_owned any more; client/plumbing/blocking_waiting.py asks it"
    assert not lock._is_owned()
    answers = []
    with lock:
        assert lock._is_owned()
        elsewhere = threading.Thread(target=lambda: answers.append(lock._is_owned()))
        elsewhere.start()
        elsewhere.join()
    assert answers == [False]


def ours(trees: dict[Path, ast.Module]) -> set[str]:
    """Every name that our own code gives to something."""
    names: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def private_names(tree: ast.Module) -> set[str]:
    """Private names that are asked for of others: of `super()` and of objects, and in what is imported."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("atoll"):
            names |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {word for alias in node.names for word in alias.name.split(".")}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_the_source_uses_no_other_private_names() -> None:
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    overridden = {name for _, name in PRIVATE_NAMES}
    own = ours(trees) - overridden | NOT_PRIVATE
    found = {
        (str(path.relative_to(SOURCE)), name) for path, tree in trees.items() for name in private_names(tree) - own
    }
    assert found == set(PRIVATE_NAMES)


def test_nothing_else_imports_the_insides_of_uvicorn() -> None:
    for path in SOURCE.rglob("*.py"):
        found = [line for line in path.read_text().splitlines() if line.startswith("from uvicorn.")]
        assert not found or path.name == "uvicorn_insides.py", f"{path}: {found}"
