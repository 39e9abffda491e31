"""What all sandboxes together may have, so that the host keeps enough to be looked after.

Written to the group above all of them when an engine is opened. When they reach it, the kernel makes room among them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from atoll.engine.native.capacity import read_setting

if TYPE_CHECKING:
    from atoll.engine.native.cgroups import Cgroups

MIB = 2**20
PART_OF_MEMORY, MOST_MEMORY = 16, 1024 * MIB  # a sixteenth for the host, where that is not more than it needs
PART_OF_PROCESSES = 8


class Share(NamedTuple):
    memory: int
    pids: int


def share_of(memory: int, pids: int) -> Share:
    return Share(memory - min(memory // PART_OF_MEMORY, MOST_MEMORY), pids - pids // PART_OF_PROCESSES)


def limit_all(cgroups: Cgroups) -> None:
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) * 1024
    settings = (read_setting(f"kernel.{name}") for name in ("pid_max", "threads-max"))
    share = share_of(memory, min(setting for setting in settings if setting))
    # Sandboxes of before may use more, or another machine be in the same group: then it stays as it was.
    with suppress(OSError):
        cgroups.limit_all(share.memory, share.pids)
