"""The one owner of a sandbox, driven without a server: what befalls it at awkward moments."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from atoll.engine.base import LiveSandbox
from atoll.protocol.commands import Exec, ExecShell
from atoll.protocol.errors import AgentLostError, AgentTimeoutError, AtollError, ErrorCode
from atoll.protocol.files import ListFiles, WatchFiles
from atoll.protocol.frames import FrameKind
from atoll.protocol.ids import SandboxId
from atoll.protocol.messages import AnyCall
from atoll.protocol.processes import ListProcesses
from atoll.protocol.sandboxes import SandboxOptions, SandboxState, UpkeepChanges
from atoll.protocol.terminals import ListTerminals
from atoll.store.moments import boot_id
from atoll.store.sqlite.database import Database, open_database
from atoll.store.sqlite.timeline import SqliteTimeline
from atoll.supervisor import actor as actor_module
from atoll.supervisor import agent_link
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.info import describe
from atoll.supervisor.plans import Plan, Upkeep, make_plan
from atoll.supervisor.roster import Roster
from atoll.supervisor.upkeep import set_upkeep
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.making import create
from tests.native import native

HANG_SECONDS = 60.0
ME = Caller("me")


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Of the timeline alone."""
    return open_database(tmp_path)


@pytest.fixture
async def actor(workshop: Workshop, database: Database) -> AsyncIterator[SandboxActor]:
    roster = Roster(workshop, SqliteTimeline(database))
    with closing(database):
        yield roster.actor("acted-on")
        await roster.__aexit__()
    await workshop.remove("acted-on")


async def wait_until_stopped(actor: SandboxActor) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while describe(actor).state is not SandboxState.STOPPED:
            await asyncio.sleep(0.01)


def first_process(workshop: Workshop, actor: SandboxActor) -> int:
    return native(workshop.record(actor.name)).process.pid


async def test_a_sandbox_that_ends_before_it_is_watched_is_stopped_and_starts_again(
    workshop: Workshop, actor: SandboxActor
) -> None:
    await actor.ensure(Plan(), ME)
    os.kill(first_process(workshop, actor), signal.SIGKILL)
    live = workshop.record(actor.name).to_live(boot_id())
    with pytest.raises(FileNotFoundError):  # its group is gone; until then nobody else gets a turn
        while workshop.engine.is_frozen(live) is not None:
            time.sleep(0.001)  # noqa: ASYNC251
    await wait_until_stopped(actor)
    await actor.do(ME, AgentLink.ping)


async def test_a_sandbox_that_ends_is_stopped_although_that_cannot_be_noted(
    workshop: Workshop, actor: SandboxActor, database: Database
) -> None:
    await actor.ensure(Plan(), ME)
    await actor.do(ME, AgentLink.ping)
    database.close()
    os.kill(first_process(workshop, actor), signal.SIGKILL)
    await wait_until_stopped(actor)


async def test_a_lack_of_descriptors_at_the_moment_it_is_made_starts_no_second_one_on_its_disk(
    workshop: Workshop, actor: SandboxActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, keep = resource.getrlimit(resource.RLIMIT_NOFILE), workshop.engine.keep

    async def keep_and_use_up_descriptors(sandbox: LiveSandbox) -> None:
        await keep(sandbox)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))

    monkeypatch.setattr(workshop.engine, "keep", keep_and_use_up_descriptors)
    try:
        with pytest.raises(AtollError) as caught:
            await actor.do(ME, AgentLink.ping)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.code is ErrorCode.TOO_MANY_OPEN_FILES
    made = first_process(workshop, actor)
    await actor.do(ME, AgentLink.ping)
    assert first_process(workshop, actor) == made
    assert [event.what for event in await actor.events(0)] == ["created"]


async def test_one_that_still_runs_is_ended_before_another_starts_on_its_disk(workshop: Workshop) -> None:
    lost = await create(workshop, "lost", image="busybox")
    found = await workshop.start(lost.id)
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await workshop.engine.wait(lost)
    finally:
        await workshop.engine.release(lost)
        await workshop.destroy(found)


async def test_a_request_that_is_refused_leaves_the_history_of_the_one_before(actor: SandboxActor) -> None:
    await actor.ensure(Plan(image="busybox"), ME)
    await actor.destroy(ME)
    with pytest.raises(AtollError):
        await actor.ensure(Plan(image="none"), ME)
    assert [event.what for event in await actor.events(0)] == ["created", "destroyed"]
    await actor.ensure(Plan(image="busybox"), ME)
    assert [(event.number, event.what) for event in await actor.events(0)] == [(3, "created")]


async def test_one_that_exists_is_found_by_the_options_it_was_made_with_although_its_image_is_gone(
    workshop: Workshop, actor: SandboxActor, state: Path, busybox_root: Path
) -> None:
    options = Plan(image="fleeting")
    workshop.images.add("fleeting", busybox_root)
    assert await actor.ensure(options, ME)
    shutil.rmtree(state / "images" / "fleeting")
    assert not await actor.ensure(options, ME)


async def test_the_timeline_of_one_whose_creation_was_not_noted_begins_with_it(workshop: Workshop) -> None:
    """The server that made it was killed in between; of the one before it the end was noted."""
    timeline = workshop.store.timeline
    await timeline.add(SandboxId("unnoted"), "destroyed", cause="a test", by="me")
    live = await create(workshop, "unnoted", image="busybox")
    await workshop.engine.release(live)
    async with Roster(workshop, timeline) as roster:
        assert [event.what for event in await roster.actor("unnoted").events(0)] == ["created"]
        assert describe(roster.actor("unnoted")).state is SandboxState.RUNNING
        await roster.actor("unnoted").destroy(ME)


async def test_who_follows_a_sandbox_learns_of_its_end_although_that_cannot_be_noted(
    actor: SandboxActor, database: Database
) -> None:
    await actor.ensure(Plan(image="busybox"), ME)
    events = actor.follow(0)
    assert (await anext(events)).what == "created"
    ending = asyncio.create_task(anext(events, None))
    await asyncio.sleep(0)
    with read_only(database), pytest.raises(AtollError):
        await actor.destroy(ME)
    async with asyncio.timeout(HANG_SECONDS):
        assert await ending is None
        assert [event.what async for event in actor.follow(0)] == ["created"]
        await actor.destroy(ME)  # twice is fine, and notes it
        assert [event.what async for event in actor.follow(0)] == ["created", "destroyed"]


@contextmanager
def read_only(database: Database) -> Iterator[None]:
    """As on a full disk."""
    database.execute("PRAGMA query_only=1")
    try:
        yield
    finally:
        database.execute("PRAGMA query_only=0")


async def test_one_whose_record_is_damaged_is_asked_about_and_left_alone(tmp_path: Path) -> None:
    """Not tried to be put to sleep, second after second."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    open_database(state).close()
    kept.put(state, "damaged", "created", b"")
    async with Workshop(state, tmp_path / "run") as workshop:
        actor = Roster(workshop, workshop.store.timeline).actor("damaged")
        with pytest.raises(AtollError):
            describe(actor)
        await actor.do_what_is_due()


CALLS: dict[str, AnyCall] = {
    "a command": ExecShell(command="sleep 1000"),
    "a program": Exec(argv=["sleep", "1000"]),
    "a list of files": ListFiles(path=b"/"),
    "a watch": WatchFiles(path=b"/workspace"),
    "a list of processes": ListProcesses(),
    "a list of terminals": ListTerminals(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_what_waits_for_an_agent_that_stands_still_is_given_up(
    workshop: Workshop, actor: SandboxActor, monkeypatch: pytest.MonkeyPatch, call: AnyCall
) -> None:
    await actor.ensure(Plan(), ME)
    stand_still(first_process(workshop, actor))
    monkeypatch.setattr(agent_link, "ANSWER_GRACE", 0.05)
    async with actor.use(ME) as link, link.operation(call) as agent:
        waiting = asyncio.create_task(agent.next_frame())
        await actor.check_agent()
        with pytest.raises(AgentTimeoutError, match="did not answer"):
            async with asyncio.timeout(HANG_SECONDS):
                await waiting


async def test_what_waits_for_an_agent_that_answers_goes_on_waiting(workshop: Workshop, actor: SandboxActor) -> None:
    async with actor.use(ME) as link, link.operation(ExecShell(command="read line", stdin=True)) as agent:
        waiting = asyncio.create_task(agent.next_frame())
        await actor.check_agent()
        assert not waiting.done()
        await agent.send_input(b"x\n")
        async with asyncio.timeout(HANG_SECONDS):
            assert (await waiting).kind in (FrameKind.DONE, FrameKind.STARTED)


async def test_a_sandbox_that_is_told_to_sleep_does_when_nothing_is_under_way_any_more(
    actor: SandboxActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_module, "BEDTIME_SECONDS", 0.01)
    async with actor.use(ME) as link, link.operation(ExecShell(command="read line", stdin=True)) as agent:
        await actor.sleep(ME)
        await actor.do_what_is_due()
        assert describe(actor).state is SandboxState.RUNNING
        await agent.send_input(b"x\n")
        async with asyncio.timeout(HANG_SECONDS):
            while (await agent.next_frame()).kind is not FrameKind.DONE:
                pass
    await actor.do_what_is_due()
    info = describe(actor)
    assert (info.state, info.cause) == (SandboxState.FROZEN, "it was asked for")


async def test_who_uses_a_sandbox_after_it_was_told_to_sleep_keeps_it_awake(
    actor: SandboxActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_module, "BEDTIME_SECONDS", 0.01)
    async with actor.use(ME):
        await actor.sleep(ME)
        await actor.wake(ME)
    await actor.do_what_is_due()
    assert describe(actor).state is SandboxState.RUNNING


async def test_an_operation_that_comes_while_a_sandbox_falls_asleep_is_carried_out(actor: SandboxActor) -> None:
    await actor.wake(ME)
    for number in range(20):
        asked = [actor.sleep(ME), actor.do(ME, lambda link: link.ping()), actor.sleep(ME)]
        async with asyncio.timeout(HANG_SECONDS):
            await asyncio.gather(*(asked if number % 2 else reversed(asked)))


def stand_still(process: int) -> None:
    os.kill(process, signal.SIGSTOP)
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


async def test_a_server_is_needed_by_a_sandbox_that_is_still_to_be_destroyed(actor: SandboxActor) -> None:
    await actor.ensure(Plan(upkeep=Upkeep(ttl=3600.0)), ME)
    await actor.sleep(ME, stop=True)
    assert actor.needs_server
    await set_upkeep(actor, UpkeepChanges(ttl=None), ME)
    assert not actor.needs_server
    await actor.destroy(ME)


async def test_the_end_of_its_life_ends_a_sandbox_that_is_in_use_and_the_next_of_its_id_has_its_own(
    workshop: Workshop, actor: SandboxActor
) -> None:
    await actor.ensure(Plan(upkeep=Upkeep(ttl=3600.0)), ME)
    first = workshop.record(actor.name)
    aged = replace(first, made_since_boot=first.made_since_boot - 3600.0)
    await workshop.update(aged)
    actor.treat(aged)
    async with actor.use(ME) as link:
        command = link.run(Exec(argv=["sleep", "60"]))
        ended, _ = await asyncio.gather(command, actor.do_what_is_due(), return_exceptions=True)
    assert isinstance(ended, AgentLostError)
    assert not workshop.is_on_record(actor.name)
    last = (await actor.events(0))[-1]
    assert (last.what, last.cause, last.by) == ("destroyed", "its life of 3600 seconds was over", "atoll")
    await actor.ensure(Plan(upkeep=Upkeep(ttl=3600.0)), ME)
    await actor.do_what_is_due()
    assert workshop.exists(actor.name)


async def test_one_that_exists_is_refused_to_whoever_wants_exactly_another(actor: SandboxActor) -> None:
    await actor.ensure(make_plan(SandboxOptions(limits="lite")), ME)
    await actor.sleep(ME, stop=True)
    other, same = SandboxOptions(limits="basic"), SandboxOptions(limits={"memory": "256MiB"})
    with pytest.raises(AtollError, match=r"limits\.cpus: it is 0\.0625, not 0\.25") as caught:
        await actor.ensure(make_plan(other), ME, strictly=other)
    assert caught.value.code is ErrorCode.SANDBOX_CONFLICT
    assert describe(actor).state is SandboxState.STOPPED  # nothing was done
    assert not await actor.ensure(make_plan(same), ME, strictly=same)


async def test_a_server_is_needed_by_a_sandbox_that_is_still_to_be_stopped(actor: SandboxActor) -> None:
    await actor.ensure(Plan(), ME)
    await actor.sleep(ME)
    assert not actor.is_to_be_stopped
    await set_upkeep(actor, UpkeepChanges(stop_after="1h"), ME)
    assert actor.is_to_be_stopped
    await actor.do_what_is_due()
    assert describe(actor).state is SandboxState.FROZEN
    await set_upkeep(actor, UpkeepChanges(stop_after=0), ME)
    await actor.do_what_is_due()
    assert not actor.is_to_be_stopped
    assert describe(actor).cause == "it slept for 0 seconds"
