"""Limits of control groups: what a sandbox is given, in the kernel's numbers."""

from __future__ import annotations

import sys

import msgspec

MEMORY_OF_AGENT = 64 * 2**20  # on top of the commands': an idle one takes 3 MB, its buffers are bounded
CPU_PERIOD_US = 100_000
MIN_CPU_QUOTA_US = 1_000  # the kernel's own bound
SHARE_OF_SOCKETS, LEAST_FOR_SOCKETS = 4, 8 * 2**20  # a quarter of the memory, on top of it; one fast connection takes 6


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Limits as the kernel takes them."""

    cpus: float
    memory: int
    pids: int


class MemoryInUse(Exception):
    """More memory than there is to be from now on is in use, and cannot be had back without killing somebody."""

    def __init__(self, used: int) -> None:
        super().__init__(used)
        self.used = used


def for_sockets(memory: int, of_all: int = sys.maxsize) -> int:
    """The bytes that may wait in the sockets of a sandbox with so much memory, where all together may have `of_all`."""
    return max(LEAST_FOR_SOCKETS, min(memory, of_all) // SHARE_OF_SOCKETS)


def quota(cpus: float) -> int:
    """Microseconds of cpu per period."""
    return max(MIN_CPU_QUOTA_US, round(cpus * CPU_PERIOD_US))
