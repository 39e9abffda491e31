"""File locks, memory of the kernel that is counted for nobody, and of which Linux has no limit any more.

The kernel lists all of them in /proc/locks, the newest of each cpu first, at a price that grows with the square of how
much is read. So their number is taken from its allocator, and of the list only the beginning is looked at: whoever has
made a million has made what is there.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

ALLOCATOR = b"file_lock_cache"
LOOKED_AT = 256 * 1024  # bytes of the list: some 4,000 locks, in a few milliseconds
MANY = 1000  # of those: more than a busy database has, and what a hoarder always has
IN_GROUP = re.compile(r"/(sandbox-\d+)(?:/|$)", re.MULTILINE)


class Holder(NamedTuple):
    """The facts of a line: a process of the host's count, or -1; and the device of the file, as the list writes it."""

    pid: int
    device: str


def locks_bytes() -> int:
    """The memory that all file locks of the machine take; 0 where the kernel does not say."""
    with suppress(OSError), open("/proc/slabinfo", "rb") as file:
        return parse_slabinfo(file.read())
    return 0


def parse_slabinfo(text: bytes) -> int:
    for line in text.splitlines():
        name, *numbers = line.split()
        if name == ALLOCATOR:
            return int(numbers[0]) * int(numbers[2])
    return 0


def newest_locks() -> Counter[Holder]:
    text = b""
    with open("/proc/locks", "rb", buffering=0) as file:
        while len(text) < LOOKED_AT and (block := file.read(LOOKED_AT)):
            text += block
    return parse_locks(text)


def parse_locks(text: bytes) -> Counter[Holder]:
    """Without those that wait for another. The last line may be cut off."""
    holders: Counter[Holder] = Counter()
    for line in text.decode(errors="replace").splitlines():
        words = line.split()
        if len(words) == 8:
            holders[Holder(int(words[4]), words[5].rpartition(":")[0])] += 1
    return holders


def most_locks(newest: Counter[Holder], first_pids: dict[str, int]) -> str | None:
    """The group that has most of them, if those are many. `first_pids` has a process of each group."""
    known = devices_of(first_pids)
    found: Counter[str] = Counter()
    for holder, number in newest.items():
        if group := known.get(holder.device) or group_of(holder.pid):
            found[group] += number
    group, number = found.most_common(1)[0] if found else (None, 0)
    return group if number >= MANY and group in first_pids else None


def devices_of(first_pids: dict[str, int]) -> dict[str, str]:
    """The group whose files a device has, by device as the list of locks writes it."""
    devices: dict[str, str] = {}
    for group, pid in first_pids.items():
        with suppress(OSError), open(f"/proc/{pid}/mountinfo") as file:
            devices |= dict.fromkeys(map(_device, file), group)
    return devices


def _device(mount: str) -> str:
    major, _, minor = mount.split(" ", 3)[2].partition(":")
    return f"{int(major):02x}:{int(minor):02x}"


def group_of(pid: int) -> str | None:
    """For files that all sandboxes have one device for, as those in memory."""
    with suppress(OSError), open(f"/proc/{pid}/cgroup") as file:
        if found := IN_GROUP.search(file.read()):
            return found[1]
    return None
