"""The SDK against the real server, both halves: sandboxes as their users see them, from first use to destruction."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import io
import os
import select
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from atoll import get_sandbox, list_sandboxes, temporary_sandbox
from atoll.client.plumbing import local_server
from atoll.client.plumbing.local_server import LocalServer
from atoll.client.plumbing.network import UnixAddress, connect
from atoll.client.plumbing.remote_sandbox import RemoteSandbox
from atoll.client.plumbing.server import Server
from atoll.client.sandbox import AsyncSandbox
from atoll.protocol.commands import ExecShell
from atoll.protocol.errors import AtollError, ErrorCode, NotFoundError, SandboxError
from atoll.protocol.frames import FrameKind, encode_frame
from atoll.protocol.messages import encode_message
from atoll.protocol.sandboxes import SandboxOptions, SandboxState, ServerInfo
from tests import kept
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import HANG_SECONDS, RunningServer, wait_for_end
from tests.system.test_server import first_process, wait_for_event

LIBC = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD = 438


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def half(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Half]:
    half: Half = request.param()
    yield half
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.find_server(server.tcp_url, server.key).transport.close_idle()
    half.server.shared_server.cache_clear()


async def test_a_sandbox_from_its_first_use_to_its_end(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("life", url=server.tcp_url, api_key=server.key, labels={"team": "a"}, env={"A": "1"})
    assert (await half.run(sandbox.exec, "echo $A; echo kept > file")).stdout == "1\n"
    status = await half.run(sandbox.status)
    assert (status.id, status.state, status.image) == ("life", SandboxState.RUNNING, "host")
    assert (status.labels, status.env) == ({"team": "a"}, ["A"])
    assert status.use.processes >= 1
    await half.run(sandbox.exec, "head -c 3M /dev/zero > big; sync -f big")
    assert 3 * 2**20 < (await half.run(sandbox.status)).use.disk < status.limits.disk
    await half.run(sandbox.set_env_vars, {"A": None, "B": "2"})
    assert (await half.run(sandbox.exec, "echo ${A:-unset} $B")).stdout == "unset 2\n"
    await half.run(sandbox.set_labels, {"team": "b"})
    assert (await half.run(sandbox.status)).labels == {"team": "b"}
    events = await half.run(sandbox.events)
    assert [event.what for event in events] == ["created", "env_changed", "labels_changed"]
    assert all(event.by.startswith("key ") for event in events)
    assert await half.run(sandbox.events, since=events[1].number) == events[2:]
    await half.run(sandbox.destroy)
    await half.run(sandbox.destroy)
    assert (await half.run(sandbox.exec, "cat file")).exit_code == 1


FIRST_OPERATIONS: dict[str, Callable[[Half, Any], Any]] = {
    "exec": lambda half, sandbox: half.run(sandbox.exec, "true"),
    "exec with input": lambda half, sandbox: half.run(sandbox.exec, "cat", stdin=iter(["a", "b"])),
    "exec_stream": lambda half, sandbox: collect(half, sandbox.exec_stream("true")),
    "write_file": lambda half, sandbox: half.run(sandbox.write_file, "file", "content"),
    "write_file of pieces": lambda half, sandbox: half.run(sandbox.write_file, "file", iter([b"con", b"tent"])),
    "list_files": lambda half, sandbox: half.run(sandbox.list_files, "."),
    "start_process": lambda half, sandbox: half.run(sandbox.start_process, "true"),
    "create_terminal": lambda half, sandbox: half.run(sandbox.create_terminal),
    "create_session": lambda half, sandbox: half.run(sandbox.create_session, "mine"),
    "set_env_vars": lambda half, sandbox: half.run(sandbox.set_env_vars, {"B": "2"}),
}


async def collect(half: Half, stream: Any) -> list[Any]:
    return [event async for event in half.iterate(stream)]


@pytest.mark.parametrize("operation", FIRST_OPERATIONS.values(), ids=FIRST_OPERATIONS.keys())
async def test_what_another_has_destroyed_is_made_again_with_its_options(
    half: Half, server: RunningServer, operation: Callable[[Half, Any], Any]
) -> None:
    options = {"limits": "lite", "env": {"A": "1"}, "labels": {"team": "a"}, "sleep_after": "5m", "keep_alive": True}
    sandbox = half.get_sandbox("made-again", url=server.unix_url, **options)
    for _ in range(2):
        await operation(half, sandbox)
        status = await half.run(half.get_sandbox("made-again", url=server.unix_url).status)
        assert (status.limits.memory, "A" in status.env, status.labels) == (256 * 2**20, True, {"team": "a"})
        assert (status.sleep_after, status.keep_alive) == (300.0, True)
        await half.run(half.get_sandbox("made-again", url=server.unix_url).destroy)


async def test_a_call_that_waits_for_a_destruction_makes_no_sandbox_without_its_options(
    half: Half, server: RunningServer
) -> None:
    """Both are under way at once, in either order."""
    sandbox = half.get_sandbox("made-again", url=server.unix_url, env={"A": "1"})
    for _ in range(10):
        await half.run(sandbox.exec, "true")
        destroying = asyncio.create_task(server.ask("DELETE", "/v1/sandboxes/made-again"))
        with suppress(NotFoundError, SandboxError):  # it was destroyed under way
            assert (await half.run(sandbox.exec, "echo $A")).stdout == "1\n"
        await destroying
        assert (await half.run(sandbox.exec, "echo $A")).stdout == "1\n"


async def test_over_http_a_request_may_ask_for_a_sandbox_that_exists(server: RunningServer) -> None:
    headers = {"Atoll-Sandbox": "existing"}
    answer = await server.ask("POST", "/v1/sandboxes/nobodys/exec", {"command": "true"}, headers=headers)
    assert (answer.status, answer.json()["code"]) == (404, "SANDBOX_NOT_FOUND")
    assert (await server.ask("GET", "/v1/sandboxes")).json()["sandboxes"] == []
    assert (await server.ask("PUT", "/v1/sandboxes/nobodys", {}, headers=headers)).status == 201
    answer = await server.ask("POST", "/v1/sandboxes/nobodys/exec", {"command": "true"}, headers=headers)
    assert answer.json()["exit_code"] == 0


async def test_to_set_variables_or_labels_makes_the_sandbox(half: Half, server: RunningServer) -> None:
    one, two = (half.get_sandbox(name, url=server.unix_url) for name in ("one", "two"))
    await half.run(one.set_env_vars, {"A": "1"})
    await half.run(two.set_labels, {"team": "a"})
    assert (await half.run(one.exec, "echo $A")).stdout == "1\n"
    assert (await half.run(two.status)).labels == {"team": "a"}


async def test_a_name_that_no_shell_can_have_is_for_commands_without_one(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("named", url=server.unix_url)
    printed = (await half.run(sandbox.exec, ["env"], env={"a-b": "1"})).stdout
    assert "a-b=1\n" in printed
    with pytest.raises(ValueError, match="INVALID_ENVIRONMENT"):
        await half.run(sandbox.exec, "env", env={"a-b": "1"})
    await half.run(sandbox.set_env_vars, {"a-b": None})


async def test_sandboxes_are_found_by_label_and_state(half: Half, server: RunningServer) -> None:
    for name, team in (("one", "a"), ("two", "b"), ("three", "a")):
        labels = {"team": team, "name with = & ?".replace("=", "-"): "ü"}
        await half.run(half.get_sandbox(name, url=server.unix_url, labels=labels).exec, "true")
    found = await half.list_sandboxes(url=server.unix_url, labels={"team": "a", "name with - & ?": "ü"})
    assert [info.id for info in found] == ["one", "three"]
    assert len(await half.list_sandboxes(url=server.unix_url, state="running")) == 3
    assert await half.list_sandboxes(url=server.unix_url, state="frozen") == []


async def test_events_are_followed_to_the_end_of_the_sandbox(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("followed", url=server.unix_url)
    await half.run(sandbox.exec, "true")
    seen = []
    async for event in half.iterate(sandbox.follow_events()):
        seen.append(event.what)
        if event.what == "created":
            await half.run(sandbox.set_labels, {"a": "b"})
        elif event.what == "labels_changed":
            await half.run(sandbox.destroy)
    assert seen == ["created", "labels_changed", "destroyed"]


async def test_sessions_keep_their_state_and_are_apart(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("sessions", url=server.unix_url)
    session = await half.run(sandbox.create_session, "mine", env={"A": "1"}, cwd="/tmp")
    await half.run(session.exec, "b=2")
    assert (await half.run(session.exec, "echo $A $b $PWD")).stdout == "1 2 /tmp\n"
    assert (await half.run(sandbox.exec, "echo ${b:-none}")).stdout == "none\n"
    assert {info.id for info in await half.run(sandbox.list_sessions)} == {"default", "mine"}
    await half.run(session.delete)
    with pytest.raises(LookupError):
        await half.run(sandbox.get_session, "mine")
    with pytest.raises(LookupError):
        await half.run(sandbox.delete_session, "mine")
    happened = [(event.what, event.cause, event.by) for event in await half.run(sandbox.events)][1:]
    assert happened == [
        ("session_created", "'mine' was asked for", "local"),
        ("session_deleted", "'mine' was asked for", "local"),
    ]


async def test_a_wrong_key_is_a_permission_error(half: Half, server: RunningServer) -> None:
    with pytest.raises(PermissionError) as caught:
        await half.list_sandboxes(url=server.tcp_url, api_key="wrong")
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is ErrorCode.INVALID_API_KEY


async def test_a_sandbox_whose_first_process_is_killed_is_stopped_and_starts_again_with_its_files(
    server: RunningServer,
) -> None:
    sandbox = server.sandbox("killed")
    await sandbox.exec("echo kept > file")
    await sandbox.set_env_vars({"A": "1", "TZ": None, "NEVER_SET": None})
    os.kill(first_process(server, "killed"), signal.SIGKILL)
    await wait_for_event(sandbox, "stopped")
    status = await sandbox.status()
    assert (status.state, status.cause, status.use) == (SandboxState.STOPPED, "its first process was killed", None)
    assert (await sandbox.exec("cat file; echo $A ${TZ-unset}")).stdout == "kept\n1 unset\n"
    status = await sandbox.status()
    assert (status.state, status.env) == (SandboxState.RUNNING, ["A"])
    await sandbox.aclose()


async def test_a_command_that_comes_before_the_server_knows_of_the_end_runs_once_on_a_new_start(
    server: RunningServer,
) -> None:
    """The server stands still while the first process is killed, so it learns of both at once."""
    sandbox = server.sandbox("killed-unseen")
    await sandbox.exec("echo kept > file")
    for number in range(12):
        agent = first_process(server, "killed-unseen")
        server.process.send_signal(signal.SIGSTOP)
        running = asyncio.create_task(run_one_way_or_another(server, number))
        os.kill(agent, signal.SIGKILL)
        await wait_for_end(agent)
        server.process.send_signal(signal.SIGCONT)
        assert await running == "kept\n"
    assert (await sandbox.exec("cat runs")).stdout.split() == [str(number) for number in range(12)]
    changes = [event.what for event in await sandbox.events()]
    assert changes == ["created"] + ["stopped", "started"] * 12
    await sandbox.aclose()


async def run_one_way_or_another(server: RunningServer, number: int) -> str:
    """What a command prints that leaves its number: by the SDK, with input, as JSON, and as events."""
    command = f"cat file; echo {number} >> runs"
    sandbox = server.sandbox("killed-unseen")
    try:
        if number % 4 < 2:
            stdin = None if number % 4 else "input"
            return (await sandbox.exec(command, stdin=stdin)).stdout
    finally:
        await sandbox.aclose()
    headers = {"Accept": "text/event-stream"} if number % 4 == 2 else {}
    body = (await server.ask("POST", "/v1/sandboxes/killed-unseen/exec", {"command": command}, headers=headers)).body
    assert b"kept" in body, body
    return "kept\n"


async def test_a_call_that_the_first_process_never_read_is_made_again_on_a_new_start(server: RunningServer) -> None:
    """It stands still, so that the call waits unread, until it is killed."""
    sandbox = server.sandbox("killed-deaf")
    await sandbox.exec("true")
    for number in range(5):
        agent = first_process(server, "killed-deaf")
        await stand_still(agent)
        running = asyncio.create_task(sandbox.exec(f"echo {number} >> runs"))
        while not has_unread_call(agent):
            await asyncio.sleep(0.01)
        os.kill(agent, signal.SIGKILL)
        assert (await running).exit_code == 0
    assert (await sandbox.exec("cat runs")).stdout.split() == ["0", "1", "2", "3", "4"]
    await sandbox.aclose()


async def test_an_agent_that_stands_still_is_given_up(server: RunningServer) -> None:
    sandbox = server.sandbox("still")
    await sandbox.exec("true")
    await stand_still(first_process(server, "still"))
    hasty = Server(server.unix_url, None)
    hasty.answer_grace = 0.0
    with pytest.raises(TimeoutError, match="AGENT_TIMEOUT"):
        await AsyncSandbox(RemoteSandbox(hasty, "still")).exec("true", timeout=0.1)
    hasty.transport.close_idle()
    await sandbox.aclose()


async def test_a_call_that_was_never_read_is_made_again_although_its_answer_has_begun(server: RunningServer) -> None:
    sandbox = server.sandbox("killed-later")
    await sandbox.exec("true")
    agent = first_process(server, "killed-later")
    await stand_still(agent)
    call = encode_frame(FrameKind.CALL, encode_message(ExecShell(command="echo again")))
    reader, writer = await asyncio.open_unix_connection(str(server.socket))
    head = f"POST /v1/sandboxes/killed-later/call HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(call)}\r\n\r\n"
    writer.write(head.encode() + call)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    os.kill(agent, signal.SIGKILL)
    assert b"again\n" in await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    await sandbox.aclose()


async def stand_still(process: int) -> None:
    """Stop it, and wait until each of its threads stands: until then it may still read what comes."""
    os.kill(process, signal.SIGSTOP)
    while any(thread_state(path) != "T" for path in Path(f"/proc/{process}/task").iterdir()):
        await asyncio.sleep(0.001)


def thread_state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def has_unread_call(agent: int) -> bool:
    """Whether something came to this process, which must stand still, over an open connection or a new one."""
    found = []
    process = os.pidfd_open(agent)
    for number in os.listdir(f"/proc/{agent}/fd"):
        if os.readlink(f"/proc/{agent}/fd/{number}").startswith("socket:"):
            own = LIBC.syscall(PIDFD_GETFD, process, int(number), 0)
            with socket.socket(fileno=own) as peer:
                listens = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                found.append(is_readable(peer) if listens else holds_bytes(peer))
    os.close(process)
    return any(found)


def is_readable(peer: socket.socket) -> bool:
    return bool(select.select([peer], [], [], 0)[0])


def holds_bytes(peer: socket.socket) -> bool:
    return fcntl.ioctl(peer, termios.FIONREAD, bytes(4)) != bytes(4)


async def test_a_command_that_was_taken_when_the_first_process_was_killed_is_lost(server: RunningServer) -> None:
    sandbox = server.sandbox("killed-busy")
    async with sandbox.exec_stream("echo begun; sleep 1000") as stream:
        with pytest.raises(ConnectionError) as caught:
            async for event in stream:
                if event.data == "begun\n":
                    os.kill(first_process(server, "killed-busy"), signal.SIGKILL)
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is ErrorCode.AGENT_LOST
    assert "its first process was killed" in caught.value.message
    assert "starts the sandbox" in caught.value.remedy
    assert caught.value.context == {"sandbox": "killed-busy"}
    await sandbox.aclose()


async def test_an_idle_sandbox_is_frozen_and_thaws_on_use(server: RunningServer) -> None:
    sandbox = server.sandbox("sleepy", SandboxOptions(sleep_after=0.1))
    assert (await sandbox.exec("state=kept; sleep 1.5; echo awake")).stdout == "awake\n"  # longer than it may be idle
    frozen = await wait_for_event(sandbox, "frozen")
    assert (await sandbox.status()).state is SandboxState.FROZEN
    assert (await sandbox.exec("echo $state")).stdout == "kept\n"
    thawed = await wait_for_event(sandbox, "thawed", since=frozen.number)
    await wait_for_event(sandbox, "frozen", since=thawed.number)
    await sandbox.set_env_vars({"A": "1"})
    await wait_for_event(sandbox, "frozen", since=thawed.number + 1)
    await sandbox.destroy()
    await sandbox.aclose()


async def test_a_sandbox_sleeps_and_wakes_when_it_is_told_to(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("told", url=server.unix_url)
    with pytest.raises(LookupError, match="SANDBOX_NOT_FOUND"):
        await half.run(sandbox.sleep)
    await half.run(sandbox.wake)
    await half.run(sandbox.exec, "state=kept; echo kept > file")
    for _ in range(2):
        await half.run(sandbox.sleep)
        assert (await half.run(sandbox.status)).state is SandboxState.FROZEN
    assert (await half.run(sandbox.exec, "echo $state")).stdout == "kept\n"
    await half.run(sandbox.sleep)
    await half.run(sandbox.wake)
    assert (await half.run(sandbox.status)).state is SandboxState.RUNNING
    for _ in range(2):
        await half.run(sandbox.sleep, stop=True)
        status = await half.run(sandbox.status)
        assert (status.state, status.cause, status.use) == (SandboxState.STOPPED, "it was asked for", None)
    assert (await half.run(sandbox.exec, "echo ${state:-gone}; cat file")).stdout == "gone\nkept\n"
    happened = [event.what for event in await half.run(sandbox.events)]
    assert happened == ["created", "frozen", "thawed", "frozen", "thawed", "stopped", "started"]


async def test_what_is_frozen_is_stopped_as_what_is_awake(server: RunningServer) -> None:
    """Its processes are told before they are ended."""
    sandbox = server.sandbox("told")
    process = await sandbox.start_process("trap 'echo told > file; exit' TERM; echo ready; while :; do sleep 0.1; done")
    await process.wait_for_log("ready")
    await sandbox.sleep()
    await sandbox.sleep(stop=True)
    assert (await sandbox.status()).state is SandboxState.STOPPED
    assert (await sandbox.read_file("file")).content == "told\n"
    assert await sandbox.list_processes() == []
    await sandbox.aclose()


async def test_a_sandbox_sleeps_after_its_commands_and_stops_in_the_middle_of_them(server: RunningServer) -> None:
    sandbox, other = server.sandbox("told"), server.sandbox("told")
    with Later() as later:
        stream = sandbox.exec_stream("echo begun; read line; echo $line", stdin=later)
        assert [(await anext(stream)).type, (await anext(stream)).data] == ["start", "begun\n"]
        await other.sleep()
        assert (await other.status()).state is SandboxState.RUNNING
        later.give(b"awake\n")
        assert [event.data async for event in stream] == ["awake\n", ""]
    await wait_for_event(other, "frozen")
    async with sandbox.exec_stream("echo begun; sleep 1000") as stream:
        assert [(await anext(stream)).type, (await anext(stream)).data] == ["start", "begun\n"]
        await other.sleep(stop=True)
        with pytest.raises(ConnectionError, match="was stopped while this was under way"):
            async for _ in stream:
                pass
    for client in (sandbox, other):
        await client.aclose()


class Later(io.FileIO):
    """Input that comes when it is given."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        super().__init__(reading)

    def give(self, data: bytes) -> None:
        os.write(self._writing, data)
        os.close(self._writing)


async def test_when_a_sandbox_sleeps_and_stops_can_be_changed(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("changed", url=server.unix_url, keep_alive=True, sleep_after=0.1)
    await half.run(sandbox.exec, "true")
    await half.run(sandbox.set_stop_after, "1h")
    await half.run(sandbox.set_sleep_after, "5m")
    await half.run(sandbox.set_keep_alive, False)
    status = await half.run(sandbox.status)
    assert (status.sleep_after, status.keep_alive, status.stop_after) == (300.0, False, 3600.0)
    await half.run(sandbox.set_stop_after, None)
    assert (await half.run(sandbox.status)).stop_after is None
    changes = [event.cause for event in await half.run(sandbox.events) if event.what == "upkeep_changed"]
    asked = ("stop_after=3600s", "sleep_after=300s", "keep_alive=False", "stop_after=None")
    assert changes == [f"{change} was asked for" for change in asked]


async def test_a_sandbox_that_nobody_wakes_is_stopped_in_time(server: RunningServer) -> None:
    sandbox = server.sandbox("changed")
    await sandbox.exec("echo kept > file")
    await sandbox.set_stop_after(0.1)
    await sandbox.set_sleep_after(0.1)
    stopped = await wait_for_event(sandbox, "stopped")
    assert stopped.cause == "it slept for 0.1 seconds"
    assert (await sandbox.read_file("file")).content == "kept\n"
    await sandbox.set_stop_after(None)
    await sandbox.aclose()


async def test_destroying_ends_the_commands_that_run_with_a_typed_error(server: RunningServer) -> None:
    sandbox = server.sandbox("busy")
    sessions = [await sandbox.create_session() for _ in range(5)]
    streams = [session.exec_stream("echo begun; sleep 1000") for session in sessions]
    for stream in streams:
        assert [(await anext(stream)).type, (await anext(stream)).data] == ["start", "begun\n"]
    await sandbox.destroy()
    for stream in streams:
        assert (await anext(stream)).type == "error"
        with pytest.raises(ConnectionError) as caught:
            await anext(stream)
        assert isinstance(caught.value, AtollError)
        assert caught.value.code is ErrorCode.AGENT_LOST
        assert caught.value.context == {"sandbox": "busy"}
        assert "was destroyed" in caught.value.message
    assert await asyncio.to_thread(lambda: kept.stages(server.state)) == {}
    await sandbox.aclose()


async def test_of_many_that_make_the_same_sandbox_at_once_one_does(server: RunningServer) -> None:
    asking = [server.ask("PUT", "/v1/sandboxes/same", {"labels": {"by": str(number)}}) for number in range(8)]
    answers = await asyncio.gather(*asking)
    assert sorted(answer.status for answer in answers) == [200] * 7 + [201]
    assert len({answer.body and str(answer.json()["labels"]) for answer in answers}) == 1
    clients = [server.sandbox("also-same") for _ in range(8)]
    results = await asyncio.gather(*(client.exec("echo x >> file; wc -l < file") for client in clients))
    assert sorted(int(result.stdout) for result in results) == list(range(1, 9))
    for client in clients:
        await client.aclose()


async def test_making_and_destroying_at_once_ends_in_one_or_the_other(server: RunningServer) -> None:
    clients = [server.sandbox("contended") for _ in range(6)]

    async def use(client: Any, number: int) -> None:
        for _ in range(5):
            try:
                await (client.destroy() if number % 3 == 0 else client.exec("echo x"))
            except AtollError as problem:
                assert problem.code in (ErrorCode.AGENT_LOST, ErrorCode.SANDBOX_NOT_RUNNING)

    await asyncio.gather(*(use(client, number) for number, client in enumerate(clients)))
    assert (await clients[0].exec("echo fine")).stdout == "fine\n"
    for client in clients:
        await client.aclose()


async def test_a_command_is_cancelled_when_its_task_is(server: RunningServer) -> None:
    sandbox = server.sandbox("cancelled")
    other = await sandbox.create_session("other")
    await other.exec("mkfifo begun")
    running = asyncio.create_task(sandbox.exec("echo > begun; sleep 1000"))
    await other.exec("cat begun")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await sandbox.exec("echo next")).stdout == "next\n"
    assert (await sandbox.exec(["pgrep", "-x", "sleep"])).exit_code == 1
    await sandbox.aclose()


async def test_a_command_that_several_follow_runs_once(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("followed", url=server.unix_url)
    stream = sandbox.exec_stream("echo x >> n; for i in 1 2 3 4 5; do echo $i; sleep 0.02; done")

    async def follow() -> list[Any]:
        return [event async for event in half.iterate(stream)]

    events = [event for got in await asyncio.gather(*(follow() for _ in range(4))) for event in got]
    assert sorted("".join(event.data for event in events).split()) == ["1", "2", "3", "4", "5"]
    assert sorted(event.type for event in events if event.type in ("start", "complete")) == ["complete", "start"]
    assert (await half.run(sandbox.exec, "wc -l < n")).stdout.strip() == "1"


async def test_a_file_that_several_write_is_whole(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("shared-file", url=server.unix_url)
    file = sandbox.open_file("a", "wb")

    async def write(writer: int) -> None:
        for number in range(200):
            await half.run(file.write, b"%d:%06d;" % (writer, number) + b"x" * 4000 + b"\n")

    await asyncio.gather(*map(write, range(4)))
    await half.close(file)
    content = (await half.run(sandbox.read_file, "a", encoding="bytes")).content
    lines = sorted(line.split(b";") for line in content.splitlines())
    assert lines == [[b"%d:%06d" % (w, n), b"x" * 4000] for w in range(4) for n in range(200)]


async def test_what_is_asked_for_now_and_then_misses_nothing(server: RunningServer) -> None:
    """A view, a watch and a log, each with a wait that is given up before something comes."""
    sandbox = server.sandbox("polled")
    terminal = await sandbox.create_terminal(shell=["cat"])
    process = await sandbox.start_process("mkfifo go; cat go; sleep 1000")
    async with terminal.attach() as view, sandbox.watch("/tmp") as watch, process.stream_logs() as log:
        for _ in range(3):
            for stream in (view, watch, log):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.2)
        await terminal.write("seen\n")
        shown = b""
        while shown.count(b"seen") < 2:  # what was typed, and what cat says
            shown += await asyncio.wait_for(view.read(), HANG_SECONDS)
        await sandbox.write_file("/tmp/new", "1")
        assert (await asyncio.wait_for(anext(watch), HANG_SECONDS)).path == "/tmp/new"
        await sandbox.exec("echo late > go")
        assert (await asyncio.wait_for(anext(log), HANG_SECONDS)).data == "late\n"
    await sandbox.destroy()
    await sandbox.aclose()


EMBEDDED = """
import atoll
from atoll.client_sync.plumbing import local_server
from atoll.client_sync.plumbing.server import find_server
from atoll.protocol.sandboxes import ServerInfo
local_server.COMMAND += ["--idle-exit", "5"]
sandbox = atoll.get_sandbox("embedded", sleep_after=0.1)
print("ready", flush=True)
input()
sandbox.exec("echo x >> file")
print(find_server().ask("GET", "/v1/server", ServerInfo).pid, sandbox.exec("wc -l < file").stdout)
"""


async def test_the_server_starts_by_itself_once_and_leaves_when_nobody_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ATOLL_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("ATOLL_URL", raising=False)
    (pid,) = {pid for pid, _ in await run_at_once(EMBEDDED, times=10)}
    await wait_for_end(pid)
    log = (tmp_path / "state/server.log").read_text()
    assert log.count("ready on") == 1
    assert "nobody needs this server any more" in log
    assert not (tmp_path / "run/server.sock").exists()
    ((later, lines),) = await run_at_once(EMBEDDED + "sandbox.destroy()", times=1)
    assert lines == 11  # the files were kept
    assert later != pid
    await wait_for_end(later)


@pytest.fixture
def hasty_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalServer:
    """A machine whose server leaves after a third of a second without clients."""
    monkeypatch.setattr(local_server, "COMMAND", [*local_server.COMMAND, "--idle-exit", "0.3"])
    return LocalServer(tmp_path / "state", tmp_path / "run")


async def visit(local: LocalServer) -> int:
    """A client with connections of its own; the server's pid."""
    pid, descriptor = await meet(local)
    os.close(descriptor)
    return pid


async def meet(local: LocalServer) -> tuple[int, int]:
    """The same, with a descriptor of its process, which never comes to mean another."""
    server = Server("", None, local)
    info = await server.ask("GET", "/v1/server", ServerInfo)
    descriptor = os.pidfd_open(info.pid)  # while we are connected, it stays
    server.transport.close_idle()
    return info.pid, descriptor


async def test_all_clients_that_come_around_the_end_of_the_server_are_served(hasty_server: LocalServer) -> None:
    """The server stands still while they come, at another moment of its last second each time.

    Afterwards everything it waits for has happened at once: the end of its patience, and its clients.
    """
    pids = set()
    for number in range(20):
        pid, process = await meet(hasty_server)
        pids.add(pid)
        await asyncio.sleep(number * 0.05)
        with suppress(ProcessLookupError):  # it has left
            signal.pidfd_send_signal(process, signal.SIGSTOP)
        clients = asyncio.gather(*(visit(hasty_server) for _ in range(10)))
        await asyncio.sleep(0.5)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGCONT)
        os.close(process)
        pids.update(await clients)
    assert len(pids) > 2  # so some came to one, and some to the next
    for pid in pids:
        await wait_for_end(pid)


async def test_a_server_whose_client_comes_at_the_last_moment_stays(hasty_server: LocalServer) -> None:
    """That client has looked the socket up before it was put away, which is the same as looking where it is now."""
    put_away = hasty_server.runtime / "server.sock.leaving"
    stayed, pids = False, set()
    while not stayed:
        pids.add(pid := await visit(hasty_server))
        with suppress(TimeoutError):  # it left before we looked
            async with asyncio.timeout(10):
                while not put_away.exists():
                    await asyncio.sleep(0.001)
        with suppress(FileNotFoundError, ConnectionRefusedError):  # we were too late
            late = await connect(UnixAddress(str(put_away)), HANG_SECONDS)
            while put_away.exists():
                await asyncio.sleep(0.01)
            stayed = await visit(hasty_server) == pid
            late.close()
    for pid in pids:
        await wait_for_end(pid)
    assert "somebody came at the last moment" in (hasty_server.state / "server.log").read_text()


async def run_at_once(program: str, times: int) -> list[tuple[int, int]]:
    """The numbers that each of so many programs prints, which go on only when all are there."""
    pipe = subprocess.PIPE
    users = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=pipe, stdout=pipe)
        for _ in range(times)
    ]
    for user in users:
        assert user.stdout and await user.stdout.readline() == b"ready\n"
    async with asyncio.timeout(HANG_SECONDS):
        said = await asyncio.gather(*(user.communicate(b"\n") for user in users))
    assert [user.returncode for user in users] == [0] * times
    return [(int(words[0]), int(words[1])) for words in (output.split() for output, _ in said)]


async def test_leaving_a_stream_ends_its_command_also_after_an_error(server: RunningServer) -> None:
    sandbox = server.sandbox("left-early")
    with pytest.raises(AtollError) as kept:  # the error is kept, with all that its traceback holds
        await sandbox.exec(["nosuch"])
    async for event in sandbox.exec_stream("while :; do echo x; sleep 0.05; done"):
        if event.type == "stdout":
            break
    assert (await sandbox.exec("echo after")).stdout == "after\n"
    assert kept.value.code is ErrorCode.COMMAND_NOT_FOUND
    await sandbox.destroy()


async def test_closing_the_stream_of_a_silent_command_ends_it_before_its_answer_has_begun(
    half: Half, server: RunningServer
) -> None:
    sandbox = half.get_sandbox("silent", url=server.unix_url)
    other = await half.run(sandbox.create_session, "other")
    stream = sandbox.exec_stream("x=kept; touch begun; sleep 4711; touch late")

    async def read() -> list[str]:
        return [event.type async for event in half.iterate(stream)]

    reading = asyncio.create_task(read())
    while not await half.run(sandbox.exists, "begun"):
        await asyncio.sleep(0.01)
    await half.close(stream)
    assert await reading == ["start"]
    await half.run(other.exec, "while pgrep -xf 'sleep 4711'; do sleep 0.02; done")
    assert (await half.run(sandbox.exec, "test -e late || echo $x")).stdout == "kept\n"
    await half.run(sandbox.destroy)


async def test_a_buffered_pipe_as_input_may_outlast_the_command(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("piped", url=server.unix_url)
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe, open(writing, "wb", buffering=0) as writer:
        writer.write(b"first\nsecond\n")
        assert pipe.readline() == b"first\n"  # so the rest is in the buffer
        result = await half.run(sandbox.exec, "head -n 1", stdin=pipe)
        assert (result.stdout, result.exit_code) == ("second\n", 0)
        result = await half.run(sandbox.exec, "cat", stdin=pipe, timeout=0.2)
        assert result.timed_out
    await half.run(sandbox.destroy)


async def test_a_temporary_sandbox_does_not_come_back_after_its_block(server: RunningServer) -> None:
    with temporary_sandbox(url=server.unix_url) as sandbox:
        assert sandbox.exec("true").success
    with pytest.raises(LookupError) as caught:
        sandbox.exec("true")
    assert isinstance(caught.value, AtollError)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "wrong",
    [
        lambda url: get_sandbox("x", labels=["x"], url=url),  # type: ignore[arg-type]
        lambda url: get_sandbox("x", env=["a"], url=url),  # type: ignore[arg-type]
        lambda url: get_sandbox("x", url=url).exec("true", env="A=1"),  # type: ignore[arg-type]
        lambda url: get_sandbox("x", url=url).set_env_vars(None),  # type: ignore[arg-type]
        lambda url: get_sandbox("x", url=url).set_labels("abc"),  # type: ignore[arg-type]
        lambda url: list_sandboxes(labels="x", url=url),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_dictionary_is_a_typed_error(server: RunningServer, wrong: Callable[[str], object]) -> None:
    with pytest.raises(AtollError, match="dictionary"):
        wrong(server.unix_url)
