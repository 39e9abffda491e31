"""The one owner of a sandbox, driven without a server: what befalls it at awkward moments."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from atoll.protocol.sandboxes import SandboxOptions, SandboxState
from atoll.store.database import Database, open_database
from atoll.store.timeline import Timeline
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.machine import Machine
from atoll.supervisor.roster import Roster

HANG_SECONDS = 60.0
ME = Caller("me")


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Of the timeline alone."""
    return open_database(tmp_path)


@pytest.fixture
async def actor(machine: Machine, database: Database) -> AsyncIterator[SandboxActor]:
    roster = Roster(machine, Timeline(database))
    with closing(database):
        yield roster.actor("acted-on")
        await roster.__aexit__()
    await machine.remove("acted-on")


async def wait_until_stopped(actor: SandboxActor) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while (await actor.info()).state is not SandboxState.STOPPED:
            await asyncio.sleep(0.01)


def first_process(machine: Machine, actor: SandboxActor) -> int:
    return machine.record(actor.name).process.pid


async def test_a_sandbox_that_ends_before_it_is_watched_is_stopped_and_starts_again(
    machine: Machine, actor: SandboxActor
) -> None:
    await actor.ensure(SandboxOptions(), ME)
    os.kill(first_process(machine, actor), signal.SIGKILL)
    live = machine.record(actor.name).to_live()
    with pytest.raises(FileNotFoundError):  # its group is gone; until then nobody else gets a turn
        while machine.engine.is_frozen(live) is not None:
            time.sleep(0.001)  # noqa: ASYNC251
    await wait_until_stopped(actor)
    await actor.do(ME, AgentLink.ping)


async def test_a_sandbox_that_ends_is_stopped_although_that_cannot_be_noted(
    machine: Machine, actor: SandboxActor, database: Database
) -> None:
    await actor.ensure(SandboxOptions(), ME)
    await actor.do(ME, AgentLink.ping)
    database.close()
    os.kill(first_process(machine, actor), signal.SIGKILL)
    await wait_until_stopped(actor)
