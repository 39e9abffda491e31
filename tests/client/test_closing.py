"""Streams that another task or thread closes while they are being opened."""

from __future__ import annotations

import asyncio
import importlib
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from atoll.protocol.terminals import TerminalInfo
from tests.client.halves import AsyncHalf, Half
from tests.client.peers import RawServer, read_request, wait_for_hang_up


class SilentServer(RawServer):
    """Takes a request, and says nothing: the first second of every silent command."""

    def __init__(self, path: Path) -> None:
        self.requests: list[bytes] = []
        self.was_asked, self.was_left = threading.Event(), threading.Event()
        super().__init__(self.listen, path)

    def listen(self, peer: socket.socket) -> None:
        self.requests.append(read_request(peer))
        self.was_asked.set()
        wait_for_hang_up(peer)
        self.was_left.set()


def attach(sandbox: Any) -> Any:
    """The view of a terminal, which need not be made for it."""
    prefix, package = ("Async", "client") if "Async" in type(sandbox).__name__ else ("", "client_sync")
    terminals = importlib.import_module(f"atoll.{package}.terminals")
    info = TerminalInfo(id="t", pid=2, command=["sh"], cols=80, rows=24, viewers=0, created_at=datetime.now(UTC))
    return getattr(terminals, f"{prefix}Terminal")(sandbox._sandbox, info).attach()


STREAMS: dict[str, Callable[[Any], Any]] = {
    "a command": lambda sandbox: sandbox.exec_stream("sleep 3600"),
    "a log": lambda sandbox: sandbox.stream_process_logs("web"),
    "a timeline": lambda sandbox: sandbox.follow_events(),
    "a watch": lambda sandbox: sandbox.watch("."),
    "a file": lambda sandbox: sandbox.read_file_stream("a"),
    "a terminal": attach,
}


@pytest.mark.parametrize("open_stream", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize("options", [{}, {"labels": {"a": "b"}}], ids=["the stream", "the sandbox's options"])
async def test_closing_what_is_being_opened_ends_it_at_once(
    half: Half, tmp_path: Path, open_stream: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    with SilentServer(tmp_path / "server.sock") as server:
        stream = open_stream(half.get_sandbox("user-123", url=server.url, **options))
        reading = asyncio.create_task(collect(half, stream))
        assert await asyncio.to_thread(server.was_asked.wait, 60)
        await half.close(stream)
        items = await reading
        assert [item for item in items if getattr(item, "type", "") != "start"] == []
        assert await asyncio.to_thread(server.was_left.wait, 60)
        assert await collect(half, stream) == []
        assert len(server.requests) == 1  # nor was it asked whether it still lives, for which there was time


@pytest.mark.parametrize("kind", ["a watch", "a terminal"])
async def test_a_stream_that_is_closed_while_it_is_entered_has_nothing(half: Half, tmp_path: Path, kind: str) -> None:
    with SilentServer(tmp_path / "server.sock") as server:
        stream = STREAMS[kind](half.get_sandbox("user-123", url=server.url))
        entering = asyncio.create_task(half.entered(stream).__aenter__())
        assert await asyncio.to_thread(server.was_asked.wait, 60)
        await half.close(stream)
        assert await entering is stream
        assert await collect(half, stream) == []
        assert len(server.requests) == 1


async def test_a_file_that_is_closed_while_it_is_entered_is_an_error(half: Half, tmp_path: Path) -> None:
    with SilentServer(tmp_path / "server.sock") as server:
        stream = half.get_sandbox("user-123", url=server.url).read_file_stream("a")
        entering = asyncio.create_task(half.entered(stream).__aenter__())
        assert await asyncio.to_thread(server.was_asked.wait, 60)
        await half.close(stream)
        with pytest.raises(ValueError, match="was ended before it began"):
            await entering  # there is no `info` to go on with
        assert len(server.requests) == 1


async def test_a_read_of_a_file_that_is_closed_meanwhile_is_not_the_end_of_the_file(half: Half, tmp_path: Path) -> None:
    with SilentServer(tmp_path / "server.sock") as server:
        file = half.get_sandbox("user-123", url=server.url).open_file("a")
        reading = asyncio.create_task(half.run(file.read))
        assert await asyncio.to_thread(server.was_asked.wait, 60)
        await half.close(file)
        with pytest.raises(ValueError, match="is closed"):
            await reading
        assert await asyncio.to_thread(server.was_left.wait, 60)
        assert len(server.requests) == 1


async def test_a_stream_that_is_closed_before_it_is_opened_asks_for_nothing(half: Half, tmp_path: Path) -> None:
    with SilentServer(tmp_path / "server.sock") as server:
        for open_stream in STREAMS.values():
            stream = open_stream(half.get_sandbox("user-123", url=server.url))
            await half.close(stream)
            assert await collect(half, stream) == []
        view = attach(half.get_sandbox("user-123", url=server.url))
        await half.close(view)
        async with half.entered(view):
            pass
        assert server.accepted == 0


async def test_a_task_that_is_cancelled_while_it_opens_a_stream_hangs_up(tmp_path: Path) -> None:
    with SilentServer(tmp_path / "server.sock") as server:
        stream = AsyncHalf.get_sandbox("user-123", url=server.url).read_file_stream("a")
        reading = asyncio.create_task(collect(AsyncHalf(), stream))
        assert await asyncio.to_thread(server.was_asked.wait, 60)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await asyncio.to_thread(server.was_left.wait, 60)
    AsyncHalf.server.shared_server.cache_clear()


async def collect(half: Half, stream: Any) -> list[Any]:
    return [item async for item in half.iterate(stream)]
