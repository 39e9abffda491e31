"""All sandboxes of a server, by id: one actor each, and none for ids that were only asked about."""

from __future__ import annotations

import weakref

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
