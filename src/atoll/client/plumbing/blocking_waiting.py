"""Waiting, in the calling thread.

The twin of `waiting.py`, written by hand; `scripts/build_sync_client.py` copies it to `client_sync` under that name.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from atoll.protocol.errors import ErrorCode, error

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
T = TypeVar("T")

_this_thread = threading.local()

# A thread has none: what interrupts it may come between any two steps, so what it did cannot go on.
CANCELLATIONS: tuple[type[BaseException], ...] = ()


def wait_for_socket(
    descriptor: int, *, reading: bool, writing: bool, seconds: float | None, source: int | None = None
) -> bool:
    """Whether the socket became ready within `seconds`, or ever; or `source`, from which something is to be read."""
    if sys.platform == "win32":
        return _select(descriptor, reading=reading, writing=writing, seconds=seconds, source=source)
    poll = select.poll()
    poll.register(descriptor, (select.POLLIN if reading else 0) | (select.POLLOUT if writing else 0))
    if source is not None:
        poll.register(source, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))


def is_readable(descriptor: int) -> bool:
    """Whether there is something to read now, if only the end. Windows can say that of sockets alone."""
    if sys.platform == "win32":
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def pause(seconds: float) -> None:
    time.sleep(seconds)


def look_up(host: str, port: int) -> list[AddressInfo]:
    """The addresses of a host, best first."""
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def settle(outcome: object) -> None:
    """There is nothing to wait for: the callback has returned."""


def iterate(content: object) -> Any:
    """An iterator over what somebody gave us; None for a file, which is read, and all else."""
    return iter(content) if isinstance(content, Iterable) and not hasattr(content, "read") else None


def next_piece(iterator: Any) -> object:
    """None at its end."""
    return next(iterator, None)


def is_awaited(source: object) -> bool:
    """Nothing is: who could wait for it?"""
    return False


def begin_making() -> None:
    """For a thread that makes input: whoever waits for it may be in, so it waits for nobody's turn."""
    _this_thread.makes_input = True


def start_making_awaited(
    source: AsyncIterable[object],
    cut: Callable[[object], Iterator[bytes]],
    sink: socket.socket,
    failures: list[BaseException],
) -> Callable[[], None]:
    """Never called: nothing is awaited."""
    raise NotImplementedError


def run_blocking(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function that waits for a disk. So do we."""
    return function(*arguments)


class Lock:
    """Lets one thread in at a time: `with lock.turn()`.

    A forked process has a lock of its own: whoever was in when it was made is not there to leave. Whoever is in and
    comes again, from a signal handler or from what it sends, would wait for itself, and is refused.
    """

    def __init__(self) -> None:
        self._locks: dict[int, Any] = {}  # by process; `setdefault` is atomic

    def turn(self) -> AbstractContextManager[object]:
        lock: Any = self._locks.setdefault(os.getpid(), threading.RLock())
        if lock._is_owned():
            message = "this thread uses the same stream or file already, and is in the midst of it"
            remedy = "A signal handler, and whatever makes its input, must leave it alone."
            raise error(ErrorCode.INVALID_REQUEST, message, remedy=remedy)
        if getattr(_this_thread, "makes_input", False):
            if not lock.acquire(blocking=False):
                message = "a stream or file is in use, perhaps by whoever waits for the input that is made here"
                raise error(ErrorCode.INVALID_REQUEST, message, remedy="Use another in what makes input.")
            lock.release()
        held: AbstractContextManager[object] = lock  # itself: no Ctrl-C comes between its getting and its use
        return held


def _select(descriptor: int, *, reading: bool, writing: bool, seconds: float | None, source: int | None) -> bool:
    """A look at sockets on Windows, whose select tells of a connection that failed as of an error."""
    read = [descriptor] * reading + ([] if source is None else [source])
    written = [descriptor] * writing
    return any(select.select(read, written, written, None if seconds is None else max(0.0, seconds)))
