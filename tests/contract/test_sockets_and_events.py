"""What every engine promises of a running sandbox: a way to its ports, and word of what happens to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from atoll.attacks.resources import UNSENT_CROWD
from atoll.engine.base import Event, EventKind
from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.hoards import IN_TURN
from atoll.protocol.commands import CommandOutput
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked, native

SERVER = """
import socket, sys
server = socket.socket(socket.{family})
server.bind(("{address}", {port}))
server.listen()
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    peer.sendall(b"hello from inside")
    peer.close()
"""


async def serve(box: Box, family: str, address: str, port: int) -> None:
    code = SERVER.format(family=family, address=address, port=port)
    await box.sh(f"python3 -u -c '{code}' >/tmp/{port}.log 2>&1 & until grep -q listening /tmp/{port}.log; do :; done")


async def everything_from(peer: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    received = b""
    while data := await loop.sock_recv(peer, 4096):
        received += data
    return received


@pytest.mark.parametrize(
    ("family", "address"),
    [("AF_INET", "127.0.0.1"), ("AF_INET", "0.0.0.0"), ("AF_INET6", "::1"), ("AF_INET6", "::")],
)
async def test_a_socket_reaches_a_service_on_the_sandboxs_own_loopback(
    host_box: Box, workshop: Workshop, family: str, address: str
) -> None:
    await serve(host_box, family, address, 8080)
    with await workshop.engine.open_port(host_box.live, 8080) as peer:
        assert await everything_from(peer) == b"hello from inside"


async def test_ports_of_two_sandboxes_are_two_ports(neighbours: tuple[Box, Box], workshop: Workshop) -> None:
    one, other = neighbours
    await serve(one, "AF_INET", "127.0.0.1", 9000)
    with pytest.raises(AtollError) as caught:
        await workshop.engine.open_port(other.live, 9000)
    assert caught.value.code == ErrorCode.PORT_NOT_OPEN
    assert "9000" in str(caught.value) and caught.value.remedy
    with socket.socket() as host, pytest.raises(OSError):
        host.connect(("127.0.0.1", 9000))


@pytest.mark.parametrize("port", [0, -1, 65_536])
async def test_a_number_that_is_no_port_is_refused(box: Box, workshop: Workshop, port: int) -> None:
    with pytest.raises(AtollError) as caught:
        await workshop.engine.open_port(box.live, port)
    assert caught.value.code == ErrorCode.INVALID_PORT


async def test_a_sandbox_that_has_ended_has_no_ports(box: Box, workshop: Workshop) -> None:
    os.kill(native(box.live).process.pid, signal.SIGKILL)
    await workshop.engine.wait(box.live)
    with pytest.raises(AtollError) as caught:
        await workshop.engine.open_port(box.live, 80)
    assert caught.value.code == ErrorCode.SANDBOX_NOT_RUNNING


async def test_many_sockets_at_once_and_some_given_up(host_box: Box, workshop: Workshop) -> None:
    await serve(host_box, "AF_INET", "127.0.0.1", 8080)
    tasks = [asyncio.create_task(workshop.engine.open_port(host_box.live, 8080)) for _ in range(60)]
    for task in tasks[::3]:
        await asyncio.sleep(0)
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, socket.socket):
            with outcome:
                assert await everything_from(outcome) == b"hello from inside"
        else:
            assert isinstance(outcome, asyncio.CancelledError)


async def test_the_nursery_is_home_again_after_a_visit(host_box: Box, workshop: Workshop) -> None:
    assert isinstance(workshop.engine, NativeEngine)
    await serve(host_box, "AF_INET", "127.0.0.1", 8080)
    (await workshop.engine.open_port(host_box.live, 8080)).close()
    assert os.readlink(f"/proc/{workshop.engine.nursery_pid}/ns/net") == os.readlink("/proc/self/ns/net")


@pytest.fixture
async def small(workshop: Workshop) -> AsyncIterator[Box]:
    live = await create(workshop, "small", limits={"memory": "64MiB"})
    async with linked(live) as link:
        yield Box(live, link, "host")
    await workshop.destroy(live)


async def test_running_out_of_memory_and_the_end_are_events(small: Box, workshop: Workshop) -> None:
    seen: asyncio.Queue[Event] = asyncio.Queue()

    async def listen() -> None:
        async for event in workshop.engine.events(small.live):
            seen.put_nowait(event)

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    for number in (1, 2):
        hog = await small.run("python3", "-c", "x = b'x' * 200_000_000")
        assert hog.done.exit_code == 128 + signal.SIGKILL
        assert await seen.get() == Event(kind=EventKind.OOM_KILLED, oom_kills=number)
    os.kill(native(small.live).process.pid, signal.SIGKILL)
    assert await seen.get() == Event(kind=EventKind.ENDED, oom_kills=2)
    await listener


async def test_what_holds_too_much_in_sockets_is_killed_which_is_an_event(small: Box, workshop: Workshop) -> None:
    seen: asyncio.Queue[Event] = asyncio.Queue()

    async def listen() -> None:
        async for event in workshop.engine.events(small.live):
            seen.put_nowait(event)

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    holding = f"{UNSENT_CROWD}\nkept = [hoard() for _ in range(900)]\ntime.sleep(3600)"
    hoard = await small.run("python3", "-c", f"import socket, time\n{holding}")
    assert hoard.done.exit_code == 128 + signal.SIGKILL
    assert await seen.get() == Event(kind=EventKind.HOARD_KILLED, oom_kills=0)
    assert (await small.run("echo", "alive")).stdout == b"alive\n"
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)


HOLDING = """
import socket, time
listener, kept, held = socket.create_server(("127.0.0.1", 0)), [], 0
while held < 12 * 2**20:
    kept.append((socket.create_connection(listener.getsockname()), listener.accept()[0]))
    kept[-1][0].setblocking(False)
    try:
        while held < 12 * 2**20:
            held += kept[-1][0].send(b"x" * 65536)
    except BlockingIOError:
        pass
print("holding", flush=True)
time.sleep(3600)
"""


async def test_of_those_who_together_hold_all_that_sockets_may_the_one_that_holds_most_is_killed(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds less than it may. Beyond what all may the kernel resets connections of the host too."""
    assert isinstance(workshop.engine, NativeEngine)
    monkeypatch.setattr(workshop.engine._hoards, "_most_of_all", 60 * 2**20)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        ends: list[asyncio.Task[CommandOutput]] = []
        for number in range(IN_TURN + 2):  # so that one look at a few does not find enough
            live = await create(workshop, f"holds-{number}", limits={"memory": "64MiB"})
            stack.push_async_callback(workshop.destroy, live)
            link = await stack.enter_async_context(linked(live))
            ends.append(tasks.create_task(Box(live, link, "host").run("python3", "-c", HOLDING)))
        done, others = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert {(await end).done.exit_code for end in done} == {128 + signal.SIGKILL}
        for end in others:
            end.cancel()


async def test_several_may_listen_and_one_may_stop(box: Box, workshop: Workshop) -> None:
    async def last() -> Event:
        return [event async for event in workshop.engine.events(box.live)][-1]

    tasks = [asyncio.create_task(last()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks.pop().cancel()
    os.kill(native(box.live).process.pid, signal.SIGKILL)
    assert {event.kind for event in await asyncio.gather(*tasks)} == {EventKind.ENDED}
