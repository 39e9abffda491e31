"""One server for the tests of a module, and servers of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.leaks import Surroundings
from tests.system.serving import RunningServer


@asynccontextmanager
async def serving(directory: Path, *options: str) -> AsyncIterator[RunningServer]:
    server = RunningServer(directory, options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture(scope="module")
async def shared_server(
    tmp_path_factory: pytest.TempPathFactory, surroundings: Surroundings
) -> AsyncIterator[RunningServer]:
    directory = tmp_path_factory.mktemp("server")
    async with serving(directory) as server:
        # What it starts at first use, it has before a test looks for what was not there.
        assert (await server.ask("PUT", "/v1/sandboxes/first", {})).status == 201
        await server.destroy_all()
        surroundings.shared.add(directory)
        surroundings.processes.add(server.process.pid)
        yield server
        surroundings.processes.discard(server.process.pid)
        surroundings.shared.discard(directory)


@pytest.fixture
async def server(shared_server: RunningServer) -> AsyncIterator[RunningServer]:
    """The module's server, without sandboxes before and after."""
    yield shared_server
    await shared_server.destroy_all()


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    """For what would harm others: kills and restarts."""
    async with serving(tmp_path) as server:
        yield server
