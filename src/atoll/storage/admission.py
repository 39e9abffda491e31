"""Who gets a disk, and how far it may grow: decided from what is in use, not from what was promised.

Few sandboxes use what they may. So a new one is let in when, after everything in use, the pool still has a reserve for
each: `per_disk` bytes, which nobody else can take. What is beyond the reserves is for whoever writes first; one that
comes near them is held where it is, and its neighbours go on.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.findings import format_size
from atoll.storage.growth import MIB, Room

PER_DISK = 32 * MIB
COMMON_RESERVE = 256 * MIB


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """What is promised already. Without `overcommit` the sum of it does not matter."""

    file: str
    size: int  # of the pool, as its operator gave it
    disks: int
    committed: int
    overcommit: float | None = None
    freed: int = 0  # of what seems to be in use, what belongs to disks that are removed


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """One that is there."""

    name: str
    size: int  # what it may use
    used: int
    limit: int  # what the kernel lets it use just now


def per_disk(size: int) -> int:
    return min(PER_DISK, size // 32)


def common_reserve(size: int) -> int:
    return min(COMMON_RESERVE, size // 16)


def refusal(promises: Promises, room: Room, size: int) -> AtollError | None:
    """Why there can be no further disk of `size` bytes."""
    bound = int(promises.size * (promises.overcommit or 1))
    committed = promises.committed if promises.overcommit else 0
    if committed + size > bound:
        return _too_much_promised(promises, bound, committed, size)
    if promises.overcommit is not None and promises.overcommit <= 1:
        return None  # what is promised is there
    reserved = common_reserve(promises.size) + (promises.disks + 1) * min(size, per_disk(promises.size))
    left = room.reachable + min(room.used, promises.freed)
    return no_space_left(promises, room, reserved, left) if reserved > left else None


def limits(disks: Iterable[Disk], size: int, reachable: int) -> Iterable[tuple[int, Disk]]:
    """What each disk may use from now on, where that is something else than now."""
    known, least = list(disks), per_disk(size)
    reserved = common_reserve(size) + sum(max(0, min(disk.size, least) - disk.used) for disk in known)
    more = allowance(reachable - reserved)
    for disk in known:
        limit = min(disk.size, max(least, disk.used // MIB * MIB + MIB + more))
        if limit < disk.limit or limit == disk.size or limit > disk.limit + more // 4:
            yield limit, disk


def allowance(spare: int) -> int:
    """How much more a disk may use until the next look; half, as there may be others, and rounded, to change seldom."""
    return 1 << (spare // 2).bit_length() - 1 if spare > 2 * MIB else 0


def no_space_left(promises: Promises, room: Room, reserved: int, left: int) -> AtollError:
    return error(
        ErrorCode.NO_SPACE,
        f"the pool {promises.file} has {format_size(left)} left, and keeps {format_size(reserved)} for the "
        f"{promises.disks} disks in it and a new one; the disk below it has {format_size(room.host_free)} free, of "
        f"which it leaves {format_size(room.host_reserve)} to others",
        remedy="Destroy sandboxes or delete files in them, free space on that disk, or make the pool larger.",
        path=promises.file,
        disks=promises.disks,
        left=left,
        reserved=reserved,
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
