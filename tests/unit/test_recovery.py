"""When disks that take nothing are taken up anew, and who is kept from them meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.storage.growth import GIB, LEAST, MIB
from atoll.storage.recovery import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Below,
    is_in_vain,
    is_to_be_filled,
    pause_after,
)
from atoll.supervisor.gate import Gate

SIZES = st.integers(0, 100 * GIB)


def below(unbacked: int, host_free: int) -> Below:
    return Below(unbacked=unbacked, host_free=host_free)


def test_a_file_without_holes_is_tried_however_full_the_host_is() -> None:
    assert not is_in_vain(below(0, 0))


def test_holes_on_a_full_host_are_in_vain_until_they_can_be_filled() -> None:
    assert is_in_vain(below(100 * MIB, 0)) and is_in_vain(below(100 * MIB, 99 * MIB))
    assert not is_in_vain(below(100 * MIB, 100 * MIB))


def test_a_pool_of_an_earlier_version_needs_no_more_than_its_least_size() -> None:
    """It is made smaller once it is mounted."""
    assert is_in_vain(below(60 * GIB, LEAST - 1)) and not is_in_vain(below(60 * GIB, LEAST))
    assert not is_to_be_filled(below(60 * GIB, LEAST))


@given(SIZES, SIZES)
def test_what_is_filled_is_never_in_vain(unbacked: int, host_free: int) -> None:
    if is_to_be_filled(below(unbacked, host_free)):
        assert not is_in_vain(below(unbacked, host_free))


@given(st.integers(0, 10_000))
def test_pauses_grow_to_a_bound(failures: int) -> None:
    assert FIRST_PAUSE_SECONDS <= pause_after(failures) <= pause_after(failures + 1) <= LONGEST_PAUSE_SECONDS


async def test_a_gate_closes_when_the_last_has_left_and_refuses_at_once() -> None:
    gate, order = Gate(), []
    may_leave = asyncio.Event()

    async def pass_through() -> None:
        with gate.passing():
            await may_leave.wait()
            order.append("left")

    async def close() -> None:
        async with gate.closed(error(ErrorCode.POOL_READ_ONLY, "it is away", remedy="Ask again.")):
            order.append("closed")

    passing, closing = asyncio.create_task(pass_through()), asyncio.create_task(close())
    await asyncio.sleep(0)  # both have begun
    refused = []
    for _ in range(2):
        with pytest.raises(AtollError) as caught, gate.passing():
            pass
        refused.append(caught.value)
    assert refused[0] is not refused[1] and refused[0].code is ErrorCode.POOL_READ_ONLY
    assert (refused[0].message, refused[0].remedy) == ("it is away", "Ask again.")
    may_leave.set()
    await asyncio.gather(passing, closing)
    assert order == ["left", "closed"]
    with gate.passing():
        pass
