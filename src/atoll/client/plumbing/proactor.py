"""Waiting for sockets beside an event loop that cannot watch them, as that of Windows: a thread selects for all.

Rules:
1. A wait is the thread's until it is over or nobody wants it any more. The loop is told from the thread, once.
2. What select refuses was closed meanwhile. Whoever waits for it is woken, and finds out by using it.
3. Windows' select takes MAX_WAITS sockets at most; whoever comes then is refused, and the others go on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import threading
from contextlib import suppress
from functools import cache

MAX_WAITS = 250  # of two sockets each, and ours: Python's select takes 512 on Windows


class Wait:
    """The descriptors that a task waits for."""

    def __init__(self, reading: list[int], writing: list[int]) -> None:
        self.reading, self.writing = reading, writing
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bool] = self._loop.create_future()

    def wake(self) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self.resolve, True)

    def resolve(self, outcome: bool) -> None:
        if not self.ready.done():
            self.ready.set_result(outcome)

    def is_ready(self, ready: set[int]) -> bool:
        return not ready.isdisjoint((*self.reading, *self.writing))


class Selecting:
    """The thread, and all that is waited for."""

    def __init__(self) -> None:
        self._waits: set[Wait] = set()
        self._lock = threading.Lock()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        threading.Thread(target=self._select, name="atoll-sockets", daemon=True).start()

    def add(self, wait: Wait) -> None:
        with self._lock:
            if len(self._waits) >= MAX_WAITS:
                raise OSError(errno.EMFILE, f"more than {MAX_WAITS} operations are under way at once")
            self._waits.add(wait)
        self._ring()

    def discard(self, wait: Wait) -> None:
        with self._lock:
            self._waits.discard(wait)
        self._ring()

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it has been rung
            self._rope.send(b".")

    def _select(self) -> None:
        while True:
            with self._lock:
                waits = list(self._waits)
            ready = self._ready_of(waits)
            with suppress(BlockingIOError):
                self._bell.recv(4096)
            for wait in waits:
                if wait.is_ready(ready):
                    with self._lock:
                        self._waits.discard(wait)
                    wait.wake()

    def _ready_of(self, waits: list[Wait]) -> set[int]:
        reading = [fd for wait in waits for fd in wait.reading]
        writing = [fd for wait in waits for fd in wait.writing]
        try:
            # A connection that failed is told as an error there.
            read, written, failed = select.select([self._bell.fileno(), *reading], writing, writing)
        except (OSError, ValueError):
            return {fd for fd in (*reading, *writing) if _is_refused(fd)}
        return {*read, *written, *failed}


async def wait_elsewhere(
    descriptor: int, *, reading: bool, writing: bool, seconds: float | None, source: int | None = None
) -> bool:
    """A wait as `wait_for_socket` has it, done by the thread."""
    wait = Wait([descriptor] * reading + ([] if source is None else [source]), [descriptor] * writing)
    alarm = None
    if seconds is not None:
        alarm = asyncio.get_running_loop().call_later(max(0.0, seconds), wait.resolve, False)
    thread = selecting(os.getpid())
    try:
        thread.add(wait)
        return await wait.ready
    finally:
        thread.discard(wait)
        if alarm:
            alarm.cancel()


@cache
def selecting(process: int) -> Selecting:
    """The selecting thread of this process; one that was forked has none of the threads of the other."""
    return Selecting()


def _is_refused(descriptor: int) -> bool:
    try:
        select.select([descriptor], [], [], 0)
    except (OSError, ValueError):
        return True
    return False
