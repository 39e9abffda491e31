"""One heap for the deadlines of all sandboxes, and the alarm for the first of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.ids import SandboxId
from atoll.store.moments import since_boot
from atoll.supervisor.deadlines import FEW_ENTRIES, Alarm, Deadlines

HANG_SECONDS = 60.0
NAMES = [SandboxId(name) for name in "abc"]
A, B, C = NAMES


class Plans:
    """For when a look at each is planned."""

    def __init__(self) -> None:
        self.planned: dict[SandboxId, float] = {}
        self.deadlines = Deadlines(lambda name: self.planned.get(name, inf))

    def plan(self, name: SandboxId, moment: float) -> None:
        self.planned[name] = moment
        self.deadlines.add(moment, name)

    def take(self, now: float) -> list[SandboxId]:
        taken = self.deadlines.take(now)
        for name in taken:
            del self.planned[name]
        return taken


def test_those_whose_moment_has_come_are_taken_in_its_order_and_once() -> None:
    plans = Plans()
    for name, moment in ((A, 3.0), (B, 1.0), (C, 2.0)):
        plans.plan(name, moment)
    assert plans.take(0.5) == []
    assert plans.take(2.5) == [B, C]
    assert plans.take(2.5) == []
    assert plans.take(3.0) == [A]
    assert plans.deadlines.first == inf


def test_one_that_is_planned_earlier_is_not_taken_later_again() -> None:
    plans = Plans()
    plans.plan(A, 10.0)
    plans.plan(A, 5.0)
    assert plans.take(5.0) == [A]
    assert plans.take(10.0) == []


def test_only_what_comes_before_all_others_sets_the_alarm() -> None:
    plans, told = Plans(), list[float]()
    plans.plan(A, 10.0)
    plans.deadlines.on_first(told.append)
    plans.plan(B, 20.0)
    plans.plan(C, 5.0)
    plans.plan(B, 7.0)
    assert told == [10.0, 5.0]


def test_entries_that_are_void_do_not_pile_up() -> None:
    plans = Plans()
    for number in range(10_000):
        plans.plan(A, 20_000.0 - number)
    assert len(plans.deadlines._heap) <= FEW_ENTRIES
    assert plans.take(inf) == [A]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0, 100)), max_size=200), st.floats(0, 100))
def test_nobody_is_forgotten_and_nobody_taken_before_its_time(plan: list[tuple[SandboxId, float]], now: float) -> None:
    plans = Plans()
    for name, moment in plan:
        if moment < plans.planned.get(name, inf):
            plans.plan(name, moment)
    due = {name for name, moment in plans.planned.items() if moment <= now}
    taken = plans.take(now)
    assert sorted(taken) == sorted(due)
    assert plans.deadlines.first == min(plans.planned.values(), default=inf) or plan


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    with closing(Alarm()) as alarm:
        yield alarm


async def rings(alarm: Alarm) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        await alarm.ring()


async def test_an_alarm_rings_when_its_moment_has_come_and_not_before(alarm: Alarm) -> None:
    for wait in (0.0, 0.001, 0.05):
        moment = since_boot() + wait
        alarm.set(moment)
        await rings(alarm)
        assert since_boot() >= moment


async def test_an_alarm_for_a_moment_that_is_over_rings_at_once(alarm: Alarm) -> None:
    for moment in (since_boot() - 1.0, 0.0, -1.0):
        alarm.set(moment)
        await rings(alarm)


async def test_an_alarm_that_is_set_to_an_earlier_moment_while_somebody_waits_rings_then(alarm: Alarm) -> None:
    alarm.set(inf)
    waiting = asyncio.create_task(rings(alarm))
    await asyncio.sleep(0)
    alarm.set(since_boot() + 1e6)
    alarm.set(since_boot())
    await waiting


async def test_an_alarm_that_has_rung_or_is_set_to_never_is_quiet(alarm: Alarm) -> None:
    alarm.set(0.0)
    await rings(alarm)
    for never in (None, inf):
        if never is not None:
            alarm.set(0.0)
            alarm.set(never)
        waiting = asyncio.create_task(alarm.ring())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
