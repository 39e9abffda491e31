"""The server as a process: who may come in, many at once, and what is left when it is killed."""

from __future__ import annotations

import array
import asyncio
import base64
import hashlib
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from atoll.agent.commands.process_tree import parse_stat
from atoll.client.commands import AsyncCommands
from atoll.client.sandbox import AsyncSandbox
from atoll.protocol.commands import ExecShell
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import MAX_PAYLOAD, FrameKind, encode_frame
from atoll.protocol.messages import encode_message
from atoll.protocol.sandboxes import SandboxEvent, SandboxOptions, SandboxState
from atoll.store.choose import open_store
from atoll.store.keys import Keys, id_of
from tests import kept
from tests.system.conftest import serving
from tests.system.serving import HANG_SECONDS, Answer, RunningServer, connect_unix, wait_for_end

SANDBOXES, SESSIONS, CLIENTS, COMMANDS = 10, 3, 50, 1_000
BEFORE_THE_KILL = 300
FULL_SECONDS = 0.3  # in which somebody who reads would have taken some
NUMBERS = "array.array('I', range(25 * 2**20)).tobytes()"  # a hundred megabytes, none like another


class Crowd:
    """Clients that send numbered commands all over the place. A command leaves its number in its session's file."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._numbers = iter(range(COMMANDS))
        self._random = random.Random(7)
        self.answered: set[int] = set()
        self.lost: Counter[ErrorCode] = Counter()
        self.is_half_way = asyncio.Event()

    async def set_up(self) -> None:
        for name in map(_sandbox, range(SANDBOXES)):
            sandbox = self._server.sandbox(name)
            for session in map(_session, range(1, SESSIONS)):
                await sandbox.create_session(session)
            await sandbox.aclose()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(self._be_a_client(has_tcp=client % 2 == 1))

    async def _be_a_client(self, *, has_tcp: bool) -> None:
        sandboxes = [self._server.sandbox(_sandbox(number), tcp=has_tcp) for number in range(SANDBOXES)]
        for number in self._numbers:
            sandbox = self._random.choice(sandboxes)
            session = AsyncCommands(sandbox._sandbox, _session(self._random.randrange(SESSIONS)))
            await self._command(session, number)
        for sandbox in sandboxes:
            await sandbox.aclose()

    async def _command(self, session: AsyncCommands, number: int) -> None:
        name = session._session_id
        trace = f"n=$((n+1)); echo {number} >> {name}.log"
        command = f"{trace}; echo out-{number}-$SECRET; echo err-{number} >&2; (exit {number % 200})"
        while True:
            try:
                result = await session.exec(command, env={"SECRET": str(number * 7)})
            except AtollError as problem:
                if problem.code is ErrorCode.SERVER_NOT_REACHABLE:  # so nothing was sent
                    continue
                self.lost[problem.code] += 1
                return
            assert result.stdout == f"out-{number}-{number * 7}\n"
            assert result.stderr == f"err-{number}\n"
            assert result.exit_code == number % 200
            self.answered.add(number)
            if len(self.answered) == BEFORE_THE_KILL:
                self.is_half_way.set()
            return

    async def executed(self) -> list[int]:
        """The numbers that commands left, after checking that the shells counted as many."""
        found: list[int] = []
        for name in map(_sandbox, range(SANDBOXES)):
            sandbox = self._server.sandbox(name)
            for session in map(_session, range(SESSIONS)):
                shell = AsyncCommands(sandbox._sandbox, session)
                result = await shell.exec(f"echo ${{n:-0}}; cat {session}.log")
                count, *numbers = map(int, result.stdout.split())
                found += numbers
                if not self.lost:  # a shell whose command was cut off may have been replaced
                    assert count == len(numbers)
            await sandbox.aclose()
        return found


def _sandbox(number: int) -> str:
    return f"crowd-{number}"


def _session(number: int) -> str:
    return f"session-{number}" if number else "default"


async def test_of_a_thousand_commands_by_fifty_clients_none_is_lost_doubled_or_mixed_up(server: RunningServer) -> None:
    crowd = Crowd(server)
    await crowd.set_up()
    await crowd.run()
    assert not crowd.lost
    assert crowd.answered == set(range(COMMANDS))
    assert sorted(await crowd.executed()) == list(range(COMMANDS))


async def test_a_kill_in_the_middle_leaves_sandboxes_and_sessions_and_runs_nothing_twice(
    own_server: RunningServer,
) -> None:
    crowd = Crowd(own_server)
    await crowd.set_up()
    bystander = own_server.sandbox(_sandbox(0))
    session = await bystander.create_session("bystander")
    await session.exec("cd /tmp; greet() { echo hello $who; }; who=you")
    shell = (await session.exec("echo $$")).stdout
    running = asyncio.create_task(crowd.run())
    await crowd.is_half_way.wait()
    port = own_server.port
    await own_server.kill()
    own_server.options = ("--port", str(port))
    await own_server.start()
    await running
    assert set(crowd.lost) <= {ErrorCode.SERVER_LOST}
    assert crowd.lost
    assert len(crowd.answered) + crowd.lost.total() == COMMANDS
    executed = Counter(await crowd.executed())
    assert set(executed.values()) == {1}
    assert crowd.answered <= set(executed)
    assert (await session.exec("pwd; greet; echo $$")).stdout == f"/tmp\nhello you\n{shell}"
    await bystander.aclose()


IN_FLIGHT = {
    "default": "sleep 4321",
    "loop": "while :; do :; done",
    "deaf": "trap '' TERM INT; sleep 4321",
    "deaf-child": "sh -c 'trap \"\" TERM INT; while :; do sleep 1; done'",
    "input": "read line; sleep 4321",
    "pipe": "yes | grep no",
}


async def test_sessions_whose_commands_run_when_the_server_is_killed_keep_all_state_and_answer(
    own_server: RunningServer,
) -> None:
    """Each has a command in flight and another that waits for it."""
    sandboxes = [own_server.sandbox(name) for name in ("one", "two")]
    sessions = [AsyncCommands(sandbox._sandbox, name) for sandbox in sandboxes for name in IN_FLIGHT]
    for sandbox in sandboxes:
        for name in list(IN_FLIGHT)[1:]:
            await sandbox.create_session(name, env={"OWN": name})
    shells = [await set_state(session) for session in sessions]
    doomed = [asyncio.create_task(session.exec(in_flight(session))) for session in sessions]
    for sandbox in sandboxes:
        await wait_until_begun(sandbox, len(IN_FLIGHT))
    doomed += [asyncio.create_task(session.exec("echo waited >> ~/$name.log")) for session in sessions]
    while not all([await has_all_waiting(sandbox) for sandbox in sandboxes]):
        await asyncio.sleep(0.01)
    await own_server.kill()
    for failure in await asyncio.gather(*doomed, return_exceptions=True):
        assert isinstance(failure, AtollError)
        assert failure.code is ErrorCode.SERVER_LOST
    await own_server.start()
    for sandbox in sandboxes:
        assert (await sandbox.status()).state is SandboxState.RUNNING
        assert {info.id for info in await sandbox.list_sessions()} == {*IN_FLIGHT, "wait"}
    for session, shell in zip(sessions, shells, strict=True):
        assert await state_of(session) == shell
        log = (await session.exec("cat ~/$name.log")).stdout.split()
        assert log in (["begun"], ["begun", "waited"])
    for sandbox in sandboxes:
        assert (await sandbox.exec(["pgrep", "-x", "sleep|yes|grep"])).stdout == ""
        await sandbox.aclose()


async def set_state(session: AsyncCommands) -> str:
    """Directory, variables, an array, a function, an alias, an option, and a file for each command to leave a trace."""
    name = session._session_id
    await session.exec(
        f"mkdir -p /tmp/{name}; cd /tmp/{name}; name={name}; export SEEN={name}; list=(a 'b c')"
        f"\nsay() {{ echo $name-$SEEN-${{list[1]}}; }}; alias hi='echo hi'; set -o noclobber"
    )
    return await state_of(session)


async def state_of(session: AsyncCommands) -> str:
    """With the shell's own pid, which says that it is the same shell."""
    result = await session.exec("pwd; say; alias hi; set -o | grep noclobber; echo ${OWN:-none} $$")
    assert result.exit_code == 0, result
    return result.stdout


def in_flight(session: AsyncCommands) -> str:
    return f"echo begun >> ~/$name.log; {IN_FLIGHT[session._session_id]}"


async def wait_until_begun(sandbox: AsyncSandbox, count: int) -> None:
    """All commands have left their trace."""
    wait = await sandbox.create_session("wait")
    await wait.exec(f"cd; until [ $(ls *.log 2>/dev/null | wc -l) = {count} ]; do sleep 0.01; done")


async def has_all_waiting(sandbox: AsyncSandbox) -> bool:
    waiting = {info.id: info.commands_waiting for info in await sandbox.list_sessions()}
    return all(waiting[name] == 2 for name in IN_FLIGHT)


async def test_a_call_that_is_under_way_when_the_server_dies_gets_a_typed_error(own_server: RunningServer) -> None:
    sandbox = own_server.sandbox("cut-off")
    async with sandbox.exec_stream("echo x >> begun; echo begun; sleep 1000") as stream:
        with pytest.raises(ConnectionError) as caught:
            async for event in stream:
                if event.data == "begun\n":
                    await own_server.kill()
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is ErrorCode.SERVER_LOST
    await own_server.start()
    assert (await sandbox.exec("cat begun")).stdout == "x\n"
    await sandbox.aclose()


async def test_what_ended_while_no_server_ran_is_stopped_and_what_slept_still_sleeps(own_server: RunningServer) -> None:
    ended, asleep = own_server.sandbox("ended"), own_server.sandbox("asleep", SandboxOptions(sleep_after=0.1))
    await ended.exec("echo kept > file")
    await asleep.exec("state=kept")
    await wait_for_event(asleep, "frozen")
    agent = first_process(own_server, "ended")
    await own_server.kill()
    os.kill(agent, signal.SIGKILL)
    await wait_for_end(agent)
    await own_server.start()
    assert (await asleep.status()).state is SandboxState.FROZEN
    status = await ended.status()
    assert (status.state, status.cause) == (SandboxState.STOPPED, "it ended while no server ran")
    assert (await ended.exec("cat file")).stdout == "kept\n"
    assert (await asleep.exec("echo $state")).stdout == "kept\n"
    await ended.aclose()
    await asleep.aclose()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "exec", {"command": "true"}, 200),
        ("GET", "files?path=/", None, 200),
        ("GET", "files/content?path=/etc/passwd", None, 200),
        ("PUT", "files/content?path=new", b"content", 200),
        ("GET", "files/info?path=/", None, 200),
        ("GET", "files/watch?path=/workspace", None, 200),
        ("GET", "terminals", None, 200),
        ("POST", "terminals", {}, 201),
        ("DELETE", "terminals/none", None, 404),
        ("GET", "processes/none/logs", None, 404),
        ("POST", "processes/none/wait-for-exit", {}, 404),
    ],
)
async def test_a_sandbox_whose_first_process_was_killed_is_there_for_whoever_comes_next(
    server: RunningServer, method: str, path: str, body: object, status: int
) -> None:
    await server.ask("PUT", "/v1/sandboxes/ended", {})
    await server.ask("GET", "/v1/sandboxes/ended/terminals")  # so a connection to its agent is kept
    agent = first_process(server, "ended")
    os.kill(agent, signal.SIGSTOP)  # so that it reads nothing between the kill and its end
    while parse_stat(Path(f"/proc/{agent}/stat").read_bytes()).state != b"T":
        await asyncio.sleep(0)
    os.kill(agent, signal.SIGKILL)
    answer = await server.ask(method, f"/v1/sandboxes/ended/{path}", body)
    assert answer.status == status, answer.body


async def test_a_damaged_record_keeps_nobody_from_the_other_sandboxes(own_server: RunningServer) -> None:
    await own_server.ask("PUT", "/v1/sandboxes/whole", {})
    await own_server.end()
    kept.put(own_server.state, "damaged", "created", b"")
    await own_server.start()
    assert [info["id"] for info in (await own_server.ask("GET", "/v1/sandboxes")).json()["sandboxes"]] == ["whole"]
    assert_is_problem(await own_server.ask("GET", "/v1/sandboxes/damaged"), "STATE_DIRECTORY_UNUSABLE")
    await own_server.end()
    kept.remove(own_server.state, "damaged")


async def test_a_server_may_open_what_it_may_and_its_sandboxes_what_they_could_before(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        async with serving(tmp_path) as server:
            assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
            sandbox = server.sandbox("files")
            assert (await sandbox.exec("ulimit -n; ulimit -Hn")).stdout == f"1024\n{hard}\n"
            await sandbox.aclose()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_told_to_end_does_and_its_sandboxes_live_on(
    own_server: RunningServer, number: signal.Signals
) -> None:
    sandbox = own_server.sandbox("lives-on")
    await sandbox.exec("state=kept")
    await own_server.end(number)
    assert not own_server.socket.exists()
    assert "Traceback" not in own_server.log.read_text()
    await own_server.start()
    assert (await sandbox.exec("echo $state")).stdout == "kept\n"
    await sandbox.aclose()


async def test_a_second_server_on_the_same_state_says_so_and_leaves_the_first_alone(server: RunningServer) -> None:
    directories = ["--state-dir", str(server.state), "--runtime-dir", str(server.socket.parent)]
    command = [sys.executable, "-m", "atoll.cli", "serve", *directories]
    second = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    _, said = await asyncio.wait_for(second.communicate(), HANG_SECONDS)
    assert second.returncode != 0
    assert b"STATE_DIRECTORY_IN_USE" in said
    assert (await server.ask("GET", "/v1/server")).json()["pid"] == server.process.pid


async def test_a_server_of_another_state_does_not_take_the_socket_of_the_first(
    server: RunningServer, tmp_path: Path
) -> None:
    directories = ["--state-dir", str(tmp_path / "other"), "--runtime-dir", str(server.socket.parent)]
    command = [sys.executable, "-m", "atoll.cli", "serve", *directories]
    second = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    _, said = await asyncio.wait_for(second.communicate(), HANG_SECONDS)
    assert second.returncode != 0
    assert b"ADDRESS_NOT_USABLE" in said
    assert (await server.ask("GET", "/v1/server")).json()["pid"] == server.process.pid


async def test_on_tcp_a_key_is_always_needed(server: RunningServer) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {server.key}"},
    ):
        for method, path in (("GET", "/v1/server"), ("PUT", "/v1/sandboxes/a"), ("GET", "/nowhere")):
            answer = await server.ask(method, path, tcp=True, headers=headers)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert_is_problem(answer, "INVALID_API_KEY")
    answer = await server.ask("GET", "/v1/server", tcp=True, headers=with_key(server))
    assert answer.json()["pid"] == server.process.pid
    assert (await server.ask("GET", "/v1/sandboxes")).json()["sandboxes"] == []


async def test_a_wrong_key_and_none_are_told_apart(server: RunningServer) -> None:
    none, foreign, wrong = [
        (await server.ask("GET", "/v1/server", tcp=True, headers=headers)).json()
        for headers in (
            {},
            {"Authorization": f"Bearer atoll_{'ab' * 32}"},
            {"Authorization": "Bearer wrong"},
        )
    ]
    assert "has no API key" in none["message"]
    assert "does not know" in foreign["message"]
    assert foreign["message"].endswith("'abababab'")  # its id, and no more of it
    assert "does not know" in wrong["message"]
    assert "wrong" not in wrong["message"]


async def test_a_key_that_was_deleted_opens_nothing(server: RunningServer) -> None:
    key = server.make_key()
    headers = {"Authorization": f"Bearer {key}"}
    assert (await server.ask("GET", "/v1/server", tcp=True, headers=headers)).status == 200
    with closing(open_store(server.state)) as store:
        keys = Keys(store.keys)
        assert await keys.delete(id_of(key))
        assert id_of(key) not in {info.id for info in await keys.list()}
    assert (await server.ask("GET", "/v1/server", tcp=True, headers=headers)).status == 401


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Host", "evil.example"),
        ("Host", "evil.example:80"),
        ("Host", ""),
        ("Host", "localhost.evil.example"),
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", "http://["),
        ("Origin", "http://127.0.0.1:1"),
    ],
)
async def test_a_page_of_another_site_is_refused_even_with_a_key(server: RunningServer, name: str, value: str) -> None:
    answer = await server.ask("GET", "/v1/server", tcp=True, headers={**with_key(server), name: value})
    assert answer.status == 403
    assert_is_problem(answer, "FORBIDDEN_ORIGIN")


@pytest.mark.parametrize("host", ["[::1", "evil.example@127.0.0.1", "127.0.0.1:http", "127.0.0.1 evil.example"])
async def test_a_host_that_is_none_is_refused_even_with_a_key(server: RunningServer, host: str) -> None:
    answer = await server.ask("GET", "/v1/server", tcp=True, headers={**with_key(server), "Host": host})
    assert answer.status == 400
    assert_is_problem(answer, "INVALID_REQUEST")


async def test_its_own_names_and_its_own_pages_are_let_in(server: RunningServer) -> None:
    for host in (f"127.0.0.1:{server.port}", f"LOCALHOST:{server.port}", f"[::1]:{server.port}"):
        headers = {**with_key(server), "Host": host, "Origin": f"http://{host}"}
        assert (await server.ask("GET", "/v1/server", tcp=True, headers=headers)).status == 200


async def test_the_document_and_its_page_need_no_key(server: RunningServer) -> None:
    document = await server.ask("GET", "/openapi.json", tcp=True)
    assert document.json()["openapi"].startswith("3.1")
    page = await server.ask("GET", "/docs", tcp=True)
    assert page.headers["content-type"].startswith("text/html")
    assert b"/v1/sandboxes/{id}/exec" in page.body


def test_the_socket_and_what_is_kept_are_roots_alone(shared_server: RunningServer) -> None:
    assert shared_server.socket.stat().st_mode & 0o777 == 0o600
    assert shared_server.state.stat().st_mode & 0o777 == 0o700
    assert (shared_server.state / "atoll.db").stat().st_mode & 0o777 == 0o600
    kept = b"".join(path.read_bytes() for path in shared_server.state.glob("atoll.db*"))
    assert shared_server.key.encode() not in kept


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("PUT", "/v1/sandboxes/a", b"{", 400, "INVALID_REQUEST"),
        ("PUT", "/v1/sandboxes/a", b"[]", 400, "INVALID_REQUEST"),
        ("PUT", "/v1/sandboxes/a", b'{"image": 1}', 400, "INVALID_REQUEST"),
        ("PUT", "/v1/sandboxes/a", b'{"imgae": "host"}', 400, "INVALID_REQUEST"),
        ("PUT", "/v1/sandboxes/a", b'{"image": "none"}', 404, "IMAGE_NOT_FOUND"),
        ("PUT", "/v1/sandboxes/a", b'{"image": "../host"}', 400, "INVALID_IMAGE_NAME"),
        ("PUT", "/v1/sandboxes/a", b'{"limits": {"cpus": -1}}', 400, "INVALID_LIMITS"),
        ("PUT", "/v1/sandboxes/a", b'{"limits": {"colour": 1}}', 400, "INVALID_LIMITS"),
        ("PUT", "/v1/sandboxes/a", b'{"sleep_after": "soon"}', 400, "INVALID_REQUEST"),
        ("PUT", "/v1/sandboxes/a", b'{"env": {"A=B": "c"}}', 400, "INVALID_ENVIRONMENT"),
        ("PUT", "/v1/sandboxes/a", b'{"env": {"a-b": "c"}}', 400, "INVALID_ENVIRONMENT"),
        ("PUT", "/v1/sandboxes/a", b'{"labels": {"": "c"}}', 400, "INVALID_REQUEST"),
        ("PUT", "/v1/sandboxes/A", b"{}", 400, "INVALID_SANDBOX_ID"),
        ("PUT", "/v1/sandboxes/-a", b"{}", 400, "INVALID_SANDBOX_ID"),
        ("PUT", f"/v1/sandboxes/{'a' * 64}", b"{}", 400, "INVALID_SANDBOX_ID"),
        ("GET", "/v1/sandboxes/%00", b"", 400, "INVALID_SANDBOX_ID"),
        ("GET", "/v1/sandboxes/none", b"", 404, "SANDBOX_NOT_FOUND"),
        ("GET", "/v1/sandboxes/none/events", b"", 404, "SANDBOX_NOT_FOUND"),
        ("GET", "/v1/sandboxes/none/events?since=7", b"", 404, "SANDBOX_NOT_FOUND"),
        ("POST", "/v1/sandboxes/none/sleep", b"{}", 404, "SANDBOX_NOT_FOUND"),
        ("POST", "/v1/sandboxes/a/sleep", b'{"stop": "yes"}', 400, "INVALID_REQUEST"),
        ("PATCH", "/v1/sandboxes/a", b'{"sleep_after": "soon"}', 400, "INVALID_REQUEST"),
        ("PATCH", "/v1/sandboxes/a", b'{"sleep_after": null}', 400, "INVALID_REQUEST"),
        ("PATCH", "/v1/sandboxes/a", b'{"stop_after": -1}', 400, "INVALID_REQUEST"),
        ("PATCH", "/v1/sandboxes/a", b'{"image": "host"}', 400, "INVALID_REQUEST"),
        ("PUT", "/v1/sandboxes/a/labels", b'{"": "c"}', 400, "INVALID_REQUEST"),
        ("PATCH", "/v1/sandboxes/a/env", b'{"A=B": "c"}', 400, "INVALID_ENVIRONMENT"),
        ("PATCH", "/v1/sandboxes/a/env", b'{"a-b": "c"}', 400, "INVALID_ENVIRONMENT"),
        ("PATCH", "/v1/sandboxes/a/env", b'{"1a": "c"}', 400, "INVALID_ENVIRONMENT"),
        ("GET", "/v1/sandboxes?label=x", b"", 400, "INVALID_REQUEST"),
        ("GET", "/v1/sandboxes?state=x", b"", 400, "INVALID_REQUEST"),
        ("GET", "/v1/sandboxes/a/events?since=-1", b"", 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/exec", b"{}", 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": ["true", 1]}', 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": []}', 400, "INVALID_COMMAND"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": "true", "timeout": "x"}', 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": "true", "max_output": -1}', 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": "true", "stdin_base64": "?"}', 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": "true", "session_id": "none"}', 404, "SESSION_NOT_FOUND"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": ["no-such-program"]}', 404, "COMMAND_NOT_FOUND"),
        ("POST", "/v1/sandboxes/a/exec", b"[" * 100_000, 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": "true", "cwd": ""}', 400, "INVALID_PATH"),
        ("POST", "/v1/sandboxes/a/exec", b'{"command": ["true"], "cwd": ""}', 400, "INVALID_PATH"),
        ("POST", "/v1/sandboxes/a/processes", b'{"command": "true", "cwd": ""}', 400, "INVALID_PATH"),
        ("POST", "/v1/sandboxes/a/terminals", b'{"cwd": ""}', 400, "INVALID_PATH"),
        ("POST", "/v1/sandboxes/a/sessions", b'{"cwd": ""}', 400, "INVALID_PATH"),
        ("POST", "/v1/sandboxes/a/sessions", b'{"env": {"a-b": "c"}}', 400, "INVALID_ENVIRONMENT"),
        ("POST", "/v1/sandboxes/a/sessions", b'{"id": ""}', 400, "INVALID_SESSION_ID"),
        ("POST", "/v1/sandboxes/a/sessions", b'{"id": "/"}', 400, "INVALID_SESSION_ID"),
        ("DELETE", "/v1/sandboxes/a/sessions/none", b"", 404, "SANDBOX_NOT_FOUND"),
        ("POST", "/v1/sandboxes/a/call", b"", 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/call", b"GET / HTTP/1.1", 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/call", encode_frame(FrameKind.CALL, b"?"), 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes/a/call", encode_frame(FrameKind.DONE, b""), 400, "INVALID_REQUEST"),
        ("POST", "/v1/sandboxes", b"{}", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v1/sandboxes/a/call", b"", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v2", b"", 404, "ROUTE_NOT_FOUND"),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong_and_what_to_do(
    server: RunningServer, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    answer = await server.ask(method, path, body)
    assert_is_problem(answer, code)
    assert answer.status == status


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"image": "none"}, 404, "IMAGE_NOT_FOUND"),
        ({"image": "../host"}, 400, "INVALID_IMAGE_NAME"),
        ({"limits": "huge"}, 400, "INVALID_LIMITS"),
        ({"limits": {"cpus": -1}}, 400, "INVALID_LIMITS"),
        ({"sleep_after": "soon"}, 400, "INVALID_REQUEST"),
        ({"env": {"A=B": "c"}}, 400, "INVALID_ENVIRONMENT"),
        ({"env": {"a-b": "c"}}, 400, "INVALID_ENVIRONMENT"),
        ({"labels": {"": "c"}}, 400, "INVALID_REQUEST"),
    ],
)
async def test_options_that_make_no_sense_are_refused_alike_for_a_new_sandbox_and_for_one_that_exists(
    server: RunningServer, options: dict[str, Any], status: int, code: str
) -> None:
    new = await server.ask("PUT", "/v1/sandboxes/optional", options)
    assert (await server.ask("GET", "/v1/sandboxes/optional")).status == 404
    await server.ask("PUT", "/v1/sandboxes/optional", {})
    existing = await server.ask("PUT", "/v1/sandboxes/optional", options)
    await server.ask("POST", "/v1/sandboxes/optional/sleep", {"stop": True})
    stopped = await server.ask("PUT", "/v1/sandboxes/optional", options)
    assert (await server.ask("GET", "/v1/sandboxes/optional")).json()["state"] == "stopped"
    await server.ask("DELETE", "/v1/sandboxes/optional")
    after_another = await server.ask("PUT", "/v1/sandboxes/optional", options)
    events = (await server.ask("GET", "/v1/sandboxes/optional/events")).json()["events"]
    assert events[-1]["what"] == "destroyed"
    for answer in (new, existing, stopped, after_another):
        assert_is_problem(answer, code)
        assert answer.status == status
    assert existing.json() == stopped.json() == after_another.json() == new.json()


async def test_options_that_make_sense_change_nothing_of_a_sandbox_that_exists(server: RunningServer) -> None:
    made = await server.ask("PUT", "/v1/sandboxes/kept", {"labels": {"a": "1"}})
    others = {"image": "host", "limits": "lite", "env": {"A": "b"}, "labels": {"a": "2"}, "sleep_after": "1h"}
    again = await server.ask("PUT", "/v1/sandboxes/kept", others)
    assert (made.status, again.status) == (201, 200)
    told: dict[str, object] = {"use": None, "ignored": {}}  # what is ignored is of the answer, and not of the sandbox
    assert made.json() | told == again.json() | told


@pytest.mark.parametrize("path", ["/v1/sandboxes/a/exec", "/v1/sandboxes/a/call"])
async def test_a_hundred_megabytes_are_refused_before_they_are_here(server: RunningServer, path: str) -> None:
    before = server.memory()
    reader, writer = await asyncio.open_unix_connection(str(server.socket))
    writer.write(b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n" % path.encode())
    sending = asyncio.create_task(send(writer, b"{" * 2**20, times=100))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG_SECONDS)
    assert head.split()[1] in (b"400", b"413")
    await asyncio.wait_for(sending, HANG_SECONDS)
    assert server.memory() < before + 64 * 2**20
    writer.close()
    await writer.wait_closed()


async def test_headers_without_an_end_are_not_kept(server: RunningServer) -> None:
    before = server.memory()
    with connect(server, tcp=True) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(300):
                await asyncio.to_thread(client.sendall, b"a: b\r\n" * (2**20 // 6))
    assert server.memory() < before + 16 * 2**20


async def test_half_a_request_holds_up_nobody_and_its_end_is_no_failure(server: RunningServer) -> None:
    _, writer = await asyncio.open_unix_connection(str(server.socket))
    writer.write(b"PUT /v1/sandboxes/half HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    sandbox = server.sandbox("half")
    assert (await sandbox.exec("echo whole")).stdout == "whole\n"
    writer.close()
    await writer.wait_closed()
    assert (await sandbox.exec("echo whole")).stdout == "whole\n"
    assert "failed" not in server.log.read_text()
    await sandbox.aclose()


async def test_a_command_as_json_has_its_exact_output(server: RunningServer) -> None:
    command = {"command": "cat; printf '\\377' >&2; exit 3", "stdin": "text", "timeout": "30s"}
    answer = (await server.ask("POST", "/v1/sandboxes/json/exec", command)).json()
    assert (answer["exit_code"], answer["success"], answer["stdout"]) == (3, False, "text")
    assert (answer["stderr"], answer["stderr_base64"]) == ("\ufffd", "/w==")
    assert answer["session_ended"]


async def test_a_command_as_events_has_its_exact_output(server: RunningServer) -> None:
    command = {"command": "printf '\\377 \\303' >&2; printf 'text \\303\\251'"}
    answer = await server.ask("POST", "/v1/sandboxes/json/exec", command, headers={"Accept": "text/event-stream"})
    events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    stderr = [base64.b64decode(event["data_base64"]) for event in events if event["type"] == "stderr"]
    assert b"".join(stderr) == b"\377 \303"
    stdout = [event for event in events if event["type"] == "stdout"]
    assert "".join(event["data"] for event in stdout) == "text é"
    assert not any("data_base64" in event for event in stdout)


async def test_json_holds_so_much_output_and_says_when_there_was_more(server: RunningServer) -> None:
    path, command = "/v1/sandboxes/json/exec", {"command": "head -c 9M /dev/zero"}
    for asked, given in (({}, 2**20), ({"max_output": 8 * 2**20}, 8 * 2**20)):
        answer = (await server.ask("POST", path, command | asked)).json()
        assert (len(answer["stdout"]), answer["truncated"], answer["exit_code"]) == (given, True, 0)
    refused = await server.ask("POST", path, command | {"max_output": 8 * 2**20 + 1})
    assert_is_problem(refused, "INVALID_REQUEST")
    stream = await server.ask("POST", path, command, headers={"Accept": "text/event-stream"})
    assert stream.body.count(rb"\u0000") == 9 * 2**20


async def test_a_command_that_waits_for_its_turn_streams_its_events(server: RunningServer) -> None:
    sandbox = server.sandbox("turns")
    await sandbox.exec("mkfifo gate")
    first = asyncio.create_task(sandbox.exec("cat gate"))
    while not (await sandbox.list_sessions())[0].commands_waiting:
        await asyncio.sleep(0.01)
    asking = server.ask(
        "POST", "/v1/sandboxes/turns/exec", {"command": "echo 2"}, headers={"Accept": "text/event-stream"}
    )
    second = asyncio.create_task(asking)
    while (await sandbox.list_sessions())[0].commands_waiting < 2:
        await asyncio.sleep(0.01)
    await (await sandbox.create_session("other")).exec("echo 1 > gate")
    assert (await first).stdout == "1\n"
    events = [line.split()[1] for line in (await second).body.decode().splitlines() if line.startswith("event:")]
    assert events == ["start", "stdout", "complete"]
    await sandbox.aclose()


async def test_a_reader_who_comes_back_goes_on_where_it_stopped_also_in_the_next_sandbox_of_the_id(
    server: RunningServer,
) -> None:
    sandbox = server.sandbox("again")
    await sandbox.exec("true")
    last = (await sandbox.events())[-1].number
    await sandbox.destroy()
    assert [event.what async for event in sandbox.follow_events(last)] == ["destroyed"]
    assert [event.what async for event in sandbox.follow_events(last + 1)] == []
    await sandbox.exec("true")
    assert [(event.number, event.what) for event in await sandbox.events(last)] == [(last + 2, "created")]
    await sandbox.aclose()


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_client_that_hangs_up_ends_its_command(server: RunningServer, accept: str) -> None:
    sandbox = server.sandbox("hang-up")
    await sandbox.exec("mkfifo begun")
    other = await sandbox.create_session("other")
    body = json.dumps({"command": "echo > begun; sleep 1000", "session_id": "default"}).encode()
    _, writer = await asyncio.open_unix_connection(str(server.socket))
    writer.write(
        b"POST /v1/sandboxes/hang-up/exec HTTP/1.1\r\nhost: localhost\r\naccept: %b\r\ncontent-length: %d\r\n\r\n%b"
        % (accept.encode(), len(body), body)
    )
    await other.exec("cat begun")
    writer.close()
    await writer.wait_closed()
    # Its turn in the session comes when the other has ended.
    assert (await sandbox.exec("echo next")).stdout == "next\n"
    assert (await sandbox.exec(["pgrep", "-x", "sleep"])).exit_code == 1
    await sandbox.aclose()


@pytest.mark.parametrize("tcp", [False, True])
async def test_a_client_that_dies_while_its_input_is_backed_up_ends_its_command(
    server: RunningServer, tcp: bool
) -> None:
    sandbox = server.sandbox("backed-up", tcp=tcp)
    await sandbox.exec("mkfifo begun")
    other = await sandbox.create_session("other")
    call = ExecShell(command="echo > begun; sleep 1000", session_id="default", stdin=True)
    body = encode_frame(FrameKind.CALL, encode_message(call))
    path = b"POST /v1/sandboxes/backed-up/call HTTP/1.1\r\nhost: localhost\r\n"
    key = b"authorization: Bearer %b\r\n" % server.key.encode()
    with connect(server, tcp=tcp) as client:
        client.sendall(path + key + b"content-length: 1000000000\r\n\r\n" + body)
        await other.exec("cat begun")
        await fill(client, encode_frame(FrameKind.INPUT, bytes(MAX_PAYLOAD)))
        if tcp:  # what is on the way keeps its end from coming through; a reset is what a dead host's peer learns
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Its turn in the session comes when the other has ended.
    assert (await sandbox.exec("echo next")).stdout == "next\n"
    assert (await sandbox.exec(["pgrep", "-x", "sleep"])).exit_code == 1
    await sandbox.aclose()


async def test_a_slow_reader_makes_the_command_wait_and_not_the_server_grow(server: RunningServer) -> None:
    sandbox = server.sandbox("slow")
    await sandbox.exec("true")
    before = server.memory()
    async with sandbox.exec_stream("head -c 1G /dev/zero; echo done > done") as stream:
        await anext(stream)
        await anext(stream)
        for _ in range(20):  # in which it could have read the half of it
            assert server.memory() < before + 32 * 2**20
            await asyncio.sleep(0.05)
    assert (await sandbox.exec("cat done")).exit_code == 1
    await sandbox.aclose()


async def test_a_hundred_megabytes_come_out_exactly(server: RunningServer) -> None:
    for tcp in (False, True):
        sandbox = server.sandbox("large", tcp=tcp)
        program = f"import sys, array; sys.stdout.buffer.write({NUMBERS})"
        digest, size = hashlib.sha256(), 0
        async with sandbox.exec_stream(["python3", "-c", program]) as stream:
            async for event in stream:
                digest.update(event.data_bytes)
                size += len(event.data_bytes)
        assert size == 100 * 2**20
        assert digest.digest() == hashlib.sha256(array.array("I", range(25 * 2**20)).tobytes()).digest()
        await sandbox.aclose()


def connect(server: RunningServer, *, tcp: bool) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), HANG_SECONDS) if tcp else connect_unix(server.socket)


async def fill(client: socket.socket, data: bytes) -> None:
    """Send it again and again, until nobody takes any more."""
    client.setblocking(False)
    while True:
        _, can_send, _ = await asyncio.to_thread(select.select, [], [client], [], FULL_SECONDS)
        if not can_send:
            return
        sent = client.send(data)
        data = data[sent:] + data[:sent]


async def send(writer: asyncio.StreamWriter, piece: bytes, times: int) -> None:
    for _ in range(times):
        writer.write(piece)
        await writer.drain()


async def wait_for_event(sandbox: AsyncSandbox, what: str, since: int = 0) -> SandboxEvent:
    async with asyncio.timeout(HANG_SECONDS), sandbox.follow_events(since) as events:
        async for event in events:
            if event.what == what:
                return event
    raise AssertionError(f"the timeline ended without {what}")


def first_process(server: RunningServer, sandbox: str) -> int:
    return int(json.loads(kept.record(server.state, sandbox)["handle"])["process"]["pid"])


def with_key(server: RunningServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}"}


def assert_is_problem(answer: Answer, code: str) -> None:
    problem = answer.json()
    assert problem["code"] == code, problem
    assert problem["message"]
    assert problem["remedy"], problem
