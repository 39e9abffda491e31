"""Recovery, decided: when a pool that the kernel gave up is mounted anew; nothing here touches a disk."""

from __future__ import annotations

import msgspec

from atoll.storage.growth import LEAST

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0


class Below(msgspec.Struct, frozen=True, kw_only=True):
    """The room that the disk below a pool has for its file, in bytes."""

    unbacked: int  # of the file, what the host has not given
    host_free: int


def is_to_be_filled(below: Below) -> bool:
    """Whether holes are filled before the file system writes again. Those of a pool of an earlier version may be more
    than the host has; then most of them are left off once it is mounted.
    """
    return below.unbacked <= below.host_free


def is_in_vain(below: Below) -> bool:
    """Whether the file system would meet a full disk again: what is mounted writes at once."""
    return below.unbacked > 0 and below.host_free < min(below.unbacked, LEAST)


def pause_after(failures: int) -> float:
    """Seconds until the next attempt, when so many failed in a row."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * (1 << min(failures, 10)))
