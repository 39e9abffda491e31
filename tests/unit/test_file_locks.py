"""Who holds file locks, from what the kernel lists, and of this process in earnest."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from atoll.engine.native.file_locks import (
    MANY,
    Holder,
    devices_of,
    locks_bytes,
    most_locks,
    newest_locks,
    parse_locks,
    parse_slabinfo,
)

SLABINFO = b"""\
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables
file_lock_ctx         73     73     56   73    1 : tunables    0    0    0 : slabdata      1      1      0
file_lock_cache      100    120    192   21    1 : tunables    0    0    0 : slabdata      6      6      0
"""
LOCKS = b"""\
1: OFDLCK ADVISORY  WRITE -1 00:a4:1441809 705 705
2: FLOCK  ADVISORY  READ 160 fe:00:2179666 0 EOF
2: -> FLOCK  ADVISORY  WRITE 161 fe:00:2179666 0 EOF
3: POSIX  ADVISORY  WRITE 160 fe:00:2179667 0 EOF
4: POSIX  ADVISORY  WRI"""


def test_what_locks_take() -> None:
    assert parse_slabinfo(SLABINFO) == 100 * 192
    assert parse_slabinfo(b"slabinfo - version: 2.1\n") == 0
    assert locks_bytes() > 0


def test_the_list_is_counted_by_holder_and_device_without_those_who_wait() -> None:
    assert parse_locks(LOCKS) == {Holder(-1, "00:a4"): 1, Holder(160, "fe:00"): 2}


def test_a_device_is_known_by_who_has_it_mounted() -> None:
    device = Path("/proc/self/mountinfo").read_text().split()[2].split(":")
    assert devices_of({"gone": 2**22, "self": os.getpid()})[f"{int(device[0]):02x}:{int(device[1]):02x}"] == "self"


@pytest.mark.parametrize(("number", "found"), [(MANY + 100, "self"), (MANY // 4, None)])
def test_whoever_has_many_is_found(tmp_path: Path, number: int, found: str | None) -> None:
    """Locks of others are beside them, and fewer."""
    with open(tmp_path / "locked", "w") as file:
        for byte in range(0, 2 * number, 2):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
        held = newest_locks()
        mine = {holder: count for holder, count in held.items() if holder.pid == os.getpid()}
        assert sum(mine.values()) >= min(number, MANY)
        assert most_locks(type(held)(mine), {"self": os.getpid()}) == found
