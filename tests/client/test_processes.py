"""Background processes in the SDK, against an agent that says what it is told: what is sent, what is not believed."""

from __future__ import annotations

import contextlib
import math
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import AnyCall, encode_message
from atoll.protocol.processes import (
    KillProcess,
    LogEntry,
    LogPart,
    OutputStream,
    PortMode,
    ProcessInfo,
    ProcessList,
    ProcessStatus,
    RestartPolicy,
    StartProcess,
    StreamProcessLog,
    WaitForPort,
)
from tests.client.halves import Half
from tests.client.peers import ContractServer, Conversation

INFO = ProcessInfo(
    id="web",
    pid=7,
    command="serve",
    status=ProcessStatus.RUNNING,
    start_time=datetime(2020, 1, 1, tzinfo=UTC),
    session_id="default",
)


def entry(number: int, data: bytes, stream: OutputStream = OutputStream.STDOUT, time: float = 0.0) -> LogEntry:
    return LogEntry(number=number, time=time, stream=stream, data=data)


def sandbox_of(half: Half, stub: ContractServer) -> Any:
    return half.get_sandbox("user-123", url=stub.url)


def event(conversation: Conversation, message: object) -> None:
    conversation.send(FrameKind.EVENT, encode_message(message))


async def test_what_is_asked_is_sent_as_it_was_meant(half: Half, stub: ContractServer) -> None:
    calls: list[AnyCall] = []

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        conversation.answer(INFO)

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    options = {"process_id": "web", "cwd": "/srv", "env": {"A": "1"}, "timeout": "1m", "restart": "always"}
    process = await half.run(sandbox.start_process, ("serve", "-v"), **options)
    await half.run(sandbox.kill_process, "web", "hup")
    await half.run(process.wait_for_port, 80, mode="tcp", status=204, timeout=2)
    assert calls == [
        StartProcess(
            command=["serve", "-v"],
            process_id="web",
            session_id="default",
            cwd="/srv",
            env={"A": "1"},
            timeout=60.0,
            restart=RestartPolicy.ALWAYS,
        ),
        KillProcess(process_id="web", signal=1),
        WaitForPort(process_id="web", port=80, mode=PortMode.TCP, min_status=204, max_status=204, timeout=2.0),
    ]
    assert process.command == ["serve", "-v"]
    assert repr(process).startswith(("<Process 'web' running", "<AsyncProcess 'web' running"))


async def test_a_log_in_pieces_becomes_events_with_whole_characters(half: Half, stub: ContractServer) -> None:
    calls: list[AnyCall] = []

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        event(conversation, LogPart(number=12, dropped=10, entries=[entry(11, b"\xc3"), entry(12, b"\xa9")]))
        event(conversation, LogPart(number=13, entries=[entry(13, b"\xff", OutputStream.STDERR)], ended=INFO))
        event(conversation, LogPart(number=20, dropped=7))
        conversation.answer(INFO)

    stub.on_call = agent
    stream = sandbox_of(half, stub).stream_process_logs("web", since=0)
    events = [event async for event in half.iterate(stream)]
    shown = [(event.type, event.number, event.data, event.dropped) for event in events]
    assert shown == [
        ("dropped", 10, "", 10),
        ("stdout", 11, "", 0),
        ("stdout", 12, "é", 0),
        ("stderr", 13, "\ufffd", 0),
        ("exit", 13, "", 0),
        ("dropped", 20, "", 7),
    ]
    logs = await half.run(sandbox_of(half, stub).get_process_logs, "web")
    assert (logs.stdout, logs.stderr_bytes, logs.number, logs.dropped) == ("é", b"\xff", 20, 17)
    assert calls == [
        StreamProcessLog(process_id="web"),
        StreamProcessLog(process_id="web", follow=False),
    ]


async def test_a_stream_that_is_closed_hangs_up_and_kills_nothing(half: Half, stub: ContractServer) -> None:
    calls: list[AnyCall] = []

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        event(conversation, LogPart(number=1, entries=[entry(1, b"x")]))
        conversation.wait_for_hang_up()

    stub.on_call = agent
    stream = sandbox_of(half, stub).stream_process_logs("web")
    async for _ in half.iterate(stream):
        await half.close(stream)
    assert calls == [StreamProcessLog(process_id="web")]


NONSENSE: dict[str, Callable[[Conversation], None]] = {
    "output of a command": lambda conversation: conversation.stdout(b"x"),
    "an event that is none": lambda conversation: conversation.send(FrameKind.EVENT, b"\xc1"),
    "a result that is none": lambda conversation: conversation.send(FrameKind.DONE, b"\xc1"),
    "a result of another kind": lambda conversation: conversation.answer(ProcessList(processes=[])),
    "a stream that there is not": lambda conversation: event(
        conversation, {"number": 1, "entries": [[1, 0.0, "stdlog", b"x"]]}
    ),
}


@pytest.mark.parametrize("agent", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_from_an_agent_is_called_so(
    half: Half, stub: ContractServer, agent: Callable[[Conversation], None]
) -> None:
    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    for call in (sandbox.get_process, sandbox.kill_process):
        with pytest.raises(AtollError) as caught:
            await half.run(call, "web")
        assert caught.value.code is ErrorCode.AGENT_MISBEHAVED
    with pytest.raises(AtollError, match="AGENT_MISBEHAVED"):
        async for _ in half.iterate(sandbox.stream_process_logs("web")):
            pass


@pytest.mark.parametrize("time", [math.nan, math.inf, 1e300, -1e300])
async def test_a_time_that_cannot_be_is_not_believed(half: Half, stub: ContractServer, time: float) -> None:
    stub.on_call = lambda conversation: event(conversation, LogPart(number=1, entries=[entry(1, b"x", time=time)]))
    with pytest.raises(AtollError, match="AGENT_MISBEHAVED"):
        async for _ in half.iterate(sandbox_of(half, stub).stream_process_logs("web")):
            pass


async def test_entries_without_a_byte_are_not_kept(half: Half, stub: ContractServer) -> None:
    nothing = encode_message(LogPart(number=1, entries=[entry(1, b"x"), entry(1, b"")]))

    def agent(conversation: Conversation) -> None:
        with contextlib.suppress(OSError):
            while True:
                conversation.send(FrameKind.EVENT, nothing)

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    with pytest.raises(AtollError, match="makes no sense"):
        await half.run(sandbox.get_process_logs, "web")
    with pytest.raises(AtollError, match="makes no sense"):
        async for _ in half.iterate(sandbox.stream_process_logs("web")):
            pass


async def test_a_log_of_many_small_entries_takes_no_more_memory_than_another(half: Half, stub: ContractServer) -> None:
    parts, count = 100, 5_000  # fewer in each than may be
    part = encode_message(LogPart(number=2 * count, entries=[entry(2 * n, b"ab") for n in range(1, count + 1)]))

    def agent(conversation: Conversation) -> None:
        for _ in range(parts):
            conversation.send(FrameKind.EVENT, part)
        conversation.answer(INFO)

    stub.on_call = agent
    tracemalloc.start()
    try:
        logs = await half.run(sandbox_of(half, stub).get_process_logs, "web")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert logs.stdout_bytes == b"ab" * parts * count
    assert peak < 12_000_000, peak  # half a million objects in a list are five times as much
