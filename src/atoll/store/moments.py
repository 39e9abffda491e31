"""Moments on record: when something was, by the clock on the wall and by one that nobody can set.

Whoever sets the clock, or has it set by a time server, moves every moment that is told by it. CLOCK_BOOTTIME only goes
on, also while the machine is suspended, and begins anew with each boot. So a moment has both.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec

UNKNOWN_BOOT = ""
LONGEST_OFF_SECONDS = 366 * 86400.0  # a machine that seems to have been off for longer had its clock set


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """`since_boot` is in seconds, of the boot `boot_id`."""

    wall: datetime
    since_boot: float
    boot_id: str


def now() -> Moment:
    return Moment(wall=datetime.now(UTC), since_boot=since_boot(), boot_id=boot_id())


def since_boot() -> float:
    """For spans: it never goes back, nobody sets it, and it goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def elapsed(since: Moment, until: Moment) -> float:
    """Seconds between two moments, whatever was done to the clock on the wall meanwhile; never less than none.

    1. Within one boot the other clock is exact, and the wall is not asked.
    2. Across a reboot the wall counts. But the machine has been up for a known time, which is the least it can be; and
       if the wall says that it was off for over a year, it was set, and that least is all that is certain.
    3. Where the boot was not noted, as by earlier versions, it was this one: the wall counts within its length.
    """
    by_wall = (until.wall - since.wall).total_seconds()
    if since.boot_id == until.boot_id:
        return max(0.0, until.since_boot - since.since_boot)
    if since.boot_id == UNKNOWN_BOOT:
        return min(max(0.0, by_wall), until.since_boot)
    is_plausible = until.since_boot <= by_wall <= until.since_boot + LONGEST_OFF_SECONDS
    return by_wall if is_plausible else until.since_boot
