"""Clocks of the sandbox's own: since boot, and monotonic. They begin shortly before its first process does.

So neither they, nor /proc/uptime, nor the start times of processes tell since when the host is up. Whoever wants to
know finds it in /proc/self/timens_offsets, which cannot be hidden.
"""

from __future__ import annotations

import errno
import os
import time

from atoll.engine.native import syscalls
from atoll.engine.native.syscalls import Namespace, Prctl

# Since boot, to be longer than a first process waits for its nursery: what began before has no number on such a clock.
BOOT_SECONDS = 30


def start_clocks() -> None:
    """Enter a new time namespace.

    A kernel without such namespaces goes on as before; what /proc shows then follows from the machine's clocks.
    """
    try:
        syscalls.unshare(Namespace.TIME)
    except OSError as cause:
        if cause.errno == errno.EINVAL:
            return
        raise
    # /proc/self belongs to us only while we are dumpable, which a change of user id ends.
    syscalls.prctl(Prctl.SET_DUMPABLE, 1)
    settings = os.open("/proc/self/timens_offsets", os.O_WRONLY | os.O_CLOEXEC)
    ours = os.open("/proc/self/ns/time_for_children", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.prctl(Prctl.SET_DUMPABLE, 0)
    os.write(settings, offsets(time.clock_gettime(time.CLOCK_BOOTTIME), time.clock_gettime(time.CLOCK_MONOTONIC)))
    syscalls.setns(ours, Namespace.TIME)
    os.close(settings)
    os.close(ours)


def offsets(boot: float, monotonic: float) -> bytes:
    """The offsets by which these two clocks began BOOT_SECONDS ago. A machine that has just booted is as young."""
    return b"boottime %d 0\nmonotonic %d 0\n" % (
        -max(0, int(boot) - BOOT_SECONDS),
        -max(0, int(monotonic) - BOOT_SECONDS),
    )
