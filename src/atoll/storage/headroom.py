"""The watch over a pool's free space: a thread that keeps it ahead of whoever writes.

A look is a handful of numbers from /sys and one statfs, and costs some 50 µs. The thread looks ten times a second
while something is written, four times otherwise. It is no task of an event loop: while one is busy for a second,
writers could meet the end of the pool.

One that the kernel has given up needs no watch any more: the thread says so and ends, and whoever owns what runs there
sees `is_given_up`.

Nothing is lost without it: while no server runs, sandboxes have what was allocated for them, and then meet ENOSPC.
Whoever opens the pool next goes on.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from atoll.storage import backing, btrfs, growth
from atoll.storage.admission import allowance, limits, per_disk, reserved
from atoll.storage.growth import MIB, Room
from atoll.storage.quotas import Quotas

SHRINK_AFTER_SECONDS = 5.0  # without a byte written or freed
FREEING_SECONDS = 10.0  # until a removed disk counts as gone, whatever the kernel says
PART_OF_TIME = 20  # a look at every disk is not taken more often than in 1/20 of the time
COMMIT_SECONDS = 0.3  # between commits that free what was removed
RETRY_SECONDS = 1.0
SHORTEST_SECONDS = 0.001  # that a speed is taken of

_KINDS = ("data", "metadata", "system")
_TAKEN = ("bytes_used", "bytes_may_use", "bytes_reserved", "bytes_readonly")
_METADATA_TAKEN = ("bytes_used", "bytes_reserved", "bytes_readonly")

logger = logging.getLogger("atoll.storage")


class Counters:
    """The kernel's figures of a btrfs, in files that are kept open."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[str, int] = {}
        names = [f"data/{name}" for name in ("total_bytes", *_TAKEN)]
        names += [f"metadata/{name}" for name in ("total_bytes", *_METADATA_TAKEN)]
        names += [f"{kind}/disk_total" for kind in _KINDS]
        try:
            for name in names:
                self._open(name, directory / "allocation" / name)
            self._open("reserve", directory / "allocation/global_rsv_size")
        except BaseException:
            self.close()
            raise

    def _open(self, name: str, path: Path) -> None:
        self._files[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _read(self, name: str) -> int:
        return int(os.pread(self._files[name], 32, 0))

    @property
    def used(self) -> int:
        return self._read("data/bytes_used") + self._read("metadata/bytes_used")

    @property
    def set_apart(self) -> int:
        """Of the device, for data or for metadata."""
        return sum(self._read(f"{kind}/disk_total") for kind in _KINDS)

    @property
    def data_free(self) -> int:
        """Of what is set apart. What is pinned is free with the next commit."""
        return self._read("data/total_bytes") - sum(self._read(f"data/{name}") for name in _TAKEN)

    @property
    def for_metadata(self) -> int:
        return self._read("metadata/total_bytes")

    @property
    def metadata_free(self) -> int:
        # What may be used is more than ever is: of that, only the kernel's own reserve counts.
        taken = sum(self._read(f"metadata/{name}") for name in _METADATA_TAKEN)
        return self.for_metadata - self._read("reserve") - taken

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """A mounted pool, as the watch needs it."""

    file: Path
    device: str
    root: int  # open as a directory
    directory: Path  # the kernel's, of this btrfs
    size: int  # of all disks, as its operator gave it
    is_certain: bool  # every byte of that belongs to the pool from the start


class Freeing(msgspec.Struct, frozen=True):
    """A disk that was removed, and whose bytes the kernel has not freed yet."""

    group: Path
    used: int
    until: float

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until or not self.group.exists()


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a look, for the next."""

    at: float
    free: int
    quiet_since: float
    is_freeing: bool = False
    commit_after: float = 0.0
    hold_after: float = 0.0
    pause: float = growth.BUSY_SECONDS


class Headroom:
    """The pool's room: looked at, and changed."""

    def __init__(self, ground: Ground, quotas: Quotas) -> None:
        self._ground = ground
        self._quotas = quotas
        self._most = growth.most_of(ground.size)
        self._counters = Counters(ground.directory)
        self._file = os.open(ground.file, os.O_RDWR | os.O_CLOEXEC)
        self._given: int | None = None  # by the host, when it last had given every block; None until it has
        self._has_emergency = False
        self._freeing: list[Freeing] = []
        self._allowance: int | None = None  # of each disk beyond what it uses, while the pool is nearly full
        self._reserved = (0, 0)  # for so many disks, as it was counted when `_allowance` was
        self._held_at: tuple[int, ...] | None = None  # what there was when limits followed it
        self._said = ""
        self._may_end = False
        self.is_given_up = False
        self._is_wanted = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch the pool", daemon=True)

    def start(self) -> None:
        """Allocate what is missing, as far as the host can, and go on looking."""
        with self._alone():
            self._tend(self.look(), 0)
            if self._counters.for_metadata < growth.LEAST_FOR_METADATA:
                self._give_to_metadata()
        self._hold(self.look())
        self._thread.start()

    def close(self) -> None:
        self._may_end = True
        self.look_soon()
        if self._thread.is_alive():
            self._thread.join()
        self._counters.close()
        os.close(self._file)

    def look(self) -> Room:
        host, size = os.statvfs(self._ground.file), self._size
        unallocated = max(0, size - self._counters.set_apart)
        return Room(
            size=size,
            most=max(self._most, size),
            used=self._counters.used,
            free=max(0, self._counters.data_free) + unallocated,
            unallocated=unallocated,
            metadata_free=self._counters.metadata_free,
            unbacked=0 if self._is_backed else max(0, size - backing.taken(self._file)),
            host_total=host.f_blocks * host.f_frsize,
            host_free=host.f_bavail * host.f_frsize,
            largest=self._quotas.largest,
        )

    @property
    def freed(self) -> int:
        """Bytes of removed disks that still seem to be in use."""
        return sum(one.used for one in self._freeing if not one.is_over)

    def free(self, group: Path, used: int) -> None:
        """Have the kernel free a disk that was just removed."""
        self._freeing = [one for one in self._freeing if not one.is_over]
        self._freeing.append(Freeing(group, used, time.monotonic() + FREEING_SECONDS))
        self.look_soon()

    def look_soon(self) -> None:
        self._is_wanted.set()

    def follow_largest(self) -> None:
        """There may have to be more room ahead. If not, the thread is left asleep: awake, it takes turns with us."""
        room = self.look()
        if growth.enlarged(room, 0) > room.size:
            self.look_soon()

    @property
    def reserved(self) -> int:
        """For the disks that are there; with plenty of room it is not looked at how much each has of it already."""
        counted, known = (0, 0) if self._allowance is None else self._reserved
        return known + max(0, len(self._quotas) - counted) * per_disk(self._ground.size)

    def first_limit(self, size: int) -> int:
        """Of a new disk, until the next look."""
        if self._allowance is None:
            return size
        return min(size, max(self._allowance, per_disk(self._ground.size)))

    @property
    def _is_backed(self) -> bool:
        """Not before the first allocation, and no longer when somebody has made holes."""
        return self._given is not None and backing.taken(self._file) >= self._given

    @property
    def _size(self) -> int:
        return os.fstat(self._file).st_size

    def _watch(self) -> None:
        now = time.monotonic()
        turn = Turn(at=now, free=self.look().free, quiet_since=now)
        while not self._may_end:
            if btrfs.is_given_up(self._ground.root):
                self._say("takes nothing more: the kernel gave it up after an error below it, of which `dmesg` tells")
                self.is_given_up = True
                return
            try:
                turn = self._take_turn(turn)
                pause = turn.pause
            except OSError as cause:  # such as a pool that was mounted read-only
                self._say(f"cannot be looked after: {cause}")
                pause = RETRY_SECONDS
            self._is_wanted.wait(pause)
            self._is_wanted.clear()

    def _take_turn(self, last: Turn) -> Turn:
        now, room = time.monotonic(), self.look()
        per_second = (last.free - room.free) / max(now - last.at, SHORTEST_SECONDS)
        is_quiet = abs(per_second) < growth.QUIET_PER_SECOND
        is_freeing = any(not one.is_over for one in self._freeing)
        with self._alone():
            self._tend(room, int(max(0, per_second) * growth.BUSY_SECONDS))
            if is_quiet and now - last.quiet_since >= SHRINK_AFTER_SECONDS:
                self._reduce(room)
        # Once more when the kernel has freed it: what was freed can be written again after the next commit.
        if (is_freeing and now >= last.commit_after) or (last.is_freeing and not is_freeing):
            self._commit()
        room = self.look()
        hold_after = self._hold(room) if now >= last.hold_after else last.hold_after
        pause = growth.until_next_look(min(room.free, self._allowance or room.free), per_second)
        return Turn(
            at=now,
            free=room.free,
            is_freeing=is_freeing,
            quiet_since=last.quiet_since if is_quiet else now,
            commit_after=now + COMMIT_SECONDS if now >= last.commit_after else last.commit_after,
            hold_after=hold_after,
            pause=min(pause, growth.BUSY_SECONDS) if is_freeing or not self._is_backed else pause,
        )

    def _tend(self, room: Room, written: int) -> None:
        if not self._is_backed:
            self._back(room)
            room = self.look()
        if not self._has_emergency and room.host_spare > growth.emergency(self._most):
            self._set_aside()
            room = self.look()
        target = self._most if self._ground.is_certain else growth.enlarged(room, written)
        if target > room.size:
            self._enlarge(target)
            self._set_aside()  # what growth took of it is less than what the host was found to have
        elif growth.is_emergency(room) and self._has_emergency:
            self._enlarge(room.size + growth.emergency(self._most))

    def prove_growth(self) -> None:
        """Raise OSError if the pool cannot become as large as it is to be."""
        if self._size < self._most:
            with self._alone():
                backing.allocate(self._file, min(self._most, self._size + growth.STEP))
                self.follow()

    def _back(self, room: Room) -> None:
        """Fill the holes of a file that an earlier version made, or that was closed; first, leave most of them off."""
        size = room.size if self._ground.is_certain else growth.reduced(room)
        if room.unbacked > growth.ahead_of(room, 0) and size < room.size:
            self._shrink(size)
            return
        try:
            backing.allocate(self._file, room.size)
            self._given = backing.taken(self._file)
        except OSError as cause:
            self._say(f"has not all of its blocks: {cause}")

    def _enlarge(self, size: int) -> None:
        try:
            backing.allocate(self._file, size)
        except OSError as cause:  # what was allocated of it is ours all the same
            self._say(f"cannot grow to {size} bytes: {cause}")
        self.follow()
        self._given = self._given and backing.taken(self._file)

    def _give_to_metadata(self) -> None:
        """A tenth of the device, while data has not taken it: what moves there finds a new place of that size."""
        try:
            btrfs.move_metadata(self._ground.root)
        except OSError as cause:
            self._say(f"has little room for metadata: {cause}")

    def _set_aside(self) -> None:
        """Blocks beyond the end of the file, where the next growth finds them, and then they are set aside anew."""
        self._has_emergency = backing.set_aside(self._file, growth.emergency(self._most))
        self._given = self._given and backing.taken(self._file)

    def follow(self) -> None:
        """Let the file system have what was allocated for it."""
        backing.follow_size(self._ground.device)
        btrfs.grow_to_device(self._ground.root)
        self._has_emergency = False

    def _reduce(self, room: Room) -> None:
        """Give back to the host what has been idle for a while."""
        size = growth.reduced(room)
        if size < room.size and not self._ground.is_certain:
            self._shrink(size)

    def _shrink(self, size: int) -> None:
        btrfs.shrink(self._ground.root, size)
        os.ftruncate(self._file, size)
        self.follow()
        self._given = self._given and backing.taken(self._file)

    def _commit(self) -> None:
        btrfs.start_commit(self._ground.root)
        # If there is nothing to commit, the thread that frees removed subvolumes sleeps on; a label wakes it.
        label = self._ground.directory / "label"
        label.write_text(label.read_text().strip())

    def _hold(self, room: Room) -> float:
        """Keep whoever writes from what is reserved for others. Returns when to look again."""
        size, largest = self._ground.size, self._quotas.largest
        sight = (room.reachable // MIB, room.reachable_metadata // MIB, len(self._quotas), largest)
        is_roomy = allowance(room, size, len(self._quotas) * per_disk(size)) >= largest
        if self._ground.is_certain or (self._allowance is None and is_roomy) or sight == self._held_at:
            return 0.0
        begun, disks = time.monotonic(), self._quotas.disks()
        self._reserved = len(disks), reserved(size, disks)
        more = allowance(room, size, self._reserved[1])
        for limit, disk in limits(disks, size, more):
            with suppress(KeyError, FileNotFoundError):  # it goes just now
                self._quotas.limit(disk.name, limit)
        self._allowance, self._held_at = None if more >= largest else more, sight
        return begun + (time.monotonic() - begun) * PART_OF_TIME

    def _say(self, what: str) -> None:
        if what != self._said:
            logger.warning("the pool %s %s", self._ground.file, what)
        self._said = what

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A pool may be open twice, for a moment."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
