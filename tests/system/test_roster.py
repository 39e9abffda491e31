"""All sandboxes of a server, by id: one actor each, and none for ids that were only asked about."""

from __future__ import annotations

import os
import resource
import weakref
from pathlib import Path

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.sandboxes import SandboxState
from atoll.store.timeline import Timeline
from atoll.supervisor.machine import Machine
from atoll.supervisor.roster import MANY_ACTORS, Roster


async def test_an_actor_that_somebody_holds_is_the_only_one_of_its_id(machine: Machine) -> None:
    """Also before it is used: a request looks it up and uses it a moment later."""
    roster = Roster(machine, Timeline(machine.database))
    held = roster.actor("held")
    work = roster.actor("later").ensure  # as a task that has not begun
    for number in range(2 * MANY_ACTORS):
        roster.actor(f"asked-about-{number}")
    assert roster.actor("held") is held
    assert roster.actor("later").ensure == work


async def test_actors_that_nobody_holds_are_forgotten(machine: Machine) -> None:
    roster = Roster(machine, Timeline(machine.database))
    asked_about = weakref.ref(roster.actor("asked-about"))
    for number in range(MANY_ACTORS):
        roster.actor(f"asked-about-{number}")
    assert asked_about() is None


async def test_a_server_that_may_have_too_few_descriptors_for_what_runs_says_how_many(
    tmp_path: Path, busybox_root: Path
) -> None:
    state, runtime = tmp_path / "state", tmp_path / "run"
    async with Machine(state, runtime) as machine:
        machine.images.add("busybox", busybox_root)
        lives = [await machine.create(f"many-{number}", image="busybox") for number in range(3)]
        for live in lives:
            await machine.engine.release(live)
        names = [live.id for live in lives]
    async with Machine(state, runtime) as machine:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 5, limits[1]))
        try:
            with pytest.raises(AtollError) as caught:
                async with Roster(machine, Timeline(machine.database)):
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caught.value.code is ErrorCode.TOO_MANY_OPEN_FILES
        assert "3 sandboxes run" in caught.value.message and "ulimit -n 65536" in caught.value.remedy
        async with Roster(machine, Timeline(machine.database)) as roster:
            assert [roster.actor(name).state for name in names] == [SandboxState.RUNNING] * 3
        for name in names:
            await machine.remove(name)
