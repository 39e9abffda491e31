"""The guard of a spawn: frees the agent from one that somebody inside holds up.

While a child has not exec'd yet, its parent waits for it in the kernel and hears nothing else. Root inside can guess
the child's pid and send it SIGSTOP in that moment, or take a write lease on the program, its interpreter or its loader,
which to open then takes fs.lease-break-time. So a spawn runs under a timer. Each time it fires, a second thread, which
nothing inside can stop since it belongs to PID 1, looks at the child, and kills it when its patience is over. The
command is then one that was killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

from atoll.agent.commands.process_tree import NANOSECONDS_PER_TICK, ProcessStat, read_process_table, read_stat
from atoll.agent.commands.spawn import no_room
from atoll.agent.descriptors import Reserve, limit

LOOK_SECONDS = 0.1  # a spawn takes a hundredth of it
# Looks rather than seconds, since whoever is frozen sees none. Nothing but another process makes a child stop, or sleep
# so that signals wake it. A busy machine or a slow disk is no reason to kill it before the host gives up the agent.
PATIENCE_WITH_STOPPED, PATIENCE_WITH_SLEEPING, LAST_PATIENCE = 1, 8, 100


class SpawnGuard:
    """`with guard:` around each spawn. Until it is armed it guards nothing."""

    def __init__(self) -> None:
        self._is_armed = self._is_on_duty = self._has_company = False
        self._looks = self._since = 0
        self._reserve = Reserve()

    def arm(self) -> None:
        self._is_armed = True

    def expect_company(self) -> None:
        """Something was started without a spawn."""
        self._has_company = True

    def __enter__(self) -> None:
        # Before the first command nobody is there who could do harm, and a start need not pay for a thread.
        if self._is_armed and self._has_company:
            self._is_on_duty = self._is_on_duty or self._go_on_duty()
            self._since, self._looks = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // NANOSECONDS_PER_TICK, 0
            signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
        self._has_company = True

    def __exit__(self, *_: object) -> None:
        if self._is_on_duty:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _go_on_duty(self) -> bool:
        try:
            us = read_stat("self")
            self._reserve.open()
        except OSError as cause:
            raise no_room("a command", cause.strerror) from cause
        # A thread starts with its maker's mask: the guard shall be woken by its own signal and no other.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=self._watch, args=(us,), name="spawn guard", daemon=True).start()
        except RuntimeError as cause:
            self._reserve.close()
            raise no_room("a command", "no thread can be started") from cause
        finally:
            # And the loop by any but that one, which then goes to whoever waits for it.
            signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGALRM])
        return True

    def _watch(self, us: ProcessStat) -> None:
        while True:
            signal.sigwait([signal.SIGALRM])
            # Nothing may end this thread; what goes wrong now is tried again when the timer fires next.
            with suppress(OSError):
                limit.restore()
                self._look(us)

    def _look(self, us: ProcessStat) -> None:
        self._looks += 1
        for process in read_process_table(self._reserve):
            if is_before_exec(process, us, self._since) and self._looks >= patience_with(process.state):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def is_before_exec(process: ProcessStat, us: ProcessStat, since: int) -> bool:
    """Until it execs, a child has our name. So may others have, which were born before."""
    return process.parent == us.pid and process.name == us.name and process.start_time >= since


def patience_with(state: bytes) -> int:
    """After how many looks a child is killed."""
    match state:
        case b"T" | b"t":
            return PATIENCE_WITH_STOPPED
        case b"S":
            return PATIENCE_WITH_SLEEPING
        case _:
            return LAST_PATIENCE
