"""Background processes as users have them: through both halves of the SDK, over HTTP, and across the server's death."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.processes import ProcessStatus
from atoll.values.processes import ProcessEvent
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import RunningServer, connect_unix
from tests.system.test_server import first_process, wait_for_event

WEB = ["python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "8080"]
COUNTING = "i=0; while :; do echo line $i; i=$((i+1)); sleep 0.001; done"


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def half(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Half]:
    half: Half = request.param()
    yield half
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.shared_server.cache_clear()


async def test_a_process_from_its_start_to_its_end(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("life", url=server.unix_url)
    process = await half.run(sandbox.start_process, "trap 'exit 7' TERM; echo up >&2; while :; do sleep 0.02; done")
    assert re.fullmatch("proc-[0-9a-f]{8}", process.id)
    assert (process.status, process.exit_code, process.end_time) == ("running", None, None)
    assert (process.session_id, process.command[:4]) == ("default", "trap")
    assert (await half.run(process.wait_for_log, "up", timeout=60)).stream == "stderr"
    assert await half.run(sandbox.is_process_running, process.id)
    (listed,) = await half.run(sandbox.list_processes)
    assert (listed.id, listed.pid, listed.start_time) == (process.id, process.pid, process.start_time)
    killed = await half.run(process.kill)
    assert (killed.status, killed.exit_code) == (ProcessStatus.KILLED, 7)
    assert not await half.run(sandbox.is_process_running, process.id)
    assert not await half.run(sandbox.is_process_running, "never-was")
    assert (await half.run(process.refresh)).info == killed.info
    assert (await half.run(process.wait_for_exit)).info == killed.info
    logs = await half.run(sandbox.get_process_logs, process.id)
    assert (logs.stdout, logs.stderr[:3], logs.dropped) == ("", "up\n", 0)
    assert logs.number == len(logs.stderr_bytes) + 1  # the exit; the shell may say that its child was terminated
    assert await half.run(sandbox.cleanup_completed_processes) == 1
    with pytest.raises(LookupError) as caught:
        await half.run(sandbox.get_process, process.id)
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.PROCESS_NOT_FOUND


async def test_logs_right_after_the_start_of_a_quick_command_have_its_output(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("quick", url=server.unix_url)
    for _ in range(20):
        process = await half.run(sandbox.start_process, "echo one; echo two >&2; exit 3")
        logs = await half.run(process.logs)
        assert (logs.stdout, logs.stderr) == ("one\n", "two\n")
    asked = {"command": "echo quick", "id": "http"}
    assert (await server.ask("POST", "/v1/sandboxes/quick/processes", asked)).status == 201
    assert (await server.ask("GET", "/v1/sandboxes/quick/processes/http/logs")).json()["stdout"] == "quick\n"
    slow = await half.run(sandbox.start_process, "echo begun; sleep 600")
    assert (await half.run(slow.logs)).stdout == "begun\n"


async def test_a_web_server_is_waited_for_and_used(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("web", url=server.unix_url)
    web = await half.run(sandbox.spawn, WEB, process_id="web", cwd="/usr")
    ready = await half.run(web.wait_for_port, 8080, timeout="60s")
    assert ready.status == "running"
    fetch = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8080/').read().decode())"
    assert "bin/" in (await half.run(sandbox.exec, ["python3", "-c", fetch])).stdout
    found = await half.run(web.wait_for_log, re.compile(r'"GET (\S+) HTTP/1.1" (\d+)'), timeout=60)
    assert found.match.groups() == ("/", "200")
    with pytest.raises(TimeoutError) as caught:
        await half.run(web.wait_for_port, 8080, path="/no/such/page", timeout=0.3)
    assert "/no/such/page" in str(caught.value) and "status 404" in str(caught.value)
    with pytest.raises(TimeoutError, match="nobody took the connection"):
        await half.run(web.wait_for_port, 8081, timeout=0.3)
    assert await half.run(sandbox.kill_all_processes) == 1
    assert await half.run(sandbox.kill_all_processes) == 0


async def test_a_session_starts_processes_that_belong_to_the_sandbox(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("sessions", url=server.unix_url)
    session = await half.run(sandbox.create_session, "mine", cwd="/usr", env={"A": "1"})
    process = await half.run(session.start_process, "echo $A in $PWD; sleep 1000", process_id="owned")
    await half.run(process.wait_for_log, "1 in /usr")
    await half.run(session.delete)
    (listed,) = await half.run(sandbox.list_processes)
    assert (listed.id, listed.status, listed.session_id) == ("owned", "running", "mine")


async def test_waiting_in_vain_says_what_the_process_said_last(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("vain", url=server.unix_url)
    process = await half.run(sandbox.start_process, "echo reading config; echo no database >&2; sleep 1000")
    await half.run(process.wait_for_log, "no database")
    with pytest.raises(TimeoutError) as late:
        await half.run(process.wait_for_log, "listening", timeout=0.3)
    assert isinstance(late.value, AtollError) and late.value.code is ErrorCode.PROCESS_READY_TIMEOUT
    assert "no database" in late.value.message and "no database" in str(late.value.context["log"])
    with pytest.raises(TimeoutError):
        await half.run(process.wait_for_exit, timeout=0.01)
    process = await half.run(sandbox.start_process, "echo giving up; exit 9")
    for wait, arguments in ((process.wait_for_log, ("listening",)), (process.wait_for_port, (8080,))):
        with pytest.raises(AtollError) as over:
            await half.run(wait, *arguments)
        assert over.value.code is ErrorCode.PROCESS_EXITED_BEFORE_READY
        assert (over.value.context["exit_code"], over.value.context["log"]) == (9, "giving up")


async def test_what_cannot_be_asked_is_refused_before_it_is_sent(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("refused", url="http://127.0.0.1:1")
    for call, arguments, options in (
        (sandbox.start_process, ([],), {}),
        (sandbox.start_process, (7,), {}),
        (sandbox.start_process, ("true",), {"process_id": "a/b"}),
        (sandbox.start_process, ("true",), {"restart": "sometimes"}),
        (sandbox.start_process, ("true",), {"timeout": "soon"}),
        (sandbox.start_process, ("true",), {"env": {"A=": "b"}}),
        (sandbox.kill_process, ("x", "SIGNOTHING"), {}),
        (sandbox.get_process, ("",), {}),
        (sandbox.get_process_logs, (None,), {}),
    ):
        with pytest.raises(ValueError) as caught:
            await half.run(call, *arguments, **options)
        assert isinstance(caught.value, AtollError) and caught.value.remedy
    for since in (-1, "1", True, 2**64):
        with pytest.raises(ValueError):
            sandbox.stream_process_logs("x", since=since)


async def test_a_stream_gives_history_then_what_comes_then_the_end(half: Half, server: RunningServer) -> None:
    sandbox = half.get_sandbox("stream", url=server.unix_url)
    await half.run(sandbox.exec, "mkfifo go")
    command = "printf 'caf\\303'; read x < go; printf '\\251\\n'; printf 'bad \\377' >&2; exit 3"
    process = await half.run(sandbox.start_process, command)
    events: list[ProcessEvent] = []
    async for event in half.iterate(process.stream_logs()):
        if not events:
            await half.run(sandbox.exec, "echo > go")
        events.append(event)
    assert [event.type for event in events if event.type != "stderr"] == ["stdout", "stdout", "exit"]
    assert "".join(event.data for event in events if event.type == "stdout") == "café\n"
    assert b"".join(event.data_bytes for event in events if event.type == "stderr") == b"bad \xff"
    assert (events[-1].exit_code, events[-1].status, events[-1].number) == (3, ProcessStatus.FAILED, 12)
    again = [event async for event in half.iterate(process.stream_logs(follow=False, since=events[0].number))]
    assert again[-1] == events[-1]
    assert sum(len(event.data_bytes) for event in again) == 11 - events[0].number
    for position, event in enumerate(events):
        for follow in (True, False):
            rest = [event async for event in half.iterate(process.stream_logs(follow=follow, since=event.number))]
            assert [(event.type, event.number) for event in rest] == [
                (event.type, event.number) for event in events[position + 1 :]
            ]
    logs = await half.run(process.logs)
    assert [event async for event in half.iterate(process.stream_logs(since=logs.number))] == []


async def test_a_stream_cut_by_the_death_of_the_server_goes_on_without_loss_or_repetition(
    own_server: RunningServer,
) -> None:
    sandbox = own_server.sandbox("cut")
    process = await sandbox.start_process(COUNTING, process_id="counting")
    seen, since = b"", 0
    for _ in range(2):
        with pytest.raises(ConnectionError):
            async for event in process.stream_logs(since=since):
                assert event.type == "stdout"
                seen, since = seen + event.data_bytes, event.number
                if len(seen) > 2000 and own_server.process.poll() is None:
                    await own_server.kill()
        await own_server.start()
    (found,) = await sandbox.list_processes()
    assert (found.id, found.pid, found.status) == ("counting", process.pid, "running")
    killed = await process.kill()
    async for event in process.stream_logs(since=since):
        seen += event.data_bytes if event.type == "stdout" else b""  # bash may say that its child was terminated
    lines = seen.decode().splitlines()
    assert lines == [f"line {number}" for number in range(len(lines))]
    logs = await process.logs()
    assert logs.stdout_bytes == seen and logs.number == len(seen) + len(logs.stderr_bytes) + 1
    assert killed.status == "killed"
    await sandbox.aclose()


async def test_a_sandbox_that_was_stopped_starts_again_without_processes(server: RunningServer) -> None:
    sandbox = server.sandbox("stopped")
    await sandbox.start_process("sleep 1000", restart="always")
    os.kill(first_process(server, "stopped"), signal.SIGKILL)
    await wait_for_event(sandbox, "stopped")
    assert await sandbox.list_processes() == []
    assert (await sandbox.exec(["pgrep", "-x", "sleep"])).exit_code == 1
    await sandbox.aclose()


async def test_a_reader_who_stops_reading_costs_the_server_little(server: RunningServer) -> None:
    sandbox = server.sandbox("lazy")
    process = await sandbox.start_process("mkfifo go; read x < go; head -c 300000000 /dev/zero")
    lazy = [sandbox.stream_process_logs(process.id) for _ in range(5)]
    before = server.memory()
    starting = asyncio.gather(*(anext(stream) for stream in lazy))
    await sandbox.exec("until [ -p go ]; do sleep 0.01; done; echo > go")
    await starting
    assert (await process.wait_for_exit()).exit_code == 0
    assert server.memory() - before < 64 * 2**20
    for stream in lazy:
        events = [event async for event in stream]
        assert any(event.type == "dropped" for event in events)
        assert [(event.type, event.number) for event in events[-1:]] == [("exit", 300_000_001)]
    await sandbox.aclose()


# Over HTTP.


async def test_processes_as_json(server: RunningServer) -> None:
    path = "/v1/sandboxes/plain/processes"
    started = await server.ask("POST", path, {"command": "echo out; printf '\\377' >&2; sleep 1000", "id": "p"})
    assert (started.status, started.json()["status"]) == (201, "running")
    assert (await server.ask("POST", path, {"command": "true", "id": "p"})).status == 409
    assert [process["id"] for process in (await server.ask("GET", path)).json()["processes"]] == ["p"]
    while (logs := (await server.ask("GET", f"{path}/p/logs")).json())["number"] < 5:
        await asyncio.sleep(0.01)
    assert logs == {"stdout": "out\n", "stderr": "\ufffd", "stderr_base64": "/w==", "number": 5}
    assert (await server.ask("GET", f"{path}/p/logs?since=3")).json()["stdout"] == "\n"
    late = await server.ask("POST", f"{path}/p/wait-for-port", {"port": 8080, "timeout": 0.1})
    assert (late.status, late.json()["code"]) == (504, "PROCESS_READY_TIMEOUT")
    late = await server.ask("POST", f"{path}/p/wait-for-exit", {"timeout": "50ms"})
    assert (late.status, late.json()["code"]) == (504, "PROCESS_EXIT_TIMEOUT")
    killed = (await server.ask("POST", f"{path}/p/kill", {"signal": "KILL"})).json()
    assert (killed["status"], killed["exit_code"]) == ("killed", 137)
    assert (await server.ask("GET", f"{path}/p")).json() == killed
    assert (await server.ask("POST", f"{path}/p/wait-for-exit", {})).json() == killed
    early = await server.ask("POST", f"{path}/p/wait-for-port", {"port": 8080})
    assert (early.status, early.json()["code"]) == (409, "PROCESS_EXITED_BEFORE_READY")
    assert (await server.ask("DELETE", path)).json() == {"count": 0}
    assert (await server.ask("POST", f"{path}/clean-up")).json() == {"count": 1}
    gone = await server.ask("GET", f"{path}/p/logs", headers={"Accept": "text/event-stream"})
    assert (gone.status, gone.json()["code"]) == (404, "PROCESS_NOT_FOUND")


async def test_an_event_source_comes_back_where_it_stopped(server: RunningServer) -> None:
    path = "/v1/sandboxes/events/processes"
    await server.ask("POST", path, {"command": "mkfifo go; echo one; read x < go; echo two; exit 4", "id": "p"})
    (first,) = await asyncio.to_thread(read_events, server, f"{path}/p/logs", "", 1)
    assert (first[0], json.loads(first[2])["data"]) == ("4", "one\n")
    await server.ask("POST", "/v1/sandboxes/events/exec", {"command": "echo > go"})
    rest = await asyncio.to_thread(read_events, server, f"{path}/p/logs", first[0], 99)
    assert [(number, name) for number, name, _ in rest] == [("8", "stdout"), ("9", "exit")]
    assert await asyncio.to_thread(read_events, server, f"{path}/p/logs", "9", 99) == []
    assert json.loads(rest[-1][2])["process"]["exit_code"] == 4
    whole = await server.ask("GET", f"{path}/p/logs?follow=false", headers={"Accept": "text/event-stream"})
    assert whole.body.count(b"event: stdout") == 2


def read_events(server: RunningServer, path: str, last: str, count: int) -> list[tuple[str, str, str]]:
    """Id, name and data of so many events, or of all there are; then the connection is cut."""
    headers = f"Host: localhost\r\nAccept: text/event-stream\r\nLast-Event-ID: {last}\r\nConnection: close\r\n"
    with closing(connect_unix(server.socket)) as peer, peer.makefile("rb") as answer:
        peer.sendall(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())
        events, fields = [], {}
        for line in answer:
            name, colon, value = line.decode().strip().partition(": ")
            if colon and name in ("id", "event", "data"):
                fields[name] = value
            elif not line.strip() and "data" in fields:
                events.append((fields["id"], fields["event"], fields["data"]))
                fields = {}
            if len(events) == count:
                break
        return events
