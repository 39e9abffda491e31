"""How long something lasted, whatever was done to the clock on the wall meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.store.moments import LONGEST_OFF_SECONDS, UNKNOWN_BOOT, Moment, elapsed, now

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
DAY = 86400.0


def moment(wall: float, since_boot: float, boot_id: str = "this") -> Moment:
    return Moment(wall=NOON + timedelta(seconds=wall), since_boot=since_boot, boot_id=boot_id)


@pytest.mark.parametrize(
    ("since", "until", "seconds"),
    [
        pytest.param(moment(0, 100), moment(60, 160), 60, id="a clock that nobody touched"),
        pytest.param(moment(0, 100), moment(DAY, 104), 4, id="set forward by a day"),
        pytest.param(moment(0, 100), moment(-DAY, 104), 4, id="set back by a day"),
        pytest.param(moment(0, 100, "one"), moment(600, 30, "two"), 600, id="a reboot"),
        pytest.param(moment(0, 100, "one"), moment(-600, 30, "two"), 30, id="a reboot into the past"),
        pytest.param(moment(0, 100, "one"), moment(20, 30, "two"), 30, id="a reboot, and a clock set back a little"),
        pytest.param(moment(0, 100, "one"), moment(30 * 365 * DAY, 30, "two"), 30, id="a reboot, 30 years later"),
        pytest.param(moment(0, 0, UNKNOWN_BOOT), moment(60, 160), 60, id="noted by an earlier version"),
        pytest.param(moment(0, 0, UNKNOWN_BOOT), moment(DAY, 160), 160, id="the same, and a clock set forward"),
        pytest.param(moment(0, 0, UNKNOWN_BOOT), moment(-DAY, 160), 0, id="the same, and a clock set back"),
    ],
)
def test_how_long_it_lasted(since: Moment, until: Moment, seconds: float) -> None:
    assert elapsed(since, until) == seconds


walls = st.floats(-(10**10), 10**10)  # some centuries either way
spans = st.floats(0, 10**9)


@given(walls, walls, spans, spans)
def test_within_a_boot_the_wall_changes_nothing(one: float, other: float, start: float, span: float) -> None:
    assert elapsed(moment(one, start), moment(other, start + span)) == pytest.approx(span, abs=1e-6)


@given(walls, walls, spans, spans)
def test_across_a_reboot_it_is_never_less_than_the_time_up_nor_absurd(
    one: float, other: float, before: float, up: float
) -> None:
    assert up <= elapsed(moment(one, before, "one"), moment(other, up, "two")) <= up + LONGEST_OFF_SECONDS


@given(walls, walls, spans)
def test_of_an_unknown_boot_it_is_at_most_the_length_of_this_one(one: float, other: float, up: float) -> None:
    assert 0 <= elapsed(moment(one, 0, UNKNOWN_BOOT), moment(other, up)) <= up


def test_now_is_a_moment_of_this_boot_and_later_than_the_one_before() -> None:
    before, after = now(), now()
    assert before.boot_id == after.boot_id != UNKNOWN_BOOT
    assert 0 <= elapsed(before, after) < 60
