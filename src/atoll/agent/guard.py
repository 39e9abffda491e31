"""Frees the agent from a spawn that somebody inside has stopped.

While a child has not exec'd yet, its parent waits for it in the kernel and hears nothing else. Root inside can guess
the child's pid and send it SIGSTOP in that moment. So a spawn runs under a timer. If it fires, a second thread, which
nothing inside can stop since it belongs to PID 1, kills the child, and the command is one that was killed.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from atoll.agent.descriptors import Reserve, limit
from atoll.agent.process_tree import ProcessStat, read_process_table, read_stat
from atoll.agent.spawn import no_room

PATIENCE_SECONDS = 0.1  # a spawn takes one; a busy machine is no reason to kill it, only being stopped is


class SpawnGuard:
    """`with guard:` around each spawn. Until it is armed it guards nothing."""

    def __init__(self) -> None:
        self._is_armed = self._is_on_duty = self._has_company = False
        self._reserve = Reserve()

    def arm(self) -> None:
        self._is_armed = True

    def __enter__(self) -> None:
        # Before the first command nobody is there who could do harm, and a start need not pay for a thread.
        if self._is_armed and self._has_company:
            self._is_on_duty = self._is_on_duty or self._go_on_duty()
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS, PATIENCE_SECONDS)
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
                self._kill_stopped(us)

    def _kill_stopped(self, us: ProcessStat) -> None:
        for process in read_process_table(self._reserve):
            if is_stopped_before_exec(process, us):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def is_stopped_before_exec(process: ProcessStat, us: ProcessStat) -> bool:
    """Until it execs, a child has our name."""
    return process.parent == us.pid and process.name == us.name and process.state in (b"T", b"t")
