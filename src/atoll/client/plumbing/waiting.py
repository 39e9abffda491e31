"""Waiting, on the running event loop.

Only this file knows asyncio. Its blocking twin, `blocking_waiting.py`, has the same functions for threads; the rest
of the SDK is written once. A socket is with the loop only while it is waited for, so a connection that is kept for
later belongs to no loop, and serves whichever asks next.
"""

from __future__ import annotations

import asyncio
import inspect
import select
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
T = TypeVar("T")
PROACTOR: type | None = getattr(asyncio, "ProactorEventLoop", None)  # Windows' own loop, which watches no sockets

_makers: set[asyncio.Task[None]] = set()

# They come where something is waited for and nowhere else, so what waited can go on.
CANCELLATIONS: tuple[type[BaseException], ...] = (asyncio.CancelledError,)


async def wait_for_socket(
    descriptor: int, *, reading: bool, writing: bool, seconds: float | None, source: int | None = None
) -> bool:
    """Whether the socket became ready within `seconds`, or ever; or `source`, from which something is to be read."""
    loop = asyncio.get_running_loop()
    if PROACTOR is not None and isinstance(loop, PROACTOR):
        from atoll.client.plumbing.proactor import wait_elsewhere  # on Windows alone

        return await wait_elsewhere(descriptor, reading=reading, writing=writing, seconds=seconds, source=source)
    ready: asyncio.Future[bool] = loop.create_future()
    alarm = None if seconds is None else loop.call_later(max(0.0, seconds), _resolve, ready, False)
    if reading:
        loop.add_reader(descriptor, _resolve, ready, True)
    if writing:
        loop.add_writer(descriptor, _resolve, ready, True)
    if source is not None:
        loop.add_reader(source, _resolve, ready, True)
    try:
        return await ready
    finally:
        if alarm:
            alarm.cancel()
        if reading:
            loop.remove_reader(descriptor)
        if writing:
            loop.remove_writer(descriptor)
        if source is not None:
            loop.remove_reader(source)


def is_readable(descriptor: int) -> bool:
    """Whether there is something to read now, if only the end. Windows can say that of sockets alone."""
    if sys.platform == "win32":
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def look_up(host: str, port: int) -> list[AddressInfo]:
    """The addresses of a host, best first."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(found)


async def settle(outcome: object) -> None:
    """Wait for what a callback returned, if there is something to wait for."""
    if inspect.isawaitable(outcome):
        await outcome


def iterate(content: object) -> Any:
    """An iterator over what somebody gave us, of whichever kind; None for a file, which is read, and all else."""
    if isinstance(content, AsyncIterable):
        return aiter(content)
    return iter(content) if isinstance(content, Iterable) and not hasattr(content, "read") else None


async def next_piece(iterator: Any) -> object:
    """None at its end."""
    return await anext(iterator, None) if isinstance(iterator, AsyncIterator) else next(iterator, None)


def is_awaited(source: object) -> bool:
    """Whether its items are waited for."""
    return isinstance(source, AsyncIterable)


def begin_making() -> None:
    """For a thread that makes input: nothing of a loop's can wait for it."""


def start_making_awaited(
    source: AsyncIterable[object],
    cut: Callable[[object], Iterator[bytes]],
    sink: socket.socket,
    failures: list[BaseException],
) -> Callable[[], None]:
    """Move items that are waited for into a socket, which is closed then; what ends that."""
    loop = asyncio.get_running_loop()
    making = loop.create_task(_make_awaited(source, cut, sink, failures))
    _makers.add(making)  # the loop alone does not keep it
    making.add_done_callback(_makers.discard)

    def stop() -> None:
        with suppress(RuntimeError):  # its loop is over, and it with it
            loop.call_soon_threadsafe(making.cancel)

    return stop


async def _make_awaited(
    source: AsyncIterable[object],
    cut: Callable[[object], Iterator[bytes]],
    sink: socket.socket,
    failures: list[BaseException],
) -> None:
    iterator = aiter(source)
    sink.setblocking(False)
    with sink:
        try:
            async for item in iterator:
                for piece in cut(item):
                    if not await _send(sink, piece):
                        return
        except Exception as cause:
            failures.append(cause)
        finally:
            if isinstance(iterator, AsyncGenerator):
                await iterator.aclose()


async def _send(sink: socket.socket, piece: bytes) -> bool:
    """False: nobody reads any more."""
    try:
        await asyncio.get_running_loop().sock_sendall(sink, piece)
    except OSError:
        return False
    return True


async def run_blocking(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function that waits for a disk, run where it keeps nobody else waiting.

    Whoever is cancelled leaves at once. The function goes on to its end, and what it has opened is closed.
    """
    working = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(_discard)
        raise


class Lock:
    """Lets one task in at a time, first come, first served: `async with lock.turn()`.

    Like a connection it belongs to no loop while nobody uses it.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._users = 0  # who is in, and who waits

    def turn(self) -> Lock:
        return self

    async def __aenter__(self) -> None:
        if not self._users:
            self._lock = asyncio.Lock()  # one that was waited for is tied to the loop of whoever did
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._users -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        self._lock.release()


def _discard(done: asyncio.Future[Any]) -> None:
    """A result that nobody waits for any more is closed."""
    if not done.cancelled() and not done.exception() and hasattr(done.result(), "close"):
        done.result().close()


def _resolve(ready: asyncio.Future[bool], outcome: bool) -> None:
    if not ready.done():
        ready.set_result(outcome)
