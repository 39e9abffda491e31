"""The agent's socket against peers that misbehave, and the host's side against an agent that does."""

from __future__ import annotations

import asyncio
import os
import re
import select
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from atoll import agent
from atoll.protocol.agents import Ping
from atoll.protocol.commands import Exec, ExecDone, ExecShell
from atoll.protocol.errors import (
    AgentLostError,
    AgentMisbehavedError,
    AgentTimeoutError,
    AtollError,
    ErrorBody,
    ErrorCode,
    Speaker,
    error,
)
from atoll.protocol.frames import MAX_PAYLOAD, FrameKind, encode_frame, encode_lost
from atoll.protocol.messages import encode_message
from atoll.protocol.sessions import ListSessions
from atoll.supervisor import agent_connection, agent_link
from atoll.supervisor.agent_link import AgentLink
from tests.conftest import Box
from tests.native import agent_socket, linked_at, native

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connect(box: Box) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    directory = os.open(agent_socket(box.live).parent, os.O_PATH)
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    try:
        while True:
            try:
                peer.connect(f"/proc/self/fd/{directory}/{agent_socket(box.live).name}")
                break
            except BlockingIOError:  # so many wait already; asyncio would wait for a sign that never comes
                await asyncio.sleep(0.001)
    finally:
        os.close(directory)
    return await asyncio.open_unix_connection(sock=peer)


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">IB", 2**32 - 1, FrameKind.CALL),
        struct.pack(">IB", MAX_PAYLOAD + 1, FrameKind.CALL),
        struct.pack(">IB", 0, 99),
        encode_frame(FrameKind.STDOUT, b"x"),
        encode_frame(FrameKind.DONE, b"x"),
    ],
)
async def test_the_agent_hangs_up_on_noise_and_serves_the_next(box: Box, noise: bytes) -> None:
    reader, writer = await connect(box)
    writer.write(noise)
    answer = await reader.read()  # ends: the agent closed
    assert answer[4] == FrameKind.FAILED
    writer.close()
    assert await box.text("echo next") == "next"


@pytest.mark.parametrize(
    "message", [b"", b"\xc1", b"\x80", encode_message({"type": "explode"}), encode_message([1, 2])]
)
async def test_a_call_that_makes_no_sense_is_an_error_and_keeps_the_connection(box: Box, message: bytes) -> None:
    reader, writer = await connect(box)
    for payload, kind in ((message, FrameKind.FAILED), (encode_message(Ping()), FrameKind.DONE)):
        writer.write(encode_frame(FrameKind.CALL, payload))
        length, received = struct.unpack(">IB", await reader.readexactly(5))
        await reader.readexactly(length)
        assert received == kind
    writer.close()


async def test_half_a_frame_and_silence_hold_nobody_up(box: Box) -> None:
    connections = [await connect(box) for _ in range(20)]
    for _, writer in connections:
        writer.write(encode_frame(FrameKind.CALL, encode_message(Ping()))[:7])
    assert await box.text("echo served") == "served"
    for _, writer in connections:
        writer.close()


async def test_a_second_call_on_a_busy_connection_ends_it_and_its_command(box: Box) -> None:
    reader, writer = await connect(box)
    call = encode_frame(FrameKind.CALL, encode_message(Exec(argv=["sleep", "4321"])))
    writer.write(call + call)
    assert (await reader.read())[4] == FrameKind.FAILED
    writer.close()
    while (await box.link.ping()).commands_running:
        await asyncio.sleep(0.01)


async def test_a_thousand_short_connections_leave_nothing_behind(box: Box) -> None:
    for _ in range(1000):
        _, writer = await connect(box)
        writer.close()
    assert await box.text("echo still here") == "still here"


async def test_too_many_connections_are_turned_away_politely(box: Box) -> None:
    connections = [await connect(box) for _ in range(600)]
    reader, _ = connections[-1]
    assert (await reader.read())[4] == FrameKind.FAILED
    for _, writer in connections:
        writer.close()
    while True:
        try:
            assert await box.text("echo free again") == "free again"
            break
        except AtollError as error:
            assert error.code == ErrorCode.AGENT_BUSY


async def test_a_sandbox_that_was_stopped_is_an_error_not_a_hang(box: Box) -> None:
    os.kill(native(box.live).process.pid, 9)
    with pytest.raises(ConnectionError) as caught:
        while True:
            await box.text("echo")
    assert isinstance(caught.value, AtollError)
    assert caught.value.remedy


# The other way round: a socket that pretends to be an agent.


@asynccontextmanager
async def false_agent(tmp_path: Path, script: Script, connections: int = 1) -> AsyncIterator[AgentLink]:
    path = tmp_path / "agent.sock"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.readexactly(5)
            await script(reader, writer)
            await reader.read()  # until the host hangs up
        writer.close()
        served.release()

    served = asyncio.Semaphore(0)
    async with await asyncio.start_unix_server(serve, path), linked_at(path) as link:
        yield link
        link.close()
        for _ in range(connections):
            await served.acquire()


OUTPUT = encode_frame(FrameKind.STDOUT, b"x")
NAN, INFINITY, MINUS_ONE = (b"\xcb" + struct.pack(">d", float(text)) for text in ("nan", "inf", "-1"))
DONE = encode_frame(FrameKind.DONE, encode_message(ExecDone(exit_code=0, duration=1.0)))


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">IB", 2**31, FrameKind.STDOUT),
        struct.pack(">IB", 0, 77),
        encode_frame(FrameKind.CALL, b""),
        encode_frame(FrameKind.DONE, b"\xc1"),
        encode_frame(FrameKind.DONE, encode_message({"exit_code": "zero"})),
        *(encode_frame(FrameKind.DONE, encode_message(ExecDone(exit_code=code, duration=1.0))) for code in (-1, 256)),
        encode_frame(FrameKind.DONE, encode_message(ExecDone(exit_code=2**63, duration=1.0))),
        *(
            encode_frame(FrameKind.DONE, encode_message({"exit_code": 0, "duration": None}).replace(b"\xc0", number))
            for number in (NAN, INFINITY, MINUS_ONE)
        ),
        encode_frame(FrameKind.FAILED, encode_message(ErrorBody(code="NO_SPACE", message="x" * 70_000))),
        encode_frame(FrameKind.FAILED, encode_message(7)),
        encode_frame(FrameKind.FAILED, b"\x82\xa4code\xa1\xff\xa7message\xa1x"),
        encode_frame(FrameKind.STDOUT, b"x" * 101) + DONE,
        encode_frame(FrameKind.STDERR, b"x" * 60) * 2 + DONE,
        encode_frame(FrameKind.WAITING),
        encode_frame(FrameKind.STARTED) + DONE,
        encode_frame(FrameKind.STDOUT) + DONE,
        encode_frame(FrameKind.LOST, b"1") + DONE,
        encode_frame(FrameKind.LOST, encode_lost(2, b"")) + DONE,
        encode_frame(FrameKind.LOST, encode_lost(1, b"\xc1")),
    ],
)
async def test_a_lying_agent_is_found_out(tmp_path: Path, answer: bytes) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    async with false_agent(tmp_path, lie) as link:
        with pytest.raises(AgentMisbehavedError):
            await link.run(Exec(argv=["true"], max_output=100))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_API_KEY,
        ErrorCode.SERVER_NOT_REACHABLE,
        ErrorCode.NOT_ROOT,
        ErrorCode.SANDBOX_NOT_FOUND,
        ErrorCode.SANDBOX_NOT_RUNNING,
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
    ],
)
async def test_an_agent_says_nothing_in_the_name_of_others(tmp_path: Path, code: ErrorCode) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_frame(FrameKind.FAILED, encode_message(ErrorBody(code=code, message="believe me"))))

    async with false_agent(tmp_path, lie) as link:
        with pytest.raises(AgentMisbehavedError) as caught:
            await link.run(Exec(argv=["true"]))
        assert code in caught.value.message and caught.value.remedy


def test_an_agent_may_say_everything_that_it_has_to_say() -> None:
    source = Path(agent.__path__[0]).parent
    texts = [path.read_text() for folder in ("agent", "archives") for path in (source / folder).rglob("*.py")]
    said = {ErrorCode[name] for text in texts for name in re.findall(r"ErrorCode\.([A-Z_]+)", text)}
    assert len(said) > 20
    assert all(code.speaker is Speaker.AGENT for code in said)


async def test_output_in_tiny_pieces_takes_no_more_memory_than_its_bytes(tmp_path: Path) -> None:
    pieces = encode_frame(FrameKind.STDOUT, b"ab") * 300_000 + DONE

    async def crumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(pieces), 65_536):
            writer.write(pieces[start : start + 65_536])
            await writer.drain()

    async with false_agent(tmp_path, crumble) as link:
        tracemalloc.start()
        try:
            output = await link.run(Exec(argv=["true"]))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert output.stdout == b"ab" * 300_000
    assert peak < 12 * 2**20  # most of it is one read of frames, whatever follows


async def test_an_agent_that_hangs_up_is_lost(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_frame(FrameKind.STDOUT, b"some")[:6])
        writer.close()

    async with false_agent(tmp_path, hang_up) as link:
        with pytest.raises(AgentLostError):
            await link.run(Exec(argv=["true"]))


async def test_a_call_that_the_agent_did_not_read_to_its_end_is_known_to_have_done_nothing(tmp_path: Path) -> None:
    call = Exec(argv=["true", "x" * 100_000], max_output=0)
    for is_taken, read_bytes in ((False, 0), (True, 0), (True, 5), (True, 100_000)):
        assert await failure_of(tmp_path, call, is_taken, read_bytes) is ErrorCode.SANDBOX_NOT_RUNNING
    assert await failure_of(tmp_path, call, True, len(encode_message(call)) + 5) is ErrorCode.AGENT_LOST


async def test_a_call_with_input_may_have_done_something_although_not_all_was_read(tmp_path: Path) -> None:
    call = Exec(argv=["cat"], max_output=0)
    assert await failure_of(tmp_path, call, True, 5, stdin=b"x" * 1000) is ErrorCode.AGENT_LOST


async def failure_of(
    directory: Path, call: Exec, is_taken: bool, read_bytes: int, stdin: bytes | None = None
) -> ErrorCode:
    """How a call fails whose agent takes the connection, or does not, reads so much and is gone."""
    path = directory / "agent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen()
        async with linked_at(path) as link:
            running = asyncio.create_task(link.run(call, stdin))
            await asyncio.to_thread(select.select, [listener], [], [])
            if is_taken:
                peer, _ = listener.accept()
                with peer:
                    while read_bytes:
                        read_bytes -= len(await asyncio.to_thread(peer.recv, read_bytes))
                    await asyncio.to_thread(select.select, [peer], [], [], 0 if stdin is None else None)
            listener.close()
            with pytest.raises(AgentLostError) as caught:
                await running
            return caught.value.code


async def test_an_agent_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "ANSWER_GRACE", 0.1)  # a constant of ours; waiting 30 seconds would prove no more

    async def brood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with false_agent(tmp_path, brood) as link:
        with pytest.raises(TimeoutError) as caught:
            await link.run(Exec(argv=["true"], timeout=0.1))
        assert isinstance(caught.value, AtollError)


@pytest.mark.parametrize("turns", [b"", b"ws"])
async def test_an_agent_gets_no_more_time_than_a_turn_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: bytes
) -> None:
    monkeypatch.setattr(agent_link, "ANSWER_GRACE", 0.1)  # a constant of ours; waiting 30 seconds would prove no more
    kinds = {ord("w"): FrameKind.WAITING, ord("s"): FrameKind.STARTED}

    async def take_turns(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(encode_frame(kinds[turn]) for turn in turns))
        await reader.read()

    async with false_agent(tmp_path, take_turns) as link:
        with pytest.raises(TimeoutError):
            await link.run(ExecShell(command="true", timeout=0.1))
        with pytest.raises(TimeoutError):
            async with link.operation(ExecShell(command="true")) as connection:
                async for _ in connection.frames(patience=0.1):
                    pass


@pytest.mark.parametrize("said", ["s", "ww", "wss", "wsw", "wo", "ow", "os"])
async def test_a_command_waits_once_and_before_it_says_anything(tmp_path: Path, said: str) -> None:
    frames = {"w": encode_frame(FrameKind.WAITING), "s": encode_frame(FrameKind.STARTED), "o": OUTPUT}

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(frames[word] for word in said) + DONE)

    async with false_agent(tmp_path, lie) as link:
        with pytest.raises(AgentMisbehavedError):
            await link.run(ExecShell(command="true"))


async def test_a_command_waits_for_nobody_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_connection, "QUEUE_GRACE", 0.1)  # a constant of ours; 30 seconds would prove no more
    is_over = asyncio.Event()
    answers = iter([OUTPUT, encode_frame(FrameKind.WAITING)])

    async def keep_waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said := next(answers))
        if said == OUTPUT:
            await is_over.wait()
            writer.write(DONE)

    async with false_agent(tmp_path, keep_waiting, connections=2) as link:
        async with link.operation(ExecShell(command="first")) as elder:
            await elder.wait_for_frame()
            second = asyncio.create_task(link.run(ExecShell(command="second", timeout=0.1)))
            while not link.has_elder(list(link._busy)[-1]):
                await asyncio.sleep(0.01)
            assert not (await asyncio.wait({second}, timeout=0.5))[0]  # while the one before it is under way
            is_over.set()
            async for _ in elder.frames():
                pass
        with pytest.raises(AgentTimeoutError, match="wait for its turn"):
            await second


async def test_a_byte_now_and_then_gives_an_agent_no_more_time(tmp_path: Path) -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(OUTPUT)
            await writer.drain()
            await asyncio.sleep(0.02)

    async with false_agent(tmp_path, trickle) as link:
        with pytest.raises(TimeoutError):
            async with link.operation(ExecShell(command="true")) as connection:
                async for _ in connection.frames(patience=0.3):
                    pass


async def test_what_an_agent_says_in_tiny_pieces_leaves_others_their_turns(tmp_path: Path) -> None:
    async def crumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OUTPUT * 100_000 + DONE)
        await writer.drain()

    async with false_agent(tmp_path, crumble) as link:
        running = asyncio.create_task(link.run(Exec(argv=["true"])))
        rounds = 0
        while not running.done():
            await asyncio.sleep(0)
            rounds += 1
        assert len(running.result().stdout) == 100_000
    assert rounds > 300  # it takes 150 ms


@pytest.mark.parametrize(
    "answer",
    [
        encode_frame(FrameKind.STDOUT, b"x"),
        encode_frame(FrameKind.WAITING),
        encode_frame(FrameKind.DONE, encode_message({"sessions": [{"id": 7}]})),
        encode_frame(FrameKind.DONE, encode_message({"sessions": "many"})),
    ],
)
async def test_a_lie_about_sessions_is_found_out(tmp_path: Path, answer: bytes) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with false_agent(tmp_path, lie) as link:
        with pytest.raises(AgentMisbehavedError):
            await link.ask(ListSessions())


LOST = encode_message(error(ErrorCode.AGENT_LOST, "killed", remedy="Try again.").to_body())


def lost(number: int) -> bytes:
    return encode_frame(FrameKind.LOST, encode_lost(number, LOST))


async def test_a_lost_answer_is_the_failure_of_its_own_call_and_of_no_other(tmp_path: Path) -> None:
    answers = iter([DONE, lost(1) + DONE + lost(2), DONE, lost(3) + lost(4)])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for said in answers:
            await reader.read(2**16)
            writer.write(said)

    async with false_agent(tmp_path, answer) as link:
        for _ in range(3):
            await link.run(Exec(argv=["true"]))
        with pytest.raises(AgentLostError, match="killed"):
            await link.run(Exec(argv=["true"]))


async def test_what_an_agent_says_unasked_is_not_taken_for_the_next_answer(tmp_path: Path) -> None:
    async def say_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(DONE + encode_frame(FrameKind.STDOUT, b"forged") + DONE)

    async with false_agent(tmp_path, say_more) as link:
        for _ in range(3):
            output = await link.run(Exec(argv=["true"]))
            assert output.stdout == b""


async def test_a_connection_that_nobody_uses_is_let_go_and_the_next_call_makes_another(host_box: Box) -> None:
    await host_box.text("true")
    link = host_box.link
    assert len(link._idle) == 1
    link.let_idle_go(60)
    assert len(link._idle) == 1, "it was used just now"
    link.let_idle_go(0)
    assert not link._idle
    assert await host_box.text("echo again") == "again"
