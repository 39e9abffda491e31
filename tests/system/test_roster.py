"""All sandboxes of a server, by id: one actor each, and none for ids that were only asked about."""

from __future__ import annotations

import asyncio
import os
import resource
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from math import inf
from pathlib import Path

import msgspec
import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.sandboxes import SandboxState, UpkeepChanges
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.info import describe
from atoll.supervisor.plans import Plan, Upkeep
from atoll.supervisor.roster import MANY_ACTORS, Roster
from atoll.supervisor.upkeep import set_upkeep
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create

HANG_SECONDS = 60.0
ASLEEP = 300
ME = Caller("me")


async def test_an_actor_that_somebody_holds_is_the_only_one_of_its_id(workshop: Workshop) -> None:
    """Also before it is used: a request looks it up and uses it a moment later."""
    roster = Roster(workshop, workshop.store.timeline)
    held = roster.actor("held")
    work = roster.actor("later").ensure  # as a task that has not begun
    for number in range(2 * MANY_ACTORS):
        roster.actor(f"asked-about-{number}")
    assert roster.actor("held") is held
    assert roster.actor("later").ensure == work


async def test_actors_that_nobody_holds_are_forgotten(workshop: Workshop) -> None:
    roster = Roster(workshop, workshop.store.timeline)
    asked_about = weakref.ref(roster.actor("asked-about"))
    for number in range(MANY_ACTORS):
        roster.actor(f"asked-about-{number}")
    assert asked_about() is None


async def test_a_server_that_may_have_too_few_descriptors_for_what_runs_says_how_many(
    tmp_path: Path, busybox_root: Path
) -> None:
    state, runtime = tmp_path / "state", tmp_path / "run"
    async with Workshop(state, runtime) as workshop:
        workshop.images.add("busybox", busybox_root)
        lives = [await create(workshop, f"many-{number}", image="busybox") for number in range(3)]
        for live in lives:
            await workshop.engine.release(live)
        names = [live.id for live in lives]
    async with Workshop(state, runtime) as workshop:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 5, limits[1]))
        try:
            with pytest.raises(AtollError) as caught:
                async with Roster(workshop, workshop.store.timeline):
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caught.value.code is ErrorCode.TOO_MANY_OPEN_FILES
        assert "3 sandboxes run" in caught.value.message and "ulimit -n 65536" in caught.value.remedy
        async with Roster(workshop, workshop.store.timeline) as roster:
            assert [roster.actor(name).state for name in names] == [SandboxState.RUNNING] * 3
        for name in names:
            await workshop.remove(name)


@asynccontextmanager
async def many_asleep(workshop: Workshop, box: Box) -> AsyncIterator[Roster]:
    """Records that all name one sandbox, which is frozen: each is adopted as if it were itself."""
    original = workshop.record(box.live.id)
    copies = [msgspec.structs.replace(original, id=SandboxId(f"asleep-{number:04}")) for number in range(ASLEEP)]
    timeline = workshop.store.timeline
    await workshop.engine.freeze(box.live)
    try:
        for copy in copies:
            await workshop._records.begin(copy)
            await workshop._records.commit(copy.id)
        async with Roster(workshop, timeline) as roster:
            yield roster
    finally:
        for copy in copies:
            await workshop._records.forget(copy.id)
        await timeline.retire_unrecorded()
        await workshop.adopt(box.live.id)  # the engine was told of each copy that it is let go of
        await workshop.engine.thaw(box.live)


async def wait_for_event(actor: SandboxActor, what: str, since: int) -> int:
    """Its number."""
    async with asyncio.timeout(HANG_SECONDS), aclosing(actor.follow(since)) as events:
        async for event in events:
            if event.what == what:
                return event.number
    raise AssertionError("it was destroyed")


async def test_many_that_sleep_are_not_looked_at_while_another_goes_to_sleep_again_and_again(
    workshop: Workshop, host_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[SandboxId] = []
    look = SandboxActor.look

    async def look_and_tell(actor: SandboxActor) -> None:
        looked_at.append(actor.name)
        await look(actor)

    monkeypatch.setattr(SandboxActor, "look", look_and_tell)
    async with many_asleep(workshop, host_box) as roster:
        asleep = [actor for actor in roster.actors() if actor.name.startswith("asleep-")]
        assert len(asleep) == ASLEEP
        assert {actor.state for actor in asleep} == {SandboxState.FROZEN}
        restless, seen = roster.actor("restless"), 0
        await restless.ensure(Plan(image="busybox", upkeep=Upkeep(sleep_after=0.05)), ME)
        for _ in range(10):
            seen = await wait_for_event(restless, "frozen", since=seen)
            await restless.wake(ME)
        assert set(looked_at) <= {"restless", host_box.live.id}
        assert {actor.look_at for actor in asleep} == {inf}
        await restless.destroy(ME)


async def test_one_among_many_is_stopped_when_it_has_slept_for_as_long_as_it_may(
    workshop: Workshop, host_box: Box
) -> None:
    async with many_asleep(workshop, host_box) as roster:
        one = roster.actor("other")
        await one.ensure(Plan(image="busybox"), ME)
        await one.sleep(ME)
        await set_upkeep(one, UpkeepChanges(stop_after=0.05), ME)
        await wait_for_event(one, "stopped", since=0)
        assert describe(one).cause == "it slept for 0.05 seconds"
        await one.destroy(ME)
