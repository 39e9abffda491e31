"""Growth of a pool: how large it should be, decided from what is there; nothing here touches a disk.

`free` is ahead of every writer by `ahead` bytes, and by more where a burst has been seen. What the host needs for
itself it keeps. What lies idle for long goes back to it.
"""

from __future__ import annotations

import msgspec

MIB, GIB = 2**20, 2**30
STEP = 64 * MIB
LEAST_STEP = 16 * MIB  # each waits for a commit
CHUNK_STEP = 16 * MIB
LEAST = 256 * MIB  # btrfs takes no smaller device
LEAST_FOR_METADATA = 16 * MIB
AHEAD = GIB
MOST_AHEAD = 8 * GIB
BURST_FACTOR = 8  # of what was written between two looks, so much is kept free
SHARE_AHEAD = 16  # of what the host has; one disk may be filled at once, as `fallocate` does, if it is no more
SHRINK_STEP = GIB
BUSY_SECONDS, QUIET_SECONDS = 0.1, 0.25
QUIET_PER_SECOND = MIB  # who writes less than that does not need the room that lies idle
BURST_PER_SECOND = 2 * GIB  # that nobody has seen coming
HOST_RESERVE, LEAST_HOST_RESERVE = GIB, 32 * MIB  # the database and images are there as well


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The room of the pool and of the disk below it, in bytes."""

    size: int  # of the pool's device
    most: int  # it may become
    used: int  # of it, by data and what describes them
    free: int  # of it, for anybody to write
    unallocated: int  # of `free`, what neither data nor metadata have taken for themselves
    metadata_free: int
    unbacked: int  # of the device, what the host has not given yet
    host_total: int
    host_free: int
    largest: int = 0  # of the disks in it, as promised

    @property
    def host_reserve(self) -> int:
        """The room that the pool leaves to others on the host's disk."""
        return min(HOST_RESERVE, max(LEAST_HOST_RESERVE, self.host_total // 50))

    @property
    def host_spare(self) -> int:
        return max(0, self.host_free - self.host_reserve)

    @property
    def growth(self) -> int:
        """By how much the device could still become larger."""
        return max(0, min(self.most - self.size, self.host_spare - self.unbacked))

    @property
    def reachable(self) -> int:
        """The bytes that can be written in all, if nobody else fills the host's disk."""
        return max(0, self.free - max(0, self.unbacked - self.host_spare)) + self.growth

    @property
    def reachable_metadata(self) -> int:
        """Of it, what can describe files, if data takes no more."""
        return max(0, self.metadata_free) + self.unallocated + self.growth

    @property
    def capacity(self) -> int:
        """The bytes that the pool could hold in all."""
        return min(self.most, self.used + self.reachable)


def data_chunk(size: int) -> int:
    """The chunk that data takes of a device at once, as the kernel has it: a tenth, in whole 16 MiB."""
    return min(GIB, -(-size // 10 // CHUNK_STEP) * CHUNK_STEP)


def ahead_of(room: Room, burst: int) -> int:
    """Bytes to keep free, when `burst` of them were written since the last look."""
    at_once = min(room.largest, (room.host_free + room.size) // SHARE_AHEAD)
    return min(MOST_AHEAD, max(AHEAD, at_once, BURST_FACTOR * burst))


def enlarged(room: Room, burst: int) -> int:
    """The size the device should have now; never less than it has."""
    missing = max(ahead_of(room, burst) - room.free, STEP if is_emergency(room) else 0)
    if missing <= 0:
        return room.size
    step = min(round_up(missing), room.growth // MIB * MIB)
    return room.size + step if step >= LEAST_STEP or step == room.most - room.size else room.size


def until_next_look(left: int, per_second: float) -> float:
    """Seconds, in which what may be written yet is not, as fast as somebody writes now or may begin to.

    Where next to nothing is left, nobody can write much, and it takes somebody who removes to change that.
    """
    if left < MIB:
        return QUIET_SECONDS
    if per_second < QUIET_PER_SECOND:
        return min(QUIET_SECONDS, max(BUSY_SECONDS / 4, left / BURST_PER_SECOND))
    return min(BUSY_SECONDS, max(BUSY_SECONDS / 16, left / 8 / per_second))


def is_emergency(room: Room) -> bool:
    """Whether nothing may be left for metadata soon, however much is free for data. Then no file can be removed even.

    Soon: the kernel now and then gives data a chunk that it could do without, between two looks.
    """
    return room.unallocated < STEP // 2 + data_chunk(room.size) and room.metadata_free < LEAST_FOR_METADATA


def emergency(most: int) -> int:
    """Bytes that the file has beyond its end, for that case."""
    return min(128 * MIB, most // 8 // MIB * MIB)


def most_of(size: int) -> int:
    """The size that a device may reach whose disks hold `size` bytes, with what describes them."""
    return size + size // 16 + STEP


def reduced(room: Room) -> int:
    """The size of a device that lies idle; one step at a time, as what is at its end may have to be moved."""
    ahead = ahead_of(room, 0)
    idle = room.free - 2 * ahead
    if idle < max(AHEAD, room.size // 4):
        return room.size
    return max(LEAST, room.size - min(idle, SHRINK_STEP) // STEP * STEP)


def round_up(size: int) -> int:
    return -(-size // STEP) * STEP
