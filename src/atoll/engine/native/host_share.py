"""The share of all sandboxes together, so that the host keeps enough to be looked after.

Written to the group above all of them when an engine is opened. When they reach it, the kernel makes room among them.
One thing the kernel counts for the machine and for no group: open files. Each takes memory of its sandbox, 227 bytes or
more, so memory is what limits them, once their own number does not.
"""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from atoll.engine.native.capacity import FILE_MAX, MANY_FILES, MOST_FILES, read_setting

if TYPE_CHECKING:
    from atoll.engine.native.cgroups import Cgroups

MIB = 2**20
PART_OF_MEMORY, MOST_MEMORY = 16, 1024 * MIB  # a sixteenth for the host, where that is not more than it needs
PART_OF_PROCESSES = 8
PAGE_SIZE = resource.getpagesize()

logger = logging.getLogger("atoll.engine")


class Share(NamedTuple):
    memory: int
    pids: int
    sockets: int


def share_of(memory: int, pids: int, sockets: int) -> Share:
    return Share(memory - min(memory // PART_OF_MEMORY, MOST_MEMORY), pids - pids // PART_OF_PROCESSES, sockets)


def most_in_sockets() -> int:
    """Bytes. From here on the kernel holds back TCP, and at twice as much nobody's socket gets more than it must."""
    with open("/proc/sys/net/ipv4/tcp_mem") as file:
        return int(file.read().split()[0]) * PAGE_SIZE


def limit_all(cgroups: Cgroups) -> None:
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) * 1024
    settings = (read_setting(f"kernel.{name}") for name in ("pid_max", "threads-max"))
    share = share_of(memory, min(setting for setting in settings if setting), most_in_sockets())
    # Sandboxes of before may use more, or another machine be in the same group: then it stays as it was.
    with suppress(OSError):
        cgroups.limit_all(*share)


def raise_file_max(setting: str = f"/proc/sys/{FILE_MAX.replace('.', '/')}") -> None:
    """As systemd does at boot. The kernel's default, a file for 10 KiB of memory, is less than one sandbox can open."""
    try:
        with open(setting, "r+") as file:
            most = int(file.read())
            if most >= MANY_FILES:
                return
            file.seek(0)
            file.write(str(MOST_FILES))
    except OSError as cause:
        logger.warning("%s cannot be raised: %s; one sandbox can take all the machine may open", FILE_MAX, cause)
    else:
        logger.info("%s is raised from %d: what limits open files is the memory of each sandbox", FILE_MAX, most)
