from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.client.peers import ContractServer


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
def half(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Half]:
    """Each test runs against the async and the blocking SDK."""
    half: Half = request.param()
    monkeypatch.setattr(half.transport, "QUIET_SECONDS", 60.0)  # a machine that stands still is no silent server
    yield half
    half.server.shared_server.cache_clear()


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[ContractServer]:
    server = ContractServer(tmp_path / "server.sock")
    yield server
    server.stop()
