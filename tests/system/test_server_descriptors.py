"""A server that may have few descriptors: how many it needs, and what still works when there are none left."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.system.serving import HANG_SECONDS, Answer, RunningServer, connect_unix

FEW = 256
TOO_FEW = 160
SAMPLE = 20
FEW_ENTRIES = 3


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[RunningServer]:
    """A server with FEW descriptors."""
    server = RunningServer(tmp_path, open_files=str(FEW))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def descriptors(server: RunningServer) -> Counter[str]:
    links = []
    for fd in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(fd).split(":")[0])
    return Counter(links)


async def create(server: RunningServer, name: str) -> int:
    return (await server.ask("PUT", f"/v1/sandboxes/{name}", {})).status


async def test_an_idle_sandbox_costs_the_server_two_descriptors(server: RunningServer) -> None:
    assert await create(server, "first") == 201
    before = descriptors(server)
    for number in range(SAMPLE):
        body = {"command": ["true"]}
        assert (await server.ask("POST", f"/v1/sandboxes/many-{number}/exec", body)).json()["exit_code"] == 0
    after = descriptors(server)
    assert after["anon_inode"] - before["anon_inode"] <= SAMPLE + 2, after - before  # pidfds, and channels for many
    assert after.total() - before.total() <= 2 * SAMPLE + 2, after - before


async def test_a_server_full_of_clients_lists_and_destroys(narrow: RunningServer) -> None:
    names = ("one", "two", "three")
    for name in names:
        assert await create(narrow, name) == 201
    with ExitStack() as crowd:
        await fill(narrow, crowd, is_local=False)
        for method, path in (("POST", "/v1/sandboxes/one/exec"), ("PUT", "/v1/sandboxes/four")):
            refused = await narrow.ask(method, path, {"command": ["true"]} if method == "POST" else {})
            assert (refused.status, refused.json()["code"]) == (503, "TOO_MANY_OPEN_FILES"), refused.body
            assert "ulimit" in refused.json()["remedy"]
        for _ in range(SAMPLE):
            assert (await narrow.ask("POST", "/v1/sandboxes/one/exec", {"command": ["true"]})).status == 503
        listed = (await narrow.ask("GET", "/v1/sandboxes")).json()["sandboxes"]
        assert {one["id"]: one["state"] for one in listed} == dict.fromkeys(names, "running")
        assert (await narrow.ask("POST", "/v1/sandboxes/two/sleep", {})).json()["state"] == "frozen"
        for name in ("two", "three"):
            assert (await narrow.ask("DELETE", f"/v1/sandboxes/{name}")).status == 204
        await fill(narrow, crowd, is_local=True)
    answer = await eventually(narrow, "/v1/sandboxes/one/exec", {"command": ["true"]})
    assert answer.json()["exit_code"] == 0
    check_log(narrow)


def check_log(server: RunningServer) -> None:
    """What ran out is said, with what to do, a few times and without a trace."""
    lines = server.log.read_text().splitlines()
    told = [line for line in lines if "no more files can be opened" in line]
    assert 1 <= len(told) <= FEW_ENTRIES and all("ulimit -n" in line for line in told), lines
    assert not any("Traceback" in line for line in lines), lines


async def test_clients_that_ask_for_nothing_more_make_room_for_others(narrow: RunningServer) -> None:
    with ExitStack() as crowd:
        for _ in range(2 * FEW):
            idle = crowd.enter_context(connect_unix(narrow.socket))
            idle.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await asyncio.to_thread(idle.recv, 65_536)).startswith(b"HTTP/1.1 200")


async def test_clients_that_never_say_a_word_make_room_for_others(narrow: RunningServer) -> None:
    assert await create(narrow, "one") == 201
    with ExitStack() as crowd:
        for _ in range(2 * FEW):
            crowd.enter_context(connect_unix(narrow.socket))
        status = 503
        while status == 503:
            await asyncio.sleep(0.1)
            with suppress(ConnectionError):  # it is turned away before it has asked
                status = (await narrow.ask("DELETE", "/v1/sandboxes/one")).status
        assert status == 204


async def test_a_server_with_too_few_descriptors_says_so(tmp_path: Path) -> None:
    directories = ["--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run")]
    command = ["prlimit", f"--nofile={TOO_FEW}", sys.executable, "-m", "atoll.cli", "serve", *directories]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "TOO_MANY_OPEN_FILES" in done.stderr and "ulimit -n 65536" in done.stderr
    assert not (tmp_path / "state").exists()


async def test_a_low_soft_limit_is_no_reason_to_fail(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, open_files=f"{TOO_FEW}:4096")
    await server.start()
    try:
        answer = await server.ask("POST", "/v1/sandboxes/one/exec", {"command": "ulimit -n"})
        assert answer.json()["stdout"] == f"{FEW}\n"
    finally:
        await server.close()


async def fill(server: RunningServer, crowd: ExitStack, is_local: bool) -> None:
    """With clients that follow what happens to a sandbox, until one is turned away."""
    head = f"host: localhost\r\nauthorization: Bearer {server.key}\r\naccept: text/event-stream\r\n"
    said = b"HTTP/1.1 200"
    while said.startswith(b"HTTP/1.1 200"):
        peer = connect_unix(server.socket) if is_local else socket.create_connection(("127.0.0.1", server.port))
        crowd.enter_context(peer)
        peer.settimeout(HANG_SECONDS)
        with suppress(ConnectionError):  # one that is turned away need not be heard
            peer.sendall(f"GET /v1/sandboxes/one/events HTTP/1.1\r\n{head}\r\n".encode())
        said = await asyncio.to_thread(peer.recv, 65_536)
    assert said.startswith(b"HTTP/1.1 503") and b"TOO_MANY_OPEN_FILES" in said


async def eventually(server: RunningServer, path: str, body: object) -> Answer:
    """The answer once there is room again: the server has to see that its clients left."""
    while (answer := await server.ask("POST", path, body)).status == 503:
        await asyncio.sleep(0.01)
    return answer
