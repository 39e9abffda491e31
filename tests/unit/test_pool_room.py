"""How large a pool should be, who gets a disk in it, and how far one may grow: decided without a disk."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.errors import ErrorCode
from atoll.protocol.limits import Limits
from atoll.storage.admission import Disk, Promises, allowance, limits, per_disk, refusal, reserved, rounded
from atoll.storage.growth import (
    BUSY_SECONDS,
    GIB,
    LEAST,
    MIB,
    QUIET_PER_SECOND,
    QUIET_SECONDS,
    Room,
    enlarged,
    most_of,
    reduced,
    until_next_look,
)

ORDINARY = 74 * GIB  # free on a disk


def room(**changes: Any) -> Room:
    usual: dict[str, Any] = {
        "size": 4 * GIB,
        "most": 60 * GIB,
        "used": GIB,
        "free": 3 * GIB,
        "unallocated": 2 * GIB,
        "metadata_free": 200 * MIB,
        "unbacked": 0,
        "host_total": 250 * GIB,
        "host_free": ORDINARY,
    }
    return Room(**{**usual, **changes})


def promises(**changes: Any) -> Promises:
    usual: dict[str, Any] = {"file": "/pool", "size": 59 * GIB, "disks": 0, "committed": 0}
    return Promises(**{**usual, **changes})


def test_a_thousand_default_sandboxes_fit_an_ordinary_disk() -> None:
    size = int(ORDINARY * 0.8)
    disk = Limits().disk
    for disks in range(1_000):
        used = disks * MIB  # of each that does little
        now = room(most=most_of(size), size=8 * GIB, used=used, free=8 * GIB - used, host_free=ORDINARY - 8 * GIB)
        assert (
            refusal(
                promises(size=size, disks=disks, committed=disks * disk, reserved=disks * per_disk(size)), now, disk
            )
            is None
        ), disks


def test_at_one_every_byte_is_certain() -> None:
    certain = promises(size=10 * GIB, disks=2, committed=8 * GIB, overcommit=1.0)
    assert refusal(certain, room(), 2 * GIB) is None
    refused = refusal(certain, room(), 2 * GIB + 1)
    assert refused and refused.code is ErrorCode.DISK_COMMITTED and refused.remedy


def test_one_disk_is_never_promised_more_than_the_pool_has() -> None:
    assert refusal(promises(size=3 * GIB), room(), 3 * GIB) is None
    refused = refusal(promises(size=3 * GIB), room(), 3 * GIB + 1)
    assert refused and refused.code is ErrorCode.DISK_COMMITTED
    assert "3.0 GiB" in refused.remedy


def test_a_full_pool_takes_nobody_until_a_removed_disk_counts_as_free() -> None:
    full = room(size=60 * GIB, used=60 * GIB, free=0, host_free=0)
    refused = refusal(promises(disks=5), full, 4 * GIB)
    assert refused and refused.code is ErrorCode.NO_SPACE and refused.remedy
    assert refused.context["host_free"] == 0 and refused.context["disks"] == 5
    assert refusal(promises(disks=5, freed=GIB), full, 4 * GIB) is None


def test_it_grows_ahead_of_whoever_writes_and_faster_after_a_burst() -> None:
    assert enlarged(room(), 0) == 4 * GIB
    assert enlarged(room(free=900 * MIB), 0) > 4 * GIB
    assert enlarged(room(), GIB) == 4 * GIB + 5 * GIB


def test_the_host_keeps_its_reserve_and_gets_back_what_lies_idle() -> None:
    assert enlarged(room(free=0, host_free=GIB), 0) == 4 * GIB
    idle = room(size=20 * GIB, free=19 * GIB)
    assert 19 * GIB <= reduced(idle) < 20 * GIB
    assert reduced(room(size=2 * GIB, free=GIB)) == 2 * GIB


@given(
    size=st.integers(LEAST, 2**45),
    spare=st.integers(0, 2**45),
    free=st.integers(0, 2**45),
    host_free=st.integers(0, 2**45),
    burst=st.integers(0, 2**40),
)
def test_a_size_is_never_more_than_the_host_has_nor_less_than_is_in_use(
    size: int, spare: int, free: int, host_free: int, burst: int
) -> None:
    now = room(size=size, most=size + spare, free=min(free, size), host_free=host_free, host_total=2**46)
    grown = enlarged(now, burst)
    assert size <= grown <= size + spare
    assert grown - size <= max(0, host_free - now.host_reserve)
    left = reduced(now)
    assert LEAST <= left <= size and size - left <= now.free
    assert enlarged(msgspec.structs.replace(now, size=left, free=now.free - (size - left)), 0) == left or left == size


@given(
    free=st.integers(0, 100 * GIB),
    metadata_free=st.integers(0, GIB),
    used=st.lists(st.integers(0, 6 * GIB), min_size=2, max_size=30),
)
def test_two_that_write_as_fast_as_they_can_leave_the_others_theirs(
    free: int, metadata_free: int, used: list[int]
) -> None:
    size = 10 * GIB
    disks = [Disk(name=str(number), size=size, used=each, limit=size) for number, each in enumerate(used)]
    now = room(size=free, most=free, free=free, unallocated=0, metadata_free=metadata_free, host_free=0)
    reserve = reserved(size, disks)
    more = allowance(now, size, reserve)
    allowed = {disk.name: disk.limit for disk in disks}
    allowed |= {disk.name: limit for limit, disk in limits(disks, size, more)}
    assert all(allowed[disk.name] >= min(size, max(per_disk(size), disk.used)) for disk in disks)
    growth = sorted(max(0, allowed[disk.name] - max(disk.used, per_disk(size))) for disk in disks)
    assert sum(growth[-2:]) <= max(0, free - reserve) + 4 * MIB
    if free > 3 * size + reserve and metadata_free > 2 * GIB:
        assert set(allowed.values()) == {size}


@given(size=st.integers(0, 2**60))
def test_an_allowance_seldom_changes_and_wastes_little(size: int) -> None:
    assert size - max(size // 4, MIB) <= rounded(size) <= size
    assert f"{rounded(size):b}"[3:].strip("0") == ""


@given(left=st.integers(0, 2**40), per_second=st.floats(-(2.0**40), 2.0**40))
def test_a_look_comes_before_an_eighth_of_what_is_left_is_written(left: int, per_second: float) -> None:
    seconds = until_next_look(left, per_second)
    assert BUSY_SECONDS / 16 <= seconds <= QUIET_SECONDS
    if left >= MIB and seconds > BUSY_SECONDS / 16:
        assert seconds * per_second <= max(left / 8, seconds * QUIET_PER_SECOND)
