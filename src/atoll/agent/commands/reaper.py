"""The reaper: collects every process that ends, our children and the orphans that PID 1 inherits."""

from __future__ import annotations

import os
import signal
import socket
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

    def open(self) -> None:
        """From now on."""
        # As loop.add_signal_handler does, but reaping in the turn that the signal wakes: that spares two more turns.
        self._signalled, wakeup = socket.socketpair()
        for end in (self._signalled, wakeup):
            end.setblocking(False)
        self._wakeup = wakeup  # kept: set_wakeup_fd holds only its number
        signal.signal(signal.SIGCHLD, _wake_up_only)
        signal.siginterrupt(signal.SIGCHLD, False)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        self._loop.add_reader(self._signalled, self._on_signal)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._loop.remove_reader(self._signalled)
        self._signalled.close()
        self._wakeup.close()

    def watch(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Call `on_exit` with the exit code, or 128 + signal as a shell has it."""
        self._watchers[pid] = on_exit

    @property
    def is_watching(self) -> bool:
        return bool(self._watchers)

    def _on_signal(self) -> None:
        self._signalled.recv(4096)
        self.reap()

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


def _wake_up_only(number: int, frame: object) -> None:
    """The byte on the wakeup descriptor does it all."""


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
