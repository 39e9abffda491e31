"""Collects every process that ends: our children, and the orphans that PID 1 inherits."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

BATCH = 256  # orphans collected before the loop may do something else: a fork bomb must not own it


class Reaper:
    """Tells whoever watches a pid how it ended. A pid must be watched in the same turn of the loop that made it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watchers: dict[int, Callable[[int], None]] = {}
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Call `on_exit` with the exit code, or 128 + signal as a shell has it."""
        self._watchers[pid] = on_exit

    def reap(self) -> None:
        for _ in range(BATCH):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if on_exit := self._watchers.pop(pid, None):
                on_exit(_exit_code(status))
        self._loop.call_soon(self.reap)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
