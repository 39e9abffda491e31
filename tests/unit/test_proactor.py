"""Sockets waited for by a thread, for event loops that cannot."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from atoll.client.plumbing.proactor import MAX_WAITS, selecting, wait_elsewhere


@pytest.fixture(scope="module", autouse=True)
def thread() -> None:
    """It is there for good, so before a test looks for what was not."""
    selecting(os.getpid())


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def reading(peer: socket.socket, seconds: float | None = None) -> asyncio.Task[bool]:
    wait = wait_elsewhere(peer.fileno(), reading=True, writing=False, seconds=seconds)
    return asyncio.get_running_loop().create_task(wait)


async def test_a_socket_wakes_who_waits_for_it_and_nobody_else(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    one, other = reading(near), reading(far)
    await asyncio.sleep(0)
    far.send(b"x")
    assert await one
    assert not other.done()
    near.close()
    assert await other


async def test_what_was_to_be_written_or_read_from_another_wakes_as_well(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    assert await wait_elsewhere(near.fileno(), reading=True, writing=True, seconds=None)
    near.send(b"x")
    assert await wait_elsewhere(near.fileno(), reading=True, writing=False, seconds=None, source=far.fileno())


async def test_nothing_happens_for_so_long(pair: tuple[socket.socket, socket.socket]) -> None:
    assert not await reading(pair[0], seconds=0.01)


async def test_who_is_cancelled_is_forgotten_and_the_others_go_on(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    gone, other = reading(near), reading(far)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    near.shutdown(socket.SHUT_RDWR)
    assert await other


async def test_a_socket_that_was_closed_under_it_wakes(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    descriptor = os.dup(near.fileno())
    closed = asyncio.create_task(wait_elsewhere(descriptor, reading=True, writing=False, seconds=None))
    await asyncio.sleep(0)
    os.close(descriptor)
    other = reading(far)  # which has the thread look again
    assert await closed
    near.close()
    assert await other


async def test_more_than_select_takes_are_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    tasks = [reading(near) for _ in range(MAX_WAITS)]
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="at once") as refused:
        await reading(far)
    assert refused.value.errno == errno.EMFILE
    far.send(b"x")
    assert all(await asyncio.gather(*tasks))
    assert not selecting(os.getpid())._waits
