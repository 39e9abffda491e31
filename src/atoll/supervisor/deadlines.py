"""Deadlines: when each sandbox is to be looked at next; one heap for all of them, and one alarm for the first.

A look that turns out to be early costs little, and decides when the next one is. So nothing is moved when a deadline
comes to be later, as it does with every use; it is moved when it comes to be earlier. Whoever has none costs nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

from atoll.protocol.ids import SandboxId

FEW_ENTRIES = 64
TFD_TIMER_ABSTIME = 1  # linux/timerfd.h


class Deadlines:
    """`planned` says for when a look at a sandbox is planned; an entry for any other moment is void."""

    def __init__(self, planned: Callable[[SandboxId], float]) -> None:
        self._planned = planned
        self._heap: list[tuple[float, SandboxId]] = []
        self._too_many = FEW_ENTRIES
        self._tell_first: Callable[[float], None] | None = None

    def on_first(self, tell: Callable[[float], None]) -> None:
        """Tell the first moment, now and whenever it comes to be earlier."""
        self._tell_first = tell
        tell(self.first)

    @property
    def first(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def add(self, moment: float, sandbox: SandboxId) -> None:
        is_first = moment < self.first
        heapq.heappush(self._heap, (moment, sandbox))
        if len(self._heap) >= self._too_many:
            self._drop_void()
        if is_first and self._tell_first:
            self._tell_first(moment)

    def take(self, now: float) -> list[SandboxId]:
        """The sandboxes whose moment has come, which are planned no more."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            moment, sandbox = heapq.heappop(self._heap)
            if self._planned(sandbox) == moment:
                due.append(sandbox)
        return due

    def _drop_void(self) -> None:
        """All are looked at, so this is done when they have doubled."""
        self._heap = [(moment, sandbox) for moment, sandbox in self._heap if self._planned(sandbox) == moment]
        heapq.heapify(self._heap)
        self._too_many = max(FEW_ENTRIES, 2 * len(self._heap))


class Alarm:
    """Rings at a moment by the clock that goes on while the machine is suspended, which no timer of a loop follows."""

    def __init__(self) -> None:
        self._fd = _check(_libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC))

    def set(self, moment: float) -> None:
        """Instead of what it was set to. A moment that is over is now, and an infinite one never."""
        value = _Timespec() if moment == inf else _to_timespec(max(moment, 1e-9))
        _check(_libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(_Timer(_Timespec(), value)), None))

    async def ring(self) -> None:
        """Return when it does."""
        loop, has_rung = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._fd, has_rung.set)
        try:
            await has_rung.wait()
        finally:
            loop.remove_reader(self._fd)
        with suppress(BlockingIOError):  # it was set anew meanwhile
            os.read(self._fd, 8)

    def close(self) -> None:
        os.close(self._fd)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)  # Python has these functions from 3.13 on


def _to_timespec(moment: float) -> _Timespec:
    """Rounded up: who is woken before the moment would go to sleep again."""
    seconds, rest = divmod(moment, 1.0)
    return _Timespec(int(seconds), min(999_999_999, int(rest * 1e9) + 1))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
