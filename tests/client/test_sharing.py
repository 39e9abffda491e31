"""One stream, view or open file that several tasks or threads use at once: they take turns, nothing happens twice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.client.plumbing.waiting import Lock
from atoll.client_sync.plumbing.waiting import Lock as ThreadLock
from tests.client.halves import AsyncHalf, Half
from tests.client.narrators import KINDS, Kind, Narrator
from tests.client.peers import ContractServer, RawServer, read_request, receive
from tests.client.test_files import FileAgent, sandbox_of

READERS = 4


@pytest.fixture
def narrator(tmp_path: Path) -> Iterator[Narrator]:
    with Narrator(tmp_path / "narrator.sock") as server:
        yield server


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
async def test_those_who_iterate_over_one_stream_share_it(half: Half, narrator: Narrator, kind: Kind) -> None:
    stream = kind.open(half.get_sandbox("user-123", url=narrator.url))
    readers, have_begun = begin(READERS, lambda: collect(half, stream))
    await have_begun()
    assert await asyncio.to_thread(narrator.was_asked.wait, 60)
    await asyncio.sleep(0.1)  # for those who would ask a second time: they must not have waited for the first answer
    assert len(narrator.requests) == 1
    narrator.tell(kind.opening, kind.items(1, 10), kind.items(11, 20), kind.end)
    items = [item for got in await asyncio.gather(*readers) for item in got]
    kinds = Counter(getattr(item, "type", "") for item in items)
    assert kinds["start"] == kinds["complete"] == ("complete" in kinds)  # those of a command
    numbers = [kind.number(item) for item in items if getattr(item, "type", "") not in ("start", "complete")]
    assert sorted(numbers) == list(range(1, 21))
    assert narrator.accepted == 1


@pytest.mark.parametrize("kind", ["a watch", "a file", "a terminal"])
async def test_a_stream_that_is_entered_and_read_at_once_is_opened_once(
    half: Half, narrator: Narrator, kind: str
) -> None:
    stream = KINDS[kind].open(half.get_sandbox("user-123", url=narrator.url))
    entering, have_begun = begin(READERS, lambda: enter(half, stream))
    await have_begun()
    reading = asyncio.create_task(collect(half, stream))
    assert await asyncio.to_thread(narrator.was_asked.wait, 60)
    await asyncio.sleep(0.1)
    narrator.tell(KINDS[kind].opening, KINDS[kind].item(1), KINDS[kind].end)
    await asyncio.gather(*entering)
    assert [KINDS[kind].number(item) for item in await reading] == [1]
    assert narrator.accepted == 1


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
async def test_closing_waits_for_no_reader_and_ends_them_all(half: Half, narrator: Narrator, kind: Kind) -> None:
    stream = kind.open(half.get_sandbox("user-123", url=narrator.url))
    readers, have_begun = begin(READERS, lambda: collect(half, stream))
    await have_begun()
    narrator.tell(kind.opening)
    await asyncio.sleep(0.05)
    await half.close(stream)
    items = [item for got in await asyncio.gather(*readers) for item in got]
    assert [item for item in items if getattr(item, "type", "") != "start"] == []
    assert await asyncio.to_thread(narrator.was_left.wait, 60)
    assert narrator.accepted == 1


async def test_who_waits_for_a_turn_may_leave_without_ending_it_for_the_others(narrator: Narrator) -> None:
    kind = KINDS["a command"]
    stream = kind.open(AsyncHalf.get_sandbox("user-123", url=narrator.url))
    first = asyncio.create_task(collect(AsyncHalf(), stream))
    assert await asyncio.to_thread(narrator.was_asked.wait, 60)
    second = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    narrator.tell(kind.opening, kind.item(1), kind.end)
    assert [event.type for event in await first] == ["start", "stdout", "complete"]
    AsyncHalf.server.shared_server.cache_clear()


RECORD = b"%d:%06d;" + b"x" * 4_000 + b"\n"
LARGE_RECORD = b"%d:%06d;" + b"x" * 400_000 + b"\n"


@pytest.mark.parametrize(("record", "count"), [(RECORD, 300), (LARGE_RECORD, 5)], ids=["gathered", "sent at once"])
async def test_what_several_write_to_one_file_is_whole(
    half: Half, stub: ContractServer, record: bytes, count: int
) -> None:
    stub.on_call = agent = FileAgent()
    file = sandbox_of(half, stub).open_file("a", "wb")

    async def write(writer: int) -> None:
        for number in range(count):
            await half.run(file.write, record % (writer, number))
            if number % 50 == 49:
                await half.run(file.flush)

    await asyncio.wait_for(asyncio.gather(*map(write, range(READERS))), 60)
    assert file.tell() == READERS * count * len(record % (0, 0))
    await asyncio.gather(half.close(file), half.close(file))
    lines = agent.content.splitlines(keepends=True)
    assert sorted(lines) == [record % (writer, number) for writer in range(READERS) for number in range(count)]
    for writer in range(READERS):  # and each writer's are in the order in which it wrote them
        mine = [line for line in lines if line.startswith(b"%d:" % writer)]
        assert mine == sorted(mine)
    assert len(agent.calls) == 1


async def test_what_several_read_from_one_file_is_shared_out(half: Half, stub: ContractServer) -> None:
    blocks = [b"%07d\n" % number for number in range(100_000)]
    stub.on_call = agent = FileAgent(b"".join(blocks))
    file = sandbox_of(half, stub).open_file("a")

    async def read(reader: int) -> list[bytes]:
        got = []
        while data := await (half.run(file.readline) if reader == 0 else half.run(file.read, 8_000)):
            got += data.splitlines(keepends=True)
        return got

    found = await asyncio.wait_for(asyncio.gather(*map(read, range(READERS))), 60)
    assert sorted(line for lines in found for line in lines) == blocks
    assert len(agent.calls) == 1
    assert file.tell() == 800_000
    await half.close(file)


async def test_a_file_is_aborted_while_others_write_to_it(half: Half) -> None:
    has_some = threading.Event()

    def take_some(peer: Any) -> None:
        """And no more, so that a large write has to wait."""
        read_request(peer)
        receive(peer)
        has_some.set()
        let_go.wait(60)

    let_go = threading.Event()
    with RawServer(take_some) as server:
        file = half.get_sandbox("user-123", url=server.url).open_file("a", "wb")
        writers, have_begun = begin(2, lambda: half.run(file.write, bytes(64 * 2**20)))
        await have_begun()
        assert await asyncio.to_thread(has_some.wait, 60)
        file.abort()
        outcomes = await asyncio.gather(*writers, return_exceptions=True)
        let_go.set()
        assert [f"{outcome}".splitlines()[0] for outcome in outcomes] == ["'a' is closed [INVALID_REQUEST]"] * 2
        assert server.accepted == 1


def test_an_object_serves_one_loop_after_another(stub: ContractServer) -> None:
    stub.on_call = agent = FileAgent()
    file = sandbox_of(AsyncHalf(), stub).open_file("a", "wb")

    async def write() -> None:
        await asyncio.gather(*(file.write(bytes([number]) * 300_000) for number in range(3)))

    for _ in range(2):
        asyncio.run(write())
    asyncio.run(file.aclose())
    assert len(agent.content) == 2 * 3 * 300_000
    AsyncHalf.server.shared_server.cache_clear()


async def test_a_task_that_is_cancelled_at_any_time_leaves_the_lock_to_the_next() -> None:
    lock, inside, most = Lock(), 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with lock.turn():
            inside += 1
            most = max(most, inside)
            try:
                await asyncio.sleep(0)
            finally:
                inside -= 1

    for steps in range(12):
        tasks = [asyncio.create_task(work()) for _ in range(5)]
        for _ in range(steps):
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[steps % 5].cancel()
        tasks.append(asyncio.create_task(work()))
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert (inside, most) == (0, 1)


def test_a_process_that_is_forked_while_a_thread_has_its_turn_does_not_wait_for_it() -> None:
    lock = ThreadLock()
    is_in, may_leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.turn():
            is_in.set()
            may_leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_in.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        with lock.turn():
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    may_leave.set()
    thread.join()


def test_a_thread_that_would_wait_for_itself_is_told() -> None:
    lock = ThreadLock()
    with lock.turn(), pytest.raises(ValueError, match="in the midst of it"):
        lock.turn()
    with lock.turn():
        pass


async def test_input_that_reads_its_own_stream_is_an_error(half: Half, stub: ContractServer) -> None:
    """Only in a thread can it wait for that; a task's input is no coroutine."""
    if half.name == "async":
        return

    def answers() -> Iterator[str]:
        yield from (event.data for event in stream)

    stream = sandbox_of(half, stub).exec_stream("cat", stdin=answers())
    with pytest.raises(ValueError):
        await collect(half, stream)


def begin(
    count: int, work: Callable[[], Awaitable[Any]]
) -> tuple[list[asyncio.Task[Any]], Callable[[], Awaitable[None]]]:
    """So many tasks, and what returns once all of them have begun."""
    waiting = asyncio.Semaphore(0)

    async def run() -> Any:
        waiting.release()
        return await work()

    async def have_begun() -> None:
        for _ in range(count):
            await waiting.acquire()

    return [asyncio.create_task(run()) for _ in range(count)], have_begun


async def enter(half: Half, stream: Any) -> None:
    """And stay in it, unlike `half.entered`."""
    await (stream.__aenter__() if half.name == "async" else half.run(stream.__enter__))


async def collect(half: Half, stream: Any) -> list[Any]:
    return [item async for item in half.iterate(stream)]
