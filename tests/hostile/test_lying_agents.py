"""An agent that somebody took over costs its own sandbox, and nobody else: behind a real server, beside a neighbour."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from atoll.client.sandbox import AsyncSandbox
from tests import kept
from tests.hostile.liar import LIES, SANDBOX
from tests.leaks import Surroundings
from tests.native import native
from tests.system.conftest import serving
from tests.system.serving import RunningServer

SLOWER = 3.0  # than when all is quiet: what a neighbour has to put up with
SERIES, SAMPLES = 3, 15
MORE_MEMORY = 96 * 2**20  # than before: some operations, each with a frame and the output that it may have


@pytest.fixture(scope="module")
async def lied_to(tmp_path_factory: pytest.TempPathFactory, surroundings: Surroundings) -> AsyncIterator[RunningServer]:
    """A server with a neighbour in it."""
    directory = tmp_path_factory.mktemp("lied-to")
    async with serving(directory) as server:
        await server.sandbox("neighbour").exec("true")
        surroundings.shared.add(directory)
        surroundings.processes.add(server.process.pid)
        yield server
        surroundings.processes.discard(server.process.pid)
        surroundings.shared.discard(directory)


@asynccontextmanager
async def liar(server: RunningServer, lie: str) -> AsyncIterator[None]:
    """The agent of a sandbox lies like this while the block lasts."""
    assert (await server.ask("PUT", f"/v1/sandboxes/{SANDBOX}", {})).status == 201
    command = [sys.executable, "-m", "tests.hostile.liar", lie, str(agent_socket(server, SANDBOX)), str(server.socket)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            assert await asyncio.to_thread(process.stdout.readline) == b"listens\n"
            assert await asyncio.to_thread(process.stdout.readline) == b"asked\n"
            yield
        finally:
            process.kill()
    assert (await server.ask("DELETE", f"/v1/sandboxes/{SANDBOX}")).status == 204


def agent_socket(server: RunningServer, sandbox: str) -> Path:
    (row,) = (row for row in kept.rows(server.state) if row.id == sandbox)
    assert row.record
    return Path(native(row.record).agent_socket)


@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_agent_costs_its_neighbour_little(lie: str, lied_to: RunningServer) -> None:
    neighbour = lied_to.sandbox("neighbour")
    before, memory = await pace(neighbour), lied_to.memory()
    async with liar(lied_to, lie):
        during = await pace(neighbour)
        for _ in range(3):  # others come and go on this machine; a lie stays
            if during >= SLOWER * before:
                during = min(during, await pace(neighbour))
        assert lied_to.memory() - memory < MORE_MEMORY
    assert during < SLOWER * max(before, await pace(neighbour))


async def pace(sandbox: AsyncSandbox) -> float:
    """Seconds that a command takes: the best of some medians, as others on this machine come and go."""
    return min([statistics.median([await timed(sandbox) for _ in range(SAMPLES)]) for _ in range(SERIES)])


async def timed(sandbox: AsyncSandbox) -> float:
    began = time.perf_counter()
    assert (await sandbox.exec("true")).exit_code == 0
    return time.perf_counter() - began
