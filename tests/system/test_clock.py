"""A server whose clock on the wall is set while it runs, and between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from atoll.protocol.sandboxes import SandboxOptions, SandboxState
from tests.system.clocks import WallClock
from tests.system.serving import RunningServer

LOOK_SECONDS = 2  # more than a server takes to do what seems to be due
DAY = 86400.0


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


@pytest.fixture
async def server(tmp_path: Path, clock: WallClock) -> AsyncIterator[RunningServer]:
    server = RunningServer(tmp_path, environment=clock.environment)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def test_a_life_has_its_length_whatever_the_clock_is_set_to_also_across_servers(
    server: RunningServer, clock: WallClock
) -> None:
    box, marker = server.sandbox("mortal", SandboxOptions(ttl="1h")), server.sandbox("marker")
    await box.exec("true")
    await box.sleep(stop=True)
    for wrong in (DAY, 400 * DAY, -DAY):
        await server.kill()
        clock.set_forward(wrong)
        await server.start()
        await marker.exec("true")
        await asyncio.sleep(LOOK_SECONDS)
        assert (await server.ask("GET", "/v1/sandboxes/mortal")).json()["state"] == "stopped"

    assert (await server.ask("PATCH", "/v1/sandboxes/mortal", {"ttl": 1})).json()["ttl"] == 1.0
    async with asyncio.timeout(60):  # it has lived for longer, though it seems to be made only tomorrow
        while (await server.ask("GET", "/v1/sandboxes/mortal")).status != 404:
            await asyncio.sleep(0.05)
    last = (await server.ask("GET", "/v1/sandboxes/mortal/events")).json()["events"][-1]
    assert (last["what"], last["cause"], last["by"]) == ("destroyed", "its life of 1 seconds was over", "atoll")


async def test_a_clock_set_forward_or_back_stops_no_sandbox_and_time_does(
    server: RunningServer, clock: WallClock
) -> None:
    box, marker = server.sandbox("sleeper"), server.sandbox("marker")
    await box.exec("n=1")
    await box.set_stop_after("1h")
    await box.sleep()
    clock.set_forward(DAY)
    await marker.exec("true")
    made = (await marker.status()).created_at
    assert made - datetime.now(UTC) > timedelta(hours=23)  # so the server believes it
    await asyncio.sleep(LOOK_SECONDS)
    assert (await box.status()).state is SandboxState.FROZEN

    await server.kill()
    clock.set_forward(400 * DAY)
    await server.start()  # by its clock a year later, and on the same boot
    await asyncio.sleep(LOOK_SECONDS)
    assert (await box.status()).state is SandboxState.FROZEN

    clock.set_forward(-DAY)
    await box.set_stop_after(1)  # it has slept for longer, though it seems to fall asleep only tomorrow
    async with asyncio.timeout(60):
        while (await box.status()).state is not SandboxState.STOPPED:
            await asyncio.sleep(0.05)
    assert (await box.status()).cause == "it slept for 1 seconds"
