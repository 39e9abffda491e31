"""Streams whose reader is cancelled while it waits: what comes next is not lost, and never taken for the end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.client.plumbing import transport as async_transport
from atoll.protocol.errors import ErrorCode, InvalidValueError
from tests.client.halves import AsyncHalf, BlockingHalf
from tests.client.narrators import END, KINDS, Kind, Narrator, attach

GOING_ON = {name: kind for name, kind in KINDS.items() if name != "a command"}
going_on = pytest.mark.parametrize("kind", GOING_ON.values(), ids=GOING_ON.keys())


@pytest.fixture
def narrator(tmp_path: Path) -> Iterator[Narrator]:
    with Narrator(tmp_path / "narrator.sock") as server:
        yield server
    AsyncHalf.server.shared_server.cache_clear()
    BlockingHalf.server.shared_server.cache_clear()


@pytest.fixture
async def sandbox(narrator: Narrator) -> AsyncIterator[Any]:
    sandbox = AsyncHalf.get_sandbox("user-123", url=narrator.url)
    yield sandbox
    await sandbox.aclose()


@going_on
async def test_a_cancelled_wait_loses_nothing(narrator: Narrator, sandbox: Any, kind: Kind) -> None:
    stream = kind.open(sandbox)
    first = asyncio.create_task(anext(stream))
    await tell(narrator, kind.opening + kind.item(1))
    assert kind.number(await first) == 1
    for number in range(2, 5):
        await cancel_a_wait(stream)
        item = kind.item(number)
        await tell(narrator, item[:5])  # some of it is there already when the next one is cancelled
        await cancel_a_wait(stream)
        await tell(narrator, item[5:])
        assert kind.number(await anext(stream)) == number
    await tell(narrator, kind.end)
    assert await anext(stream, None) is None
    assert len(narrator.requests) == 1
    await stream.aclose()


@going_on
async def test_a_stream_whose_opening_was_cancelled_is_opened_again(
    narrator: Narrator, sandbox: Any, kind: Kind
) -> None:
    stream = kind.open(sandbox)
    opening = asyncio.create_task(anext(stream))
    assert await asyncio.to_thread(narrator.was_asked.wait, 60)
    await cancel(opening)
    assert await asyncio.to_thread(narrator.was_left.wait, 60)
    narrator.was_asked.clear()
    reading = asyncio.create_task(anext(stream))
    await tell(narrator, kind.opening + kind.item(1))
    assert kind.number(await reading) == 1
    assert len(narrator.requests) == 2
    await stream.aclose()


@pytest.mark.parametrize("name", ["a log", "a file", "a terminal"])
async def test_the_end_that_came_while_a_reader_was_cancelled_is_still_there(
    narrator: Narrator, sandbox: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_transport, "END_SECONDS", 60.0)
    kind = KINDS[name]
    stream = kind.open(sandbox)
    reading = asyncio.create_task(anext(stream, None))
    await tell(narrator, kind.opening, kind.end.removesuffix(END))  # the result is here, the end of the answer is not
    while not (stream._frames and stream._frames._frames):
        await asyncio.sleep(0.01)
    await cancel(reading)
    assert await anext(stream, None) is None
    if name == "a terminal":
        assert stream.exit_code == 3
    if name == "a log":
        assert stream.process.id == "web"


@pytest.mark.parametrize("has_begun", [False, True], ids=["while it is asked for", "while it runs"])
async def test_a_command_whose_reader_is_cancelled_ends_and_the_next_to_ask_is_told(
    narrator: Narrator, sandbox: Any, has_begun: bool
) -> None:
    kind = KINDS["a command"]
    stream = kind.open(sandbox)
    assert (await anext(stream)).type == "start"
    reading = asyncio.create_task(anext(stream))
    if has_begun:
        await tell(narrator, kind.opening + kind.item(1))
        assert (await reading).data == "1"
        reading = asyncio.create_task(anext(stream))
    assert await asyncio.to_thread(narrator.was_asked.wait, 60)
    await cancel(reading)
    assert await asyncio.to_thread(narrator.was_left.wait, 60)
    for _ in range(2):
        with pytest.raises(InvalidValueError, match="that ended the command") as caught:
            await anext(stream)
        assert caught.value.remedy
    await stream.aclose()
    assert len(narrator.requests) == 1


async def test_input_of_a_view_is_not_sent_again_after_its_opening_was_cancelled(
    narrator: Narrator, sandbox: Any
) -> None:
    view = attach(sandbox, stdin="rm -r x\n")
    opening = asyncio.create_task(view.read())
    assert await asyncio.to_thread(narrator.was_asked.wait, 60)
    await cancel(opening)
    for work in (view.read, view.__aenter__, view.read):
        with pytest.raises(InvalidValueError, match="was interrupted"):
            await work()
    assert len(narrator.requests) == 1
    await view.aclose()


async def test_a_watch_that_is_entered_goes_on_after_a_cancelled_wait(narrator: Narrator, sandbox: Any) -> None:
    kind = KINDS["a watch"]
    watch = kind.open(sandbox)
    entering = asyncio.create_task(watch.wait_until_ready())
    await tell(narrator, kind.opening)
    while not watch._frames:
        await asyncio.sleep(0.01)
    await cancel(entering)
    entering = asyncio.create_task(watch.wait_until_ready())
    await tell(narrator, kind.item(1))
    await entering
    assert kind.number(await anext(watch)) == 1
    await watch.aclose()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_ctrl_c_in_a_thread_is_not_taken_for_the_end(narrator: Narrator, kind: Kind) -> None:
    stream = kind.open(BlockingHalf.get_sandbox("user-123", url=narrator.url))

    def interrupt() -> None:
        narrator.tell(kind.opening)
        signal.pthread_kill(main.ident or 0, signal.SIGUSR1)

    main = threading.main_thread()
    assert threading.current_thread() is main
    with handler(signal.SIGUSR1):
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            for _ in stream:
                pass
        thread.join()
    assert narrator.was_left.wait(60)
    for _ in range(2):
        with pytest.raises(InvalidValueError) as caught:
            next(stream)
        assert (caught.value.code, bool(caught.value.remedy)) == (ErrorCode.INVALID_REQUEST, True)
    stream.close()
    assert len(narrator.requests) == 1


class handler:
    """Ctrl-C by another signal, which the test runner does not want for itself."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._before: Callable[..., Any] | int | None = signal.signal(self._number, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        signal.signal(self._number, self._before)


async def tell(narrator: Narrator, *data: bytes) -> None:
    await asyncio.to_thread(narrator.tell, *data)


async def cancel_a_wait(stream: Any) -> None:
    """Of one that has read all there is."""
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.01)
    await cancel(waiting)


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
