"""Turn-taking: one at a time, in order, and whoever leaves is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.agent.turns import Turns
from atoll.protocol.errors import AtollError, ErrorCode, error


class Job:
    """Work that notes what becomes of it."""

    def __init__(self, name: str, log: list[str], *, fails: bool = False, is_quick: bool = False) -> None:
        self.name = name
        self.log = log
        self.fails = fails
        self.is_quick = is_quick

    def wait(self) -> None:
        self.log.append(f"{self.name} waits")

    def fail(self, cause: AtollError) -> None:
        self.log.append(f"{self.name} fails: {cause.message}")


class Jobs:
    """Turns of jobs, and all that happens to them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.turns: Turns[Job] = Turns(self.begin)

    def job(self, name: str, *, fails: bool = False, is_quick: bool = False) -> Job:
        return Job(name, self.log, fails=fails, is_quick=is_quick)

    def begin(self, job: Job) -> None:
        if job.fails:
            raise broken()
        self.log.append(f"{job.name} begins")
        if job.is_quick:
            self.end()

    def end(self) -> None:
        ended = self.turns.leave()
        assert ended
        self.log.append(f"{ended.name} ends")
        self.turns.go_on()


def broken() -> AtollError:
    return error(ErrorCode.RESOURCE_BUSY, "broken", remedy="Mend it.")


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


def test_the_first_begins_at_once_and_the_others_wait_in_order(jobs: Jobs) -> None:
    for name in "abc":
        jobs.turns.submit(jobs.job(name))
    assert jobs.log == ["a begins", "b waits", "c waits"]
    assert len(jobs.turns) == 3
    jobs.end()
    jobs.end()
    assert jobs.log[3:] == ["a ends", "b begins", "b ends", "c begins"]
    assert jobs.turns.current and len(jobs.turns) == 1


def test_one_that_is_withdrawn_never_begins(jobs: Jobs) -> None:
    first, second, third = (jobs.job(name) for name in "abc")
    for job in (first, second, third):
        jobs.turns.submit(job)
    jobs.turns.withdraw(second)
    jobs.turns.withdraw(second)
    jobs.end()
    assert jobs.log[3:] == ["a ends", "c begins"]


def test_the_one_under_way_cannot_be_withdrawn(jobs: Jobs) -> None:
    job = jobs.job("a")
    jobs.turns.submit(job)
    jobs.turns.withdraw(job)
    assert jobs.turns.current is job


def test_one_that_cannot_begin_has_had_its_turn(jobs: Jobs) -> None:
    jobs.turns.submit(jobs.job("a"))
    jobs.turns.submit(jobs.job("b", fails=True))
    jobs.turns.submit(jobs.job("c", fails=True))
    jobs.turns.submit(jobs.job("d"))
    jobs.end()
    assert jobs.log[4:] == ["a ends", "b fails: broken", "c fails: broken", "d begins"]


def test_many_that_are_over_at_once_take_no_stack(jobs: Jobs) -> None:
    jobs.turns.submit(jobs.job("a"))
    for number in range(5000):
        jobs.turns.submit(jobs.job(str(number), fails=True))
    jobs.end()
    assert len(jobs.turns) == 0


def test_all_that_wait_can_be_dismissed(jobs: Jobs) -> None:
    for name in "abc":
        jobs.turns.submit(jobs.job(name))
    jobs.turns.dismiss(broken)
    assert jobs.log[3:] == ["b fails: broken", "c fails: broken"]
    assert jobs.turns.current and jobs.turns.current.name == "a"
    jobs.end()
    assert len(jobs.turns) == 0


@given(st.lists(st.sampled_from(["submit", "quick", "failing", "end", "withdraw"]), max_size=60))
def test_whatever_comes_there_is_one_at_a_time_in_the_order_of_arrival(steps: list[str]) -> None:
    jobs, arrived = Jobs(), list[Job]()
    for number, step in enumerate(steps):
        if step in ("submit", "quick", "failing"):
            arrived.append(jobs.job(str(number), fails=step == "failing", is_quick=step == "quick"))
            jobs.turns.submit(arrived[-1])
        elif step == "withdraw" and arrived:
            jobs.turns.withdraw(arrived[len(arrived) // 2])
        elif step == "end" and jobs.turns.current:
            jobs.end()
        assert jobs.turns.current or len(jobs.turns) == 0
    had_turn = [int(line.split()[0]) for line in jobs.log if "begins" in line or "fails" in line]
    assert had_turn == sorted(had_turn) and len(had_turn) == len(set(had_turn))
    begun = 0
    for line in jobs.log:
        begun += "begins" in line
        begun -= "ends" in line
        assert begun in (0, 1)
