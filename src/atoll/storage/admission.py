"""Admission: who gets a disk and how far it may grow, decided from what is in use, not from what was promised.

Few sandboxes use what they may. So a new one is let in when, after everything in use, the pool still has a reserve for
each: `per_disk` bytes, which nobody else can take. What is beyond the reserves is for whoever writes first; one that
comes near them is held where it is, and its neighbours go on.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.limits import format_size
from atoll.storage.growth import LEAST_FOR_METADATA, MIB, Room

PER_DISK = 32 * MIB
FOR_NEW_ONES = 256 * MIB
METADATA_FACTOR = 8


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """The room that is promised already. Without `overcommit` the sum of it does not matter."""

    file: str
    size: int  # of the pool, as its operator gave it
    disks: int
    committed: int
    reserved: int = 0  # for the disks that are there
    overcommit: float | None = None
    freed: int = 0  # of what seems to be in use, what belongs to disks that are removed


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that is there."""

    name: str
    size: int  # what it may use
    used: int
    limit: int  # what the kernel lets it use just now


def per_disk(size: int) -> int:
    return min(PER_DISK, size // 32)


def for_new_ones(size: int) -> int:
    """The room kept for disks that come, so that who fills the pool does not keep everybody out."""
    return min(FOR_NEW_ONES, size // 8)


def largest_disk(size: int, overcommit: float | None) -> int:
    """In a pool of that size."""
    return int(size * (overcommit or 1))


def refusal(promises: Promises, room: Room, size: int) -> AtollError | None:
    """Why there can be no further disk of `size` bytes."""
    bound = largest_disk(promises.size, promises.overcommit)
    committed = promises.committed if promises.overcommit else 0
    if committed + size > bound:
        return _too_much_promised(promises, bound, committed, size)
    if promises.overcommit is not None and promises.overcommit <= 1:
        return None  # what is promised is there
    needed = promises.reserved + min(size, per_disk(promises.size))
    left = room.reachable + min(room.used, promises.freed)
    return no_space_left(promises, room, needed, left) if needed > left else None


def reserved(size: int, disks: Iterable[Disk]) -> int:
    """The reserves: what nobody else can take of a pool of `size` bytes, as each of these needs it yet."""
    least = per_disk(size)
    return sum(max(0, min(disk.size, least) - disk.used) for disk in disks)


def allowance(room: Room, size: int, reserve: int) -> int:
    """How much more a disk may use until the next look.

    Half of what is there, as there may be others who write as fast. Of what describes files a multiple: only tiny
    ones take nothing else, and nobody makes so many between two looks.
    """
    describing = METADATA_FACTOR * (room.reachable_metadata - LEAST_FOR_METADATA)
    return rounded(min((room.reachable - for_new_ones(size) - reserve) // 2, describing))


def limits(disks: Iterable[Disk], size: int, more: int) -> Iterable[tuple[int, Disk]]:
    """The limits of disks from now on, where one is to be another than now."""
    least = per_disk(size)
    for disk in disks:
        limit = min(disk.size, max(least, disk.used // MIB * MIB + MIB + more))
        is_more = limit > disk.limit + more // 4 or limit == disk.size
        if limit < disk.limit or (is_more and limit > disk.limit):
            yield limit, disk


def rounded(size: int) -> int:
    """Down to three binary digits, so that it changes seldom."""
    digits = max(0, size.bit_length() - 3)
    return size >> digits << digits if size >= MIB else 0


def no_space_left(promises: Promises, room: Room, needed: int, left: int) -> AtollError:
    return error(
        ErrorCode.NO_SPACE,
        f"the pool {promises.file} has {format_size(left)} left, and keeps {format_size(needed)} for the "
        f"{promises.disks} disks in it and a new one; the disk below it has {format_size(room.host_free)} free, of "
        f"which it leaves {format_size(room.host_reserve)} to others",
        remedy="Destroy sandboxes or delete files in them, free space on that disk, or make the pool larger.",
        path=promises.file,
        disks=promises.disks,
        left=left,
        reserved=needed,
        size=promises.size,
        host_free=room.host_free,
    )


def _too_much_promised(promises: Promises, bound: int, committed: int, size: int) -> AtollError:
    if size > bound:
        message = f"a disk of {size} bytes is more than the {bound} that may be promised of the pool"
        remedy = f"Give the sandbox a disk of at most {format_size(bound)}, or make the pool larger."
    else:
        message = f"of {bound} bytes that may be promised {committed} are; {size} more do not fit"
        remedy = "Give sandboxes smaller disks, destroy some, make the pool larger, or raise its overcommit."
    return error(
        ErrorCode.DISK_COMMITTED, message, remedy=remedy, committed=promises.committed, size=promises.size, asked=size
    )
