"""Copies of what the SDK returns: handles share their server, also after a pickle; what is under way has none."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from atoll.protocol.sandboxes import SandboxOptions
from tests.client.halves import BlockingHalf, Half
from tests.client.narrators import KINDS, PROCESS, attach
from tests.client.peers import ContractServer, Conversation
from tests.client.test_files import sandbox_of

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda original: pickle.loads(pickle.dumps(original)),
}
copies = pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES.keys())
UNDER_WAY: dict[str, Callable[[Any], Any]] = {
    **{name: kind.open for name, kind in KINDS.items()},
    "a file to read": lambda sandbox: sandbox.open_file("a"),
    "a file to write": lambda sandbox: sandbox.open_file("a", "wb"),
}


@copies
async def test_a_copy_of_a_sandbox_shares_its_connections(
    half: Half, stub: ContractServer, make_copy: Callable[[Any], Any]
) -> None:
    sandbox = half.get_sandbox("user-123", url=stub.url, labels={"a": "b"})
    await half.run(sandbox.exec, "true")  # there is a connection now, which must not be copied
    other = make_copy(sandbox)
    assert (other.id, repr(other)) == (sandbox.id, repr(sandbox))
    assert other._sandbox.server is sandbox._sandbox.server
    await half.run(other.exec, "true")
    assert len(stub.connections) == 1
    await half.run(other.destroy)
    await half.run(other.exec, "true")
    assert stub.options["user-123"] == SandboxOptions(labels={"a": "b"})  # a copy has its options too


@copies
async def test_sessions_processes_and_terminals_can_be_copied(
    half: Half, stub: ContractServer, make_copy: Callable[[Any], Any]
) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.answer(PROCESS)

    sandbox = sandbox_of(half, stub)
    session = make_copy(await half.run(sandbox.create_session, "build"))
    assert (await half.run(session.exec, "true")).session_id == "build"
    stub.on_call = agent
    process = make_copy(await half.run(sandbox.start_process, "serve"))
    assert (process.id, process.pid) == ("web", 7)
    assert (await half.run(process.wait_for_exit)).id == "web"
    terminal = make_copy(attach(sandbox).terminal)
    assert (terminal.id, terminal.pid) == ("t", 2)


def test_a_pickled_sandbox_works_in_another_process(stub: ContractServer) -> None:
    sandbox = BlockingHalf.get_sandbox("user-123", url=stub.url)
    sandbox.exec("true")
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).exec('true').exit_code)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=pickle.dumps(sandbox), capture_output=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"0\n", b"")
    BlockingHalf.server.shared_server.cache_clear()


@copies
@pytest.mark.parametrize("open_stream", UNDER_WAY.values(), ids=UNDER_WAY.keys())
async def test_what_is_under_way_has_no_copies(
    half: Half,
    stub: ContractServer,
    open_stream: Callable[[Any], Any],
    make_copy: Callable[[Any], Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    stream = open_stream(sandbox_of(half, stub))
    with pytest.raises(TypeError, match=f"^{type(stream).__name__} cannot be copied or pickled: it is under way"):
        make_copy(stream)
    assert capfd.readouterr().err == ""


async def test_a_connection_that_cannot_be_copied_says_nothing_else(
    half: Half, stub: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    sandbox = sandbox_of(half, stub)
    await half.run(sandbox.exec, "true")
    with pytest.raises(TypeError, match="cannot pickle"):
        copy.deepcopy(sandbox._sandbox.server.transport)
    assert unraisable == []
