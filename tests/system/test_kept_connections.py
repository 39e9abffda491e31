"""Connections that an agent's worker keeps for the next call about files, with which PID 1 then has nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll.agent.files.workers import MAX_WORKERS
from atoll.protocol import files
from atoll.protocol.agents import Ping
from atoll.protocol.calls import Call, failure, result
from atoll.protocol.commands import Exec
from atoll.protocol.errors import ErrorCode
from atoll.protocol.frames import Frame, FrameDecoder, FrameKind, decode_lost, encode_frame
from atoll.protocol.messages import encode_message
from atoll.protocol.sessions import CreateSession, DeleteSession
from tests.conftest import Box
from tests.native import native
from tests.system.file_calls import FileCalls
from tests.system.test_agent_files import WORKERS
from tests.system.test_agent_protocol import connect

LOOK = files.StatFile(path=b"/tmp")


@pytest.fixture
def calls(box: Box) -> FileCalls:
    return FileCalls(box.link)


class Wire:
    """One connection, whatever is called on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    def send(self, call: Call[Any], *content: bytes) -> None:
        frames = [encode_frame(FrameKind.INPUT, piece) for piece in content]
        self._writer.write(encode_frame(FrameKind.CALL, encode_message(call)) + b"".join(frames))

    async def next(self) -> Frame:
        while not self._frames:
            data = await self._reader.read(2**16)
            assert data, "the agent has hung up"
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def ask(self, call: Call[Any], *content: bytes) -> Frame:
        """The last frame of its answer."""
        self.send(call, *content)
        while (frame := await self.next()).kind not in (FrameKind.DONE, FrameKind.FAILED):
            pass
        return frame

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def wire_to(box: Box) -> AsyncIterator[Wire]:
    wire = Wire(*await connect(box))
    try:
        yield wire
    finally:
        wire.close()


async def workers(box: Box) -> set[str]:
    return set((await box.text(WORKERS)).split())


def wakes(box: Box) -> int:
    """How often PID 1 has waited for something, and it came."""
    status = Path("/proc", str(native(box.live).process.pid), "status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))
    return int(line.split()[1])


async def test_further_calls_about_files_do_not_wake_pid_1(calls: FileCalls, box: Box) -> None:
    await calls.write(b"/tmp/file", b"content")
    before = wakes(box)
    for _ in range(200):
        await calls.write(b"/tmp/file", b"content")
        assert await calls.read(b"/tmp/file") == b"content"
    assert wakes(box) - before < 100  # once a second, for the figures in /proc


async def test_calls_of_all_kinds_on_one_connection_are_answered_in_order(box: Box) -> None:
    async with wire_to(box) as wire:
        for number in range(20):
            write = files.WriteFile(path=b"/tmp/file")
            assert result(write, await wire.ask(write, b"x" * number, b"")).size == number
            assert (await wire.ask(Ping())).kind is FrameKind.DONE
            assert (await wire.ask(Exec(argv=["sh", "-c", "printf x >>/tmp/file"]))).kind is FrameKind.DONE
            look = files.StatFile(path=b"/tmp/file")
            assert result(look, await wire.ask(look)).size == number + 1
            assert (await wire.ask(files.StatFile(path=b"/none"))).kind is FrameKind.FAILED


async def test_what_no_agent_understands_is_answered_after_calls_about_files(box: Box) -> None:
    async with wire_to(box) as wire:
        await wire.ask(LOOK)
        wire._writer.write(encode_frame(FrameKind.CALL, b"\x81\xa4type\xa4none"))
        assert failure(await wire.next()).code is ErrorCode.INVALID_REQUEST
        await wire.ask(LOOK)
        wire._writer.write(b"\0\0\0\0\xff")
        assert failure(await wire.next()).code is ErrorCode.INVALID_REQUEST


async def test_a_call_in_pieces_is_answered_after_calls_about_files(box: Box) -> None:
    message = encode_frame(FrameKind.CALL, encode_message(LOOK))
    async with wire_to(box) as wire:
        for cut in (1, 5, 6, len(message) - 1):
            await wire.ask(LOOK)
            wire._writer.write(message[:cut])
            await box.link.ping()
            wire._writer.write(message[cut:])
            assert (await wire.next()).kind is FrameKind.DONE


async def test_relative_paths_count_from_where_the_session_is_by_then(calls: FileCalls, box: Box) -> None:
    await box.text("for d in a b c; do mkdir /tmp/$d; done")
    await box.link.ask(CreateSession(session_id="s", cwd="/tmp/a"))

    async def where() -> str:
        return (await calls.stat(b".", session_id="s")).path

    assert await where() == "/tmp/a"
    await box.shell("cd /tmp/b", session="s")
    assert await where() == "/tmp/b"
    await box.shell("cd /tmp/c", session="s")
    assert await where() == "/tmp/c"
    await box.shell("cd /tmp/a; exit", session="s")
    assert await where() == "/tmp/a"
    await box.link.ask(DeleteSession(session_id="s"))
    with pytest.raises(LookupError):
        await where()
    await box.link.ask(CreateSession(session_id="s", cwd="/tmp/b"))
    assert await where() == "/tmp/b"


async def test_each_session_has_its_own_directory_on_the_same_connection(calls: FileCalls, box: Box) -> None:
    await box.link.ask(CreateSession(session_id="s", cwd="/tmp"))
    for _ in range(10):
        assert (await calls.stat(b".")).path == "/workspace"
        assert (await calls.stat(b".", session_id="s")).path == "/tmp"
    await box.shell("cd /")
    assert (await calls.stat(b".")).path == "/"


async def test_a_killed_worker_that_kept_a_connection_is_not_missed(box: Box) -> None:
    async with wire_to(box) as wire:
        for _ in range(20):
            assert (await wire.ask(LOOK)).kind is FrameKind.DONE
            await box.text(f"kill -9 $({WORKERS})")
            assert (await wire.ask(Ping())).kind is FrameKind.DONE


async def test_a_worker_killed_in_a_later_call_fails_that_one(box: Box) -> None:
    async with wire_to(box) as wire:
        await wire.ask(files.StatFile(path=b"/tmp"))
        await wire.ask(files.StatFile(path=b"/etc"))
        wire.send(files.WriteFile(path=b"/tmp/file"), b"some")
        while "S" not in await box.text(f"cut -d' ' -f3 /proc/$({WORKERS})/stat"):
            await asyncio.sleep(0.01)
        problem = box.text(f"kill -9 $({WORKERS})")
        frame, _ = await asyncio.gather(wire.next(), problem)
        cause = failure(frame)
        assert (cause.code, cause.context["path"]) == (ErrorCode.AGENT_LOST, "/tmp/file")


KILL_AT_ONCE = f"while :; do for p in $({WORKERS}); do kill -9 $p; done; done"


async def test_a_later_call_that_may_have_been_answered_is_lost_by_its_own_number(box: Box) -> None:
    """Whatever moment a worker is killed at, the host knows which of its calls it was."""
    async with box.link.operation(Exec(argv=["sh", "-c", KILL_AT_ONCE])), wire_to(box) as wire:
        number = 0
        for _ in range(300):
            for _ in range(3):
                number += 1
                wire.send(LOOK)
                while (frame := await wire.next()).kind is FrameKind.LOST and decode_lost(frame.payload)[0] < number:
                    pass
                if frame.kind is FrameKind.LOST:
                    assert decode_lost(frame.payload)[0] == number
                if frame.kind is FrameKind.FAILED:  # the connection is no longer usable
                    assert failure(frame).code is ErrorCode.AGENT_LOST
                    return


async def test_a_host_that_leaves_leaves_the_worker_for_the_next(box: Box) -> None:
    seen = set()
    for _ in range(20):
        async with wire_to(box) as wire:
            await wire.ask(LOOK)
            await wire.ask(LOOK)
            seen |= await workers(box)
    assert len(seen) <= 3  # who comes before the last has been seen to leave has another


async def test_a_stopped_worker_that_keeps_a_connection_goes_on(box: Box) -> None:
    async with wire_to(box) as wire:
        await wire.ask(LOOK)
        await box.text(f"kill -STOP $({WORKERS})")
        assert (await wire.ask(LOOK)).kind is FrameKind.DONE


async def test_a_stopped_worker_whose_host_has_left_ends(box: Box) -> None:
    async with wire_to(box) as wire:
        await wire.ask(LOOK)
        (worker,) = await workers(box)
        await box.text(f"kill -STOP {worker}")
    while worker in await workers(box):
        await asyncio.sleep(0.01)


async def test_connections_that_are_kept_keep_nobody_out(box: Box) -> None:
    """There are more of them than workers."""
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(wire_to(box)) for _ in range(2 * MAX_WORKERS)]
        for wire in wires:
            assert (await wire.ask(LOOK)).kind is FrameKind.DONE
        for wire in wires:
            wire.send(LOOK)
        for wire in wires:
            assert (await wire.next()).kind is FrameKind.DONE
        assert len(await workers(box)) <= MAX_WORKERS


async def test_a_busy_connection_gives_way_to_whoever_waits(box: Box) -> None:
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(wire_to(box)) for _ in range(MAX_WORKERS)]
        for number, wire in enumerate(wires[:-1]):
            await wire.ask(LOOK)
            wire.send(files.WriteFile(path=b"/tmp/%d" % number), b"begun")
        await wires[-1].ask(LOOK)
        is_answered = asyncio.Event()

        async def go_on() -> None:
            while not is_answered.is_set():
                await wires[-1].ask(LOOK)

        going = asyncio.create_task(go_on())
        async with wire_to(box) as late:
            assert (await late.ask(LOOK)).kind is FrameKind.DONE
        is_answered.set()
        await going


async def test_what_is_used_no_more_ends(box: Box) -> None:
    async with wire_to(box) as wire:
        await wire.ask(LOOK)
        await wire.ask(LOOK)
        while await workers(box):
            await asyncio.sleep(0.1)
        assert (await wire.ask(LOOK)).kind is FrameKind.DONE


async def test_a_worker_that_does_not_answer_holds_up_its_own_connection_alone(box: Box) -> None:
    async with wire_to(box) as stuck, wire_to(box) as free:
        await stuck.ask(LOOK)
        await box.text(f"kill -STOP $({WORKERS})")
        stuck.send(LOOK)
        for _ in range(5):
            assert (await free.ask(LOOK)).kind is FrameKind.DONE
        assert (await stuck.next()).kind is FrameKind.DONE


async def test_figures_in_proc_are_kept_up_to_date_for_who_reads_them_without_pid_1(calls: FileCalls, box: Box) -> None:
    first = await calls.read(b"/proc/uptime")
    while await calls.read(b"/proc/uptime") == first:
        await asyncio.sleep(0.05)


def test_a_call_about_files_is_known_by_how_it_begins() -> None:
    path = b"/tmp"
    for call in (
        LOOK,
        files.ReadFile(path=path, session_id="x"),
        files.WriteFile(path=path),
        files.MoveFile(source=path, target=path),
    ):
        assert files.is_about_files(encode_message(call))
    for other in (files.WatchFiles(path=path), Ping(), Exec(argv=["read_file"])):
        assert not files.is_about_files(encode_message(other))
