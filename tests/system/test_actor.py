"""The one owner of a sandbox, driven without a server: what befalls it at awkward moments."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from atoll.engine.base import LiveSandbox
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.sandboxes import SandboxOptions, SandboxState
from atoll.store.database import Database, open_database
from atoll.store.timeline import Timeline
from atoll.supervisor.actor import SandboxActor
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.machine import Machine
from atoll.supervisor.roster import Roster
from tests import kept

HANG_SECONDS = 60.0


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
    await actor.ensure(SandboxOptions(), "me")
    os.kill(first_process(machine, actor), signal.SIGKILL)
    live = machine.record(actor.name).to_live()
    with pytest.raises(FileNotFoundError):  # its group is gone; until then nobody else gets a turn
        while machine.engine.is_frozen(live) is not None:
            time.sleep(0.001)  # noqa: ASYNC251
    await wait_until_stopped(actor)
    await actor.do("me", AgentLink.ping)


async def test_a_sandbox_that_ends_is_stopped_although_that_cannot_be_noted(
    machine: Machine, actor: SandboxActor, database: Database
) -> None:
    await actor.ensure(SandboxOptions(), "me")
    await actor.do("me", AgentLink.ping)
    database.close()
    os.kill(first_process(machine, actor), signal.SIGKILL)
    await wait_until_stopped(actor)


async def test_a_lack_of_descriptors_at_the_moment_it_is_made_starts_no_second_one_on_its_disk(
    machine: Machine, actor: SandboxActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, keep = resource.getrlimit(resource.RLIMIT_NOFILE), machine.engine.keep

    async def keep_and_use_up_descriptors(sandbox: LiveSandbox) -> None:
        await keep(sandbox)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))

    monkeypatch.setattr(machine.engine, "keep", keep_and_use_up_descriptors)
    try:
        with pytest.raises(AtollError) as caught:
            await actor.do("me", AgentLink.ping)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.code is ErrorCode.TOO_MANY_OPEN_FILES
    made = first_process(machine, actor)
    await actor.do("me", AgentLink.ping)
    assert first_process(machine, actor) == made
    assert [event.what for event in actor.events(0)] == ["created"]


async def test_one_that_still_runs_is_ended_before_another_starts_on_its_disk(machine: Machine) -> None:
    lost = await machine.create("lost", image="busybox")
    found = await machine.start(lost.id)
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await machine.engine.wait(lost)
    finally:
        lost.release()
        await machine.destroy(found)


async def test_a_request_that_is_refused_leaves_the_history_of_the_one_before(actor: SandboxActor) -> None:
    await actor.ensure(SandboxOptions(image="busybox"), "me")
    await actor.destroy("me")
    for nonsense in (SandboxOptions(limits="nonsense"), SandboxOptions(image="none")):
        with pytest.raises(AtollError):
            await actor.ensure(nonsense, "me")
        assert [event.what for event in actor.events(0)] == ["created", "destroyed"]
    await actor.ensure(SandboxOptions(image="busybox"), "me")
    assert [(event.number, event.what) for event in actor.events(0)] == [(3, "created")]


async def test_the_timeline_of_one_whose_creation_was_not_noted_begins_with_it(
    machine: Machine, database: Database
) -> None:
    """The server that made it was killed in between; of the one before it the end was noted."""
    timeline = Timeline(database)
    timeline.add(SandboxId("unnoted"), "destroyed", cause="a test", by="me")
    live = await machine.create("unnoted", image="busybox")
    live.release()
    with closing(database):
        async with Roster(machine, timeline) as roster:
            assert [event.what for event in roster.actor("unnoted").events(0)] == ["created"]
            assert (await roster.actor("unnoted").info()).state is SandboxState.RUNNING
            await roster.actor("unnoted").destroy("me")


async def test_who_follows_a_sandbox_learns_of_its_end_although_that_cannot_be_noted(
    actor: SandboxActor, database: Database
) -> None:
    await actor.ensure(SandboxOptions(image="busybox"), "me")
    events = actor.follow(0)
    assert (await anext(events)).what == "created"
    ending = asyncio.create_task(anext(events, None))
    await asyncio.sleep(0)
    with read_only(database), pytest.raises(AtollError):
        await actor.destroy("me")
    async with asyncio.timeout(HANG_SECONDS):
        assert await ending is None
        assert [event.what async for event in actor.follow(0)] == ["created"]
        await actor.destroy("me")  # twice is fine, and notes it
        assert [event.what async for event in actor.follow(0)] == ["created", "destroyed"]


@contextmanager
def read_only(database: Database) -> Iterator[None]:
    """As on a full disk."""
    database.execute("PRAGMA query_only=1")
    yield
    database.execute("PRAGMA query_only=0")


async def test_one_whose_record_is_damaged_is_asked_about_and_left_alone(tmp_path: Path) -> None:
    """Not tried to be put to sleep, second after second."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    open_database(state).close()
    kept.put(state, "damaged", "created", b"")
    async with Machine(state, tmp_path / "run") as machine:
        actor = Roster(machine, Timeline(machine.database)).actor("damaged")
        with pytest.raises(AtollError):
            await actor.info()
        await actor.sleep_if_idle()
