"""The SDK against a server that follows the contract: what is sent, what comes back, what is raised."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.protocol.commands import Exec, ExecDone, ExecShell
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import FrameKind, encode_frame
from atoll.protocol.messages import encode_message
from atoll.protocol.sandboxes import SandboxOptions
from atoll.protocol.sessions import ListSessions, Sessions
from atoll.values.commands import ExecEvent, ExecResult
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.client.peers import ContractServer, Conversation, RawServer, answering


def sandbox_of(half: Half, stub: ContractServer, id: str = "user-123", **options: Any) -> Any:
    return half.get_sandbox(id, url=stub.url, **options)


async def collect(half: Half, stream: Any) -> list[ExecEvent]:
    return [event async for event in half.iterate(stream)]


# Commands


async def test_exec_returns_what_the_command_wrote_and_how_it_ended(half: Half, stub: ContractServer) -> None:
    calls = []

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        conversation.stdout(b"4\n")
        conversation.stderr(b"no such thing\n")
        conversation.stdout(b"\xff\x00")
        conversation.done(3, timed_out=True, truncated=True, session_ended=True, state_lost=2)

    stub.on_call = agent
    options = {"cwd": "/tmp", "env": {"A": "1", "B": None}, "timeout": "1m", "max_output": 1000}
    result = await half.run(sandbox_of(half, stub).exec, "echo 4", **options)
    assert calls == [ExecShell(command="echo 4", cwd="/tmp", env={"A": "1", "B": None}, timeout=60.0, max_output=1000)]
    assert (result.exit_code, result.success, result.session_id, result.duration) == (3, False, "default", 0.25)
    assert (result.stdout_bytes, result.stdout) == (b"4\n\xff\x00", "4\n\ufffd\x00")
    assert (result.stderr_bytes, result.stderr) == (b"no such thing\n", "no such thing\n")
    assert result.timed_out
    assert result.truncated
    assert result.session_ended
    assert result.state_lost == 2 and "state_lost=2" in repr(result)
    assert result.command == "echo 4"
    assert abs(result.timestamp.timestamp() - time.time()) < 60
    with pytest.raises(AttributeError):
        result.exit_code = 0


async def test_a_list_of_words_goes_to_no_shell(half: Half, stub: ContractServer) -> None:
    calls = []

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        conversation.done()

    stub.on_call = agent
    result = await half.run(sandbox_of(half, stub).exec, ["echo", "$HOME"])
    assert calls[0] == Exec(argv=["echo", "$HOME"], session_id="default", max_output=64 * 2**20)
    assert result.success
    assert result.command == ["echo", "$HOME"]


@pytest.mark.parametrize(
    "stdin",
    ["grüße\n", "grüße\n".encode(), bytearray("grüße\n".encode()), io.BytesIO("grüße\n".encode()), ["gr", "", "üße\n"]],
)
async def test_stdin_reaches_the_command_byte_by_byte(half: Half, stub: ContractServer, stdin: Any) -> None:
    def agent(conversation: Conversation) -> None:
        assert conversation.call.stdin
        conversation.stdout(b"".join(conversation.input()))
        conversation.done()

    stub.on_call = agent
    if isinstance(stdin, io.BytesIO):
        stdin.seek(0)
    assert (await half.run(sandbox_of(half, stub).exec, "cat", stdin=stdin)).stdout == "grüße\n"


async def test_a_command_that_echoes_a_lot_of_input_does_not_deadlock(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        for piece in conversation.input():
            conversation.stdout(piece)
        conversation.done()

    stub.on_call = agent
    data = bytes(range(256)) * 40_000
    assert (await half.run(sandbox_of(half, stub).exec, "cat", stdin=data)).stdout_bytes == data


async def test_a_command_that_ends_without_reading_its_input_is_a_result(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"enough")
        conversation.done()
        conversation.wait_for_hang_up()

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    assert (await half.run(sandbox.exec, "head", stdin=b"x" * 10_000_000)).stdout == "enough"
    stub.on_call = lambda conversation: conversation.done(7)
    assert (await half.run(sandbox.exec, "next")).exit_code == 7


async def test_a_pipe_that_stays_silent_holds_up_neither_output_nor_end(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        pieces = iter(conversation.input())
        conversation.stdout(b"name? ")
        conversation.stdout(b"hello " + next(pieces))
        conversation.done()

    stub.on_call = agent
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as stdin, open(writer, "wb", buffering=0) as answers:
        shown: list[str] = []

        def on_output(_: str, text: str) -> None:
            if not shown:
                answers.write(b"you")
            shown.append(text)

        result = await half.run(sandbox_of(half, stub).exec, "greet", stdin=stdin, on_output=on_output)
    assert result.stdout == "name? hello you"


@pytest.mark.parametrize("mistake", [KeyError, FileNotFoundError, BrokenPipeError, TimeoutError])
async def test_an_input_that_raises_ends_the_command(
    half: Half, stub: ContractServer, mistake: type[Exception]
) -> None:
    gone = threading.Event()

    def agent(conversation: Conversation) -> None:
        with contextlib.suppress(ValueError, OSError):
            list(conversation.input())
        gone.set()

    def lines() -> Any:
        yield "one\n"
        raise mistake("my own mistake")

    stub.on_call = agent
    with pytest.raises(mistake, match="my own mistake"):
        await half.run(sandbox_of(half, stub).exec, "cat", stdin=lines())
    with pytest.raises(mistake, match="my own mistake"):
        await collect(half, sandbox_of(half, stub).exec_stream("cat", stdin=lines()))
    assert await asyncio.to_thread(gone.wait, 60)


async def test_on_output_gets_text_as_it_comes_with_characters_whole(half: Half, stub: ContractServer) -> None:
    heard: list[tuple[str, str]] = []
    go_on = threading.Event()

    def agent(conversation: Conversation) -> None:
        for byte in "aß€😀".encode():
            conversation.stdout(bytes([byte]))
        assert go_on.wait(60)  # the callback has been called before the command ended
        conversation.stderr(b"\xe2\x82")
        conversation.done()

    def on_output(stream: str, text: str) -> None:
        heard.append((stream, text))
        if text == "😀":
            go_on.set()

    stub.on_call = agent
    result = await half.run(sandbox_of(half, stub).exec, "x", on_output=on_output)
    assert heard == [("stdout", "a"), ("stdout", "ß"), ("stdout", "€"), ("stdout", "😀"), ("stderr", "\ufffd")]
    assert (result.stdout, result.stderr_bytes) == ("aß€😀", b"\xe2\x82")


async def test_on_output_may_be_a_coroutine_function_in_the_async_sdk(stub: ContractServer) -> None:
    heard = []

    async def on_output(stream: str, text: str) -> None:
        await asyncio.sleep(0)
        heard.append(text)

    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"one")
        conversation.done()

    stub.on_call = agent
    sandbox = sandbox_of(AsyncHalf(), stub)
    await sandbox.exec("x", on_output=on_output)
    assert heard == ["one"]
    await sandbox.aclose()


async def test_a_callback_that_raises_ends_the_command(half: Half, stub: ContractServer) -> None:
    gone = threading.Event()

    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"one")
        conversation.wait_for_hang_up()
        gone.set()

    def on_output(stream: str, text: str) -> None:
        raise KeyError(text)

    stub.on_call = agent
    with pytest.raises(KeyError, match="one"):
        await half.run(sandbox_of(half, stub).exec, "x", on_output=on_output)
    assert await asyncio.to_thread(gone.wait, 60)


async def test_exec_stream_yields_what_happens(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"\xe2\x82")
        conversation.stderr(b"oh")
        conversation.stdout(b"\xac!")
        conversation.stdout(b"\xff")
        conversation.stdout(b"\xc3")
        conversation.done(2, truncated=True)

    stub.on_call = agent
    events = await collect(half, sandbox_of(half, stub).exec_stream("x"))
    assert [(event.type, event.data) for event in events] == [
        ("start", ""), ("stdout", ""), ("stderr", "oh"), ("stdout", "€!"), ("stdout", "\ufffd"), ("stdout", ""),
        ("stdout", "\ufffd"), ("complete", ""),
    ]  # fmt: skip
    assert b"".join(event.data_bytes for event in events if event.type == "stdout") == b"\xe2\x82\xac!\xff\xc3"
    assert (events[-1].exit_code, events[-1].duration, events[-1].truncated) == (2, 0.25, True)


async def test_events_come_before_the_command_ends(half: Half, stub: ContractServer) -> None:
    heard = threading.Event()

    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"first")
        assert heard.wait(60)
        conversation.done()

    stub.on_call = agent
    async for event in half.iterate(sandbox_of(half, stub).exec_stream("x")):
        if event.data == "first":
            heard.set()


async def test_leaving_a_stream_early_ends_the_command(half: Half, stub: ContractServer) -> None:
    gone = threading.Event()

    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"first")
        conversation.wait_for_hang_up()
        gone.set()

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    stream = sandbox.exec_stream("x")
    async for event in half.iterate(stream):
        if event.type == "stdout":
            break
    await half.close(stream)
    assert await asyncio.to_thread(gone.wait, 60)
    assert await collect(half, stream) == []
    gone.clear()
    if isinstance(half, AsyncHalf):
        async for event in sandbox.exec_stream("x"):
            if event.type == "stdout":
                break
    else:
        await asyncio.to_thread(leave_after_the_first_output, sandbox)
    gc.collect()
    assert await asyncio.to_thread(gone.wait, 60)


async def test_a_stream_that_is_closed_elsewhere_ends(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"first")
        conversation.wait_for_hang_up()

    stub.on_call = agent
    stream = sandbox_of(half, stub).exec_stream("x")
    seen: list[str] = []
    has_output = asyncio.Event()

    async def read() -> None:
        async for event in half.iterate(stream):
            seen.append(event.type)
            if event.type == "stdout":
                has_output.set()

    reading = asyncio.create_task(read())
    await has_output.wait()
    await half.close(stream)
    await reading
    assert seen == ["start", "stdout"]


@pytest.mark.parametrize("stdin", [[7], ["\udc80"]])
async def test_input_that_turns_out_to_be_none_is_refused(half: Half, stub: ContractServer, stdin: Any) -> None:
    stub.on_call = lambda conversation: conversation.wait_for_hang_up()
    with pytest.raises(ValueError, match="cannot be standard input"):
        await half.run(sandbox_of(half, stub).exec, "x", stdin=stdin)


def leave_after_the_first_output(sandbox: Any) -> None:
    for event in sandbox.exec_stream("x"):
        if event.type == "stdout":
            return


async def test_a_command_that_cannot_be_run_raises_the_error_of_the_agent(
    half: Half, stub: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half.transport, "END_SECONDS", 60.0)
    problem = error(ErrorCode.COMMAND_NOT_FOUND, "'pyhton' was not found", remedy="Check the spelling.", name="pyhton")
    stub.on_call = lambda conversation: conversation.failed(problem)
    sandbox = sandbox_of(half, stub)
    with pytest.raises(FileNotFoundError) as caught:
        await half.run(sandbox.exec, ["pyhton"])
    assert isinstance(caught.value, AtollError)
    assert caught.value.to_body() == problem.to_body()
    events = []
    with pytest.raises(FileNotFoundError):
        async for event in half.iterate(sandbox.exec_stream(["pyhton"])):
            events.append(event)
    assert [event.type for event in events] == ["start", "error"]
    assert events[-1].error is not None
    assert events[-1].error.code is ErrorCode.COMMAND_NOT_FOUND
    assert len(stub.connections) == 1  # it is fit for the next


async def test_an_error_before_the_first_frame_is_raised_as_it_is(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        raise error(ErrorCode.SANDBOX_START_FAILED, "no room", remedy="Make some.")

    stub.on_call = agent
    with pytest.raises(AtollError, match="no room") as caught:
        await half.run(sandbox_of(half, stub).exec, "x")
    assert caught.value.code is ErrorCode.SANDBOX_START_FAILED
    assert caught.value.remedy == "Make some."


def too_much(conversation: Conversation) -> None:
    conversation.stdout(b"x" * 11)
    conversation.done()


NONSENSE = {
    "a frame that lies about its length": lambda conversation: conversation.send_raw(b"\xff\xff\xff\xff\x10"),
    "an unknown kind": lambda conversation: conversation.send_raw(b"\0\0\0\0\x63"),
    "a frame for agents": lambda conversation: conversation.send(FrameKind.INPUT, b"x"),
    "a result that is none": lambda conversation: conversation.send(FrameKind.DONE, b"\xc1"),
    "a result of another kind": lambda conversation: conversation.answer(Sessions(sessions=[])),
    "an error that is none": lambda conversation: conversation.send(FrameKind.FAILED, b"\xc1"),
    "more output than allowed": too_much,
    "output without a byte": lambda conversation: conversation.stdout(b""),
}


@pytest.mark.parametrize("agent", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_from_an_agent_is_called_so(half: Half, stub: ContractServer, agent: Any) -> None:
    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    with pytest.raises(AtollError) as caught:
        await half.run(sandbox.exec, "x", max_output=10)
    assert caught.value.code is ErrorCode.AGENT_MISBEHAVED
    with pytest.raises(AtollError, match="AGENT_MISBEHAVED"):
        await collect(half, sandbox.exec_stream("x", max_output=10))


async def test_a_server_that_dies_during_a_command_is_a_lost_server(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.stdout(b"so far")
        stub.hang_up()

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    with pytest.raises(ConnectionError, match="SERVER_LOST"):
        await half.run(sandbox.exec, "x")
    events = []
    with pytest.raises(ConnectionError, match="SERVER_LOST"):
        async for event in half.iterate(sandbox.exec_stream("x")):
            events.append(event.type)
    assert events == ["start", "stdout", "error"]
    assert len(stub.requests) == 2  # none was sent again


SILENT = {
    "from the beginning": (),
    "after output": (FrameKind.STDOUT,),
    "after its turn has come": (FrameKind.WAITING, FrameKind.STARTED),
}


async def test_a_byte_now_and_then_gives_an_agent_no_more_time(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        with contextlib.suppress(OSError):
            while True:
                conversation.stdout(b"x")
                time.sleep(0.02)

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    half.server.find_server(stub.url).answer_grace = 0.2
    with pytest.raises(TimeoutError, match="AGENT_TIMEOUT"):
        await half.run(sandbox.exec, "x", timeout=0.1)
    with pytest.raises(TimeoutError, match="AGENT_TIMEOUT"):
        await collect(half, sandbox.exec_stream("x", timeout=0.1))


@pytest.mark.parametrize("done", [{"exit_code": 2**63, "duration": 1.0}, {"exit_code": 0, "duration": float("nan")}])
async def test_a_result_that_cannot_be_is_not_believed(
    half: Half, stub: ContractServer, done: dict[str, object]
) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.send(FrameKind.DONE, encode_message(done))
        conversation.end()

    stub.on_call = agent
    with pytest.raises(AtollError, match="AGENT_MISBEHAVED"):
        await half.run(sandbox_of(half, stub).exec, "x")


@pytest.mark.parametrize("before", SILENT.values(), ids=SILENT.keys())
async def test_an_agent_that_stands_still_is_given_up(half: Half, stub: ContractServer, before: Any) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.begin()
        for kind in before:
            conversation.send(kind, b"x" if kind is FrameKind.STDOUT else b"")
        conversation.wait_for_hang_up()

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    half.server.find_server(stub.url).answer_grace = 0.05
    with pytest.raises(TimeoutError, match="AGENT_TIMEOUT"):
        await half.run(sandbox.exec, "x", timeout=0.05)
    with pytest.raises(TimeoutError, match="AGENT_TIMEOUT"):
        await collect(half, sandbox.exec_stream("x", timeout=0.05))
    if not before:
        with pytest.raises(TimeoutError, match="AGENT_TIMEOUT"):
            await half.run(sandbox.list_sessions)


async def test_while_others_come_first_a_command_may_wait(half: Half, stub: ContractServer) -> None:
    waits, has_looked = threading.Event(), threading.Event()
    done = encode_message(ExecDone(exit_code=5, duration=0.1))

    def agent(conversation: Conversation) -> None:
        if isinstance(conversation.call, ExecShell) and conversation.call.command == "second":
            conversation.send(FrameKind.WAITING)
            waits.set()
            has_looked.wait()
            # In one piece: between the two it is not patient for longer than the machine may be slow.
            conversation.send_raw(encode_frame(FrameKind.STARTED) + encode_frame(FrameKind.DONE, done))
            conversation.end()
        else:
            conversation.begin()
            conversation.wait_for_hang_up()

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    half.server.find_server(stub.url).answer_grace = 0.05
    second = asyncio.create_task(half.run(sandbox.exec, "second", timeout=0.05))
    assert await asyncio.to_thread(waits.wait, 60)
    for _ in range(3):  # as long as it would have itself, each
        with pytest.raises(TimeoutError):
            await half.run(sandbox.exec, "first", timeout=0.05)
    assert not second.done()
    has_looked.set()
    assert (await second).exit_code == 5


async def test_an_answer_without_a_result_is_a_lost_server(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.begin()
        conversation.end()

    stub.on_call = agent
    with pytest.raises(ConnectionError, match="before the result"):
        await half.run(sandbox_of(half, stub).exec, "x")


async def test_an_answer_whose_end_does_not_come_is_not_waited_for(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.send(FrameKind.DONE, encode_message(ExecDone(exit_code=5, duration=0.1)))
        conversation.wait_for_hang_up()

    stub.on_call = agent
    assert (await half.run(sandbox_of(half, stub).exec, "x")).exit_code == 5


@pytest.mark.parametrize(
    ("command", "options", "code"),
    [
        ([], {}, ErrorCode.INVALID_COMMAND),
        (["a", 1], {}, ErrorCode.INVALID_COMMAND),
        (7, {}, ErrorCode.INVALID_COMMAND),
        ("\udc80", {}, ErrorCode.INVALID_COMMAND),
        ("x" * 2**20, {}, ErrorCode.INVALID_COMMAND),
        ("x", {"timeout": "soon"}, ErrorCode.INVALID_REQUEST),
        ("x", {"timeout": -1}, ErrorCode.INVALID_REQUEST),
        ("x", {"max_output": -1}, ErrorCode.INVALID_REQUEST),
        ("x", {"env": {"": "1"}}, ErrorCode.INVALID_ENVIRONMENT),
        ("x", {"stdin": 7}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_a_remedy(
    half: Half, stub: ContractServer, command: Any, options: dict[str, Any], code: ErrorCode
) -> None:
    with pytest.raises(ValueError) as caught:
        await half.run(sandbox_of(half, stub).exec, command, **options)
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is code
    assert caught.value.remedy
    assert not stub.requests


# Sandboxes


async def test_options_are_sent_once_and_before_the_first_operation(half: Half, stub: ContractServer) -> None:
    sandbox = sandbox_of(
        half, stub, image="busybox", limits=atoll.Limits(memory="1GiB"), env={"A": "1"}, labels={"team": "a b&c"},
        sleep_after="5m", keep_alive=True,
    )  # fmt: skip
    assert not stub.requests
    await half.run(sandbox.exec, "x")
    await half.run(sandbox.exec, "x")
    assert [method for method, _, _ in stub.requests] == ["PUT", "POST", "POST"]
    options = stub.options["user-123"]
    assert (options.image, options.env, options.labels) == ("busybox", {"A": "1"}, {"team": "a b&c"})
    assert (options.sleep_after, options.keep_alive) == (300.0, True)
    assert options.limits == {"cpus": 2.0, "memory": 2**30, "disk": 4 * 2**30, "pids": 1024}


async def test_without_options_there_is_nothing_to_send(half: Half, stub: ContractServer) -> None:
    await half.run(sandbox_of(half, stub, sleep_after=600).exec, "x")
    assert [method for method, _, _ in stub.requests] == ["POST"]


async def test_a_destroyed_sandbox_is_made_again_with_its_options(half: Half, stub: ContractServer) -> None:
    sandbox = sandbox_of(half, stub, limits="basic")
    await half.run(sandbox.destroy)
    await half.run(sandbox.destroy)
    assert [method for method, _, _ in stub.requests] == ["DELETE", "DELETE"]
    await half.run(sandbox.exec, "x")
    await half.run(sandbox.destroy)
    await half.run(sandbox.exec, "x")
    assert [method for method, _, _ in stub.requests[2:]] == ["PUT", "POST", "DELETE", "PUT", "POST"]
    assert stub.options["user-123"].limits == "basic"


@pytest.mark.parametrize("options", [{}, {"limits": "basic"}, {"create": False}], ids=str)
async def test_asking_makes_nothing_and_sends_no_options(half: Half, stub: ContractServer, options: Any) -> None:
    stub.has_any = False
    sandbox = sandbox_of(half, stub, **options)
    asking = (
        *(getattr(sandbox, name) for name in ("status", "list_sessions", "list_processes", "list_terminals")),
        *(functools.partial(getattr(sandbox, f"get_{name}"), "x") for name in ("session", "process", "terminal")),
        *(functools.partial(sandbox.kill_process, "x"), sandbox.kill_all_processes),
        *(functools.partial(sandbox.delete_session, "x"), sandbox.cleanup_completed_processes),
        *(functools.partial(sandbox.get_process_logs, "x"), functools.partial(sandbox.is_process_running, "x")),
    )
    for ask in asking:
        with pytest.raises(LookupError, match="SANDBOX_NOT_FOUND"):
            await half.run(ask)
    assert not stub.sandboxes and all(method != "PUT" for method, _, _ in stub.requests)


async def test_one_that_only_attaches_makes_nothing_whatever_is_done(half: Half, stub: ContractServer) -> None:
    stub.has_any = False
    sandbox = sandbox_of(half, stub, create=False)
    for _ in range(2):
        with pytest.raises(LookupError, match="SANDBOX_NOT_FOUND"):
            await half.run(sandbox.exec, "x")
        assert not stub.sandboxes
        await half.run(sandbox_of(half, stub).exec, "x")
        assert (await half.run(sandbox.exec, "x")).success
        await half.run(sandbox.destroy)
    with pytest.raises(ValueError, match="Leave out the options"):
        sandbox_of(half, stub, create=False, limits="basic")


async def test_status_labels_and_variables(half: Half, stub: ContractServer) -> None:
    sandbox = sandbox_of(half, stub)
    with pytest.raises(LookupError, match="SANDBOX_NOT_FOUND"):
        await half.run(sandbox.status)
    await half.run(sandbox.exec, "x")
    status = await half.run(sandbox.status)
    assert (status.id, status.state) == ("user-123", atoll.SandboxState.RUNNING)
    await half.run(sandbox.set_labels, {"team": "red"})
    assert (await half.run(sandbox.status)).labels == {"team": "red"}
    await half.run(sandbox.set_env_vars, {"A": "1", "B": None})
    assert stub.requests[-1] == ("PATCH", "/v1/sandboxes/user-123/env", b'{"A":"1","B":null}')


async def test_sandboxes_are_listed_by_label_and_state(half: Half, stub: ContractServer) -> None:
    for number in range(3):
        sandbox = sandbox_of(half, stub, f"s{number}", labels={"team": "a&b=c" if number else "none"})
        await half.run(sandbox.exec, "x")
    everyone = await half.list_sandboxes(url=stub.url)
    assert [sandbox.id for sandbox in everyone] == ["s0", "s1", "s2"]
    found = await half.list_sandboxes(labels={"team": "a&b=c"}, state="running", url=stub.url)
    assert [sandbox.id for sandbox in found] == ["s1", "s2"]
    assert stub.requests[-1][1].endswith("&state=running")
    with pytest.raises(ValueError, match="running, frozen, stopped"):
        await half.list_sandboxes(state="asleep", url=stub.url)


async def test_a_list_is_walked_in_pages_that_nobody_sees(half: Half, stub: ContractServer) -> None:
    for number in range(250):
        stub.create(f"s{number:03}", SandboxOptions())
    everyone = [f"s{number:03}" for number in range(250)]
    assert [sandbox.id for sandbox in await half.list_sandboxes(url=stub.url)] == everyone
    assert len(stub.requests) == 3
    found = await half.list_sandboxes(limit=120, after="s009", url=stub.url)
    assert [sandbox.id for sandbox in found] == everyone[10:130]
    assert [path.partition("?")[2] for _, path, _ in stub.requests[-2:]] == [
        "after=s009",
        "limit=20&after=s109",
    ]
    assert await half.list_sandboxes(after="s249", usage=True, url=stub.url) == []
    assert "usage=true" in stub.requests[-1][1]


async def test_the_timeline_can_be_read_and_followed(half: Half, stub: ContractServer) -> None:
    sandbox = sandbox_of(half, stub)
    assert [event.what for event in await half.run(sandbox.events)] == ["created", "started", "stopped"]
    assert [event.number for event in await half.run(sandbox.events, 1)] == [2, 3]
    followed = [event async for event in half.iterate(sandbox.follow_events(since=1))]
    assert [event.what for event in followed] == ["started", "stopped"]
    with pytest.raises(ValueError, match="since=-1"):
        await half.run(sandbox.events, -1)


async def test_a_temporary_sandbox_is_destroyed_and_another_is_not(half: Half, stub: ContractServer) -> None:
    for make, is_gone in ((half.temporary_sandbox, True), (half.get_sandbox, False)):
        sandbox = make("block", url=stub.url, labels={"a": "b"})
        if isinstance(half, AsyncHalf):
            async with sandbox as entered:
                await entered.exec("x")
        else:
            await asyncio.to_thread(use_in_a_block, sandbox)
        assert ("block" not in stub.sandboxes) is is_gone
        assert not sandbox._sandbox.server.transport._idle
    assert half.temporary_sandbox(url=stub.url).id != half.temporary_sandbox(url=stub.url).id


async def test_a_sandbox_that_cannot_be_destroyed_does_not_hide_what_went_wrong(half: Half, tmp_path: Path) -> None:
    sandbox = half.temporary_sandbox("block", url=f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(ZeroDivisionError) as caught:
        if isinstance(half, AsyncHalf):
            async with sandbox:
                raise ZeroDivisionError
        with sandbox:
            raise ZeroDivisionError
    assert "'block' could not be destroyed" in caught.value.__notes__[0]
    with pytest.raises(ConnectionError):
        if isinstance(half, AsyncHalf):
            async with sandbox:
                pass
        with sandbox:
            pass


def use_in_a_block(sandbox: Any) -> None:
    with sandbox as entered:
        entered.exec("x")


async def test_sandboxes_share_their_connections(
    half: Half, stub: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half.transport, "END_SECONDS", 60.0)
    for number in range(5):
        await half.run(sandbox_of(half, stub, f"s{number}").exec, "x")
    assert len(stub.connections) == 1


async def test_many_commands_at_once_each_get_their_own_answer(half: Half, stub: ContractServer) -> None:
    def agent(conversation: Conversation) -> None:
        conversation.stdout(conversation.call.command.encode())
        conversation.done()

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    words = [f"word-{number}" for number in range(50)]
    results = await asyncio.gather(*(half.run(sandbox.exec, word) for word in words))
    assert [result.stdout for result in results] == words


@pytest.mark.parametrize("id", ["", "UPPER", "-a", "a-", "a" * 64, "a/b", "a b", None])
def test_an_id_that_is_none_is_refused_at_once(half: Half, id: Any) -> None:
    with pytest.raises(ValueError, match="INVALID_SANDBOX_ID"):
        half.get_sandbox(id, url="http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("mount_bucket", ("bucket", "/mnt")),
        ("unmount_bucket", ("/mnt",)),
        ("create_backup", ()),
        ("restore_backup", ("backup",)),
    ],
)
async def test_methods_that_come_later_say_so(half: Half, method: str, arguments: tuple[str, ...]) -> None:
    with pytest.raises(NotImplementedError) as caught:
        await half.run(getattr(half.get_sandbox("a", url="http://127.0.0.1:1"), method), *arguments)
    assert isinstance(caught.value, AtollError)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "labels", [{"a": "\udc80"}, {"\ud800": "a"}, {"a": "b" * 257}, {str(n): "" for n in range(65)}]
)
async def test_labels_that_no_sandbox_can_have_are_refused_at_once(half: Half, labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="INVALID_REQUEST"):
        half.get_sandbox("a", labels=labels, url="http://127.0.0.1:1")
    with pytest.raises(ValueError, match="INVALID_REQUEST"):
        await half.list_sandboxes(labels=labels, url="http://127.0.0.1:1")


@pytest.mark.parametrize(
    "options",
    [{"limits": "huge"}, {"limits": {"cpus": 0}}, {"labels": {"a=b": "c"}}, {"labels": {"a": 1}}, {"env": {"A": "\0"}},
     {"sleep_after": "never"}, {"url": "ftp://x"}, {"url": "http://"}, {"url": "http://x:port"}, {"url": "unix://"},
     {"url": "http://x/a b"}],
)  # fmt: skip
def test_options_that_are_none_are_refused_at_once(half: Half, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        half.get_sandbox("a", **options)
    assert isinstance(caught.value, AtollError)
    assert caught.value.remedy


async def test_the_key_of_the_environment_is_used_and_a_wrong_one_is_refused(
    half: Half, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ContractServer(tmp_path / "keyed.sock", api_key="right")
    monkeypatch.setenv("ATOLL_URL", server.url)
    monkeypatch.setenv("ATOLL_API_KEY", "wrong")
    with pytest.raises(PermissionError, match="INVALID_API_KEY"):
        await half.list_sandboxes()
    monkeypatch.setenv("ATOLL_API_KEY", "right")
    assert await half.list_sandboxes() == []
    with pytest.raises(PermissionError, match="printable"):
        await half.list_sandboxes(api_key="a\r\nb: c")
    server.stop()


@pytest.mark.parametrize(
    ("status", "code"),
    [("502 Bad Gateway", ErrorCode.SERVER_NOT_REACHABLE), ("403 Forbidden", ErrorCode.INVALID_API_KEY),
     ("404 Not Found", ErrorCode.SERVER_NOT_REACHABLE), ("302 Found", ErrorCode.SERVER_NOT_REACHABLE),
     ("500 Oops", ErrorCode.SERVER_NOT_REACHABLE), ("200 OK", ErrorCode.SERVER_NOT_REACHABLE)],
)  # fmt: skip
async def test_another_program_in_the_way_is_named(half: Half, status: str, code: ErrorCode) -> None:
    page = b"<html>nginx</html>"
    answer = f"HTTP/1.1 {status}\r\ncontent-length: {len(page)}\r\n\r\n".encode() + page
    with RawServer(answering(answer)) as server:
        with pytest.raises(AtollError) as caught:
            await half.list_sandboxes(url=server.url)
        assert caught.value.code is code
        assert caught.value.remedy
        assert status.startswith(("502", "403")) or "is no Atoll server" in caught.value.message


async def test_an_atoll_server_of_another_version_is_no_other_program(half: Half) -> None:
    answer = b'HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\n{"sandboxes":true}'
    with RawServer(answering(answer)) as server:
        with pytest.raises(AtollError, match="of this version") as caught:
            await half.list_sandboxes(url=server.url)
        assert caught.value.code is ErrorCode.INTERNAL_ERROR


async def test_a_path_in_front_of_ours_is_kept(half: Half) -> None:
    seen: list[bytes] = []

    def behave(peer: Any) -> None:
        from tests.client.peers import read_request

        seen.append(read_request(peer))
        peer.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"sandboxes":[]}')

    with RawServer(behave) as server:
        assert await half.list_sandboxes(url=f"{server.url}/atoll/") == []
    assert seen[0].startswith(b"GET /atoll/v1/sandboxes HTTP/1.1\r\n")


# Sessions


async def test_sessions_are_made_found_listed_used_and_deleted(half: Half, stub: ContractServer) -> None:
    calls: list[Any] = []

    def agent(conversation: Conversation) -> None:
        calls.append(conversation.call)
        if isinstance(conversation.call, ListSessions):
            conversation.answer(Sessions(sessions=list(stub.sessions.values())))
        else:
            conversation.done()

    stub.on_call = agent
    sandbox = sandbox_of(half, stub)
    session = await half.run(sandbox.create_session, "build", env={"A": "1"}, cwd="/src")
    assert json.loads(stub.requests[-1][2]) == {"id": "build", "cwd": "/src", "env": {"A": "1"}}
    assert (session.id, session.sandbox_id) == ("build", "user-123")
    result = await half.run(session.exec, "make")
    assert calls[-1] == ExecShell(command="make", session_id="build", max_output=64 * 2**20)
    assert result.session_id == "build"
    assert [event.type for event in await collect(half, session.exec_stream("make"))] == ["start", "complete"]
    unnamed = await half.run(sandbox.create_session)
    assert [info.id for info in await half.run(sandbox.list_sessions)] == ["build", unnamed.id]
    assert (await half.run(sandbox.get_session, "build")).id == "build"
    assert (await half.run(sandbox.get_session, "default")).id == "default"
    await half.run(session.delete)
    for attempt in (sandbox.get_session, sandbox.delete_session):
        with pytest.raises(LookupError, match="SESSION_NOT_FOUND"):
            await half.run(attempt, "build")
    for attempt in (sandbox.create_session, sandbox.delete_session):
        with pytest.raises(ValueError, match="INVALID_SESSION_ID"):
            await half.run(attempt, "../other")


# What people see


@pytest.mark.parametrize(
    "kind",
    ["get_sandbox('a', url=URL).exec('x')", "asyncio.run(get_async_sandbox('a', url=URL).exec('x'), debug=False)"],
)
def test_a_program_that_just_ends_says_nothing(stub: ContractServer, kind: str) -> None:
    program = f"import asyncio; from atoll import *; URL = {stub.url!r}; print({kind}.exit_code)"
    shown = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True)
    assert (shown.stdout, shown.stderr) == ("0\n", "")


def test_a_repr_says_what_it_is(half: Half) -> None:
    prefix = "Async" if isinstance(half, AsyncHalf) else ""
    sandbox = half.get_sandbox("user-123", url="http://[::1]:8080")
    assert repr(sandbox) == f"<{prefix}Sandbox 'user-123' at http://[::1]:8080>"
    module = __import__(type(sandbox).__module__, fromlist=["sessions"]).sessions
    session = getattr(module, f"{prefix}Session")(sandbox._sandbox, "build")
    assert repr(session) == f"<{prefix}Session 'build' of sandbox 'user-123'>"


def test_the_repr_of_a_result_stays_on_one_line() -> None:
    from datetime import UTC, datetime

    result = ExecResult(
        exit_code=1, stdout_bytes=b"line\n" * 100, stderr_bytes=b"oh\n", command="x", duration=0.0123,
        timestamp=datetime.now(UTC), session_id="default", timed_out=True,
    )  # fmt: skip
    shown = repr(result)
    assert shown.startswith("ExecResult(exit_code=1, stdout='line\\n")
    assert shown.endswith("…, stderr='oh\\n', timed_out=True, duration=0.012)")
    assert len(shown) < 200
    assert result.stdout is result.stdout  # decoded once


def test_both_halves_hand_out_the_same_values() -> None:
    assert AsyncHalf.server is not BlockingHalf.server
    assert atoll.ExecResult is ExecResult
