"""Background processes inside a sandbox, on an image with everything and on one with nothing but busybox."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from atoll.protocol.calls import Answer, Call, result
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.process_log import LogFold
from atoll.protocol.processes import (
    CleanUpProcesses,
    GetProcess,
    KillAllProcesses,
    KillProcess,
    ListProcesses,
    LogEntry,
    LogPart,
    OutputStream,
    PortMode,
    ProcessInfo,
    ProcessStatus,
    RestartPolicy,
    StartProcess,
    StreamProcessLog,
    WaitForExit,
    WaitForPort,
)
from atoll.protocol.sessions import CreateSession, DeleteSession, SetEnvironment
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked, native

T = TypeVar("T")
GIGABYTE = 10**9
AGENT_MEMORY = 60 * 2**20  # what is shared with all other agents is half of it

# Every zombie of the sandbox.
ZOMBIES = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"


@dataclass
class Log:
    """What came of a log, in order."""

    parts: list[LogPart] = field(default_factory=list)

    @property
    def entries(self) -> list[LogEntry]:
        return [entry for part in self.parts for entry in part.entries]

    @property
    def dropped(self) -> int:
        return sum(part.dropped for part in self.parts)

    def text(self, stream: str = "stdout") -> str:
        return b"".join(entry.data for entry in self.entries if entry.stream == stream).decode()


def part_in(frame: Frame) -> LogPart:
    part = LogFold(StreamProcessLog(process_id="")).take(frame)
    assert part
    return part


@dataclass
class Processes:
    """The background processes of a box."""

    box: Box

    async def ask(self, call: Call[Answer]) -> Answer:
        async with self.box.link.operation(call) as agent:
            return result(call, await agent.next_frame())

    async def start(self, command: str | list[str], process_id: str | None = None, **options: Any) -> ProcessInfo:
        return await self.ask(StartProcess(command=command, process_id=process_id, **options))

    async def get(self, process_id: str) -> ProcessInfo:
        return await self.ask(GetProcess(process_id=process_id))

    async def list(self) -> list[ProcessInfo]:
        return (await self.ask(ListProcesses())).processes

    async def kill(self, process_id: str, signal: int = 15) -> ProcessInfo:
        return await self.ask(KillProcess(process_id=process_id, signal=signal))

    async def exit(self, process_id: str, timeout: float | None = None) -> ProcessInfo:
        return await self.ask(WaitForExit(process_id=process_id, timeout=timeout))

    async def port(self, process_id: str, port: int, **options: Any) -> ProcessInfo:
        return await self.ask(WaitForPort(process_id=process_id, port=port, **options))

    async def log(self, process_id: str, since: int = 0) -> Log:
        """To its end."""
        log = Log()
        async with self.reading(process_id, since=since, follow=False) as agent:
            while (frame := await agent.next_frame()).kind is not FrameKind.DONE:
                log.parts.append(part_in(frame))
        return log

    async def wait_for(self, process_id: str, text: str) -> Log:
        """Until `text` is in its output."""
        log = Log()
        async with self.reading(process_id) as agent:
            while text not in log.text() + log.text("stderr"):
                frame = await agent.next_frame()
                assert frame.kind is FrameKind.EVENT, log.parts
                log.parts.append(part_in(frame))
        return log

    @asynccontextmanager
    async def reading(self, process_id: str, **options: Any) -> AsyncIterator[AgentConnection]:
        async with self.box.link.operation(StreamProcessLog(process_id=process_id, **options)) as agent:
            yield agent

    async def wait_until_gone(self, name: str) -> None:
        """Until no process has this name."""
        while await self.box.text(f"grep -lx '{name}' /proc/[0-9]*/comm 2>/dev/null || true"):
            await asyncio.sleep(0.02)


@pytest.fixture
def processes(box: Box) -> Processes:
    return Processes(box)


@pytest.fixture
def host_processes(host_box: Box) -> Processes:
    return Processes(host_box)


def code_of(caught: pytest.ExceptionInfo[AtollError]) -> ErrorCode:
    return caught.value.code


async def test_a_process_runs_in_the_background_and_its_output_is_kept(processes: Processes) -> None:
    started = await processes.start("echo out; echo err >&2; read line; echo never", "first")
    assert (started.id, started.session_id, started.exit_code) == ("first", "default", None)
    ended = await processes.exit("first")
    assert (ended.status, ended.exit_code) == (ProcessStatus.COMPLETED, 0)
    assert ended.end_time and ended.end_time >= ended.start_time
    log = await processes.log("first")
    assert (log.text(), log.text("stderr"), log.dropped) == ("out\nnever\n", "err\n", 0)
    assert log.parts[-1].ended == ended
    assert await processes.list() == [ended]


@pytest.mark.parametrize(
    ("command", "status", "exit_code"),
    [
        ("true", ProcessStatus.COMPLETED, 0),
        ("exit 3", ProcessStatus.FAILED, 3),
        ("exit 255", ProcessStatus.FAILED, 255),
        ("kill -9 $$", ProcessStatus.KILLED, 137),
        ("if then", ProcessStatus.FAILED, 2),
        ("no-such-program", ProcessStatus.FAILED, 127),
        (["sh", "-c", "exit 5"], ProcessStatus.FAILED, 5),
    ],
)
async def test_the_status_tells_how_it_ended(
    processes: Processes, command: str | list[str], status: ProcessStatus, exit_code: int
) -> None:
    ended = await processes.exit((await processes.start(command)).id)
    assert (ended.status, ended.exit_code) == (status, exit_code)


async def test_a_list_of_words_is_touched_by_no_shell(processes: Processes) -> None:
    await processes.start(["echo", "$HOME", "*", "a  b"], "words")
    await processes.exit("words")
    assert (await processes.log("words")).text() == "$HOME * a  b\n"


async def test_it_has_a_process_group_and_a_session_of_its_own(processes: Processes) -> None:
    started = await processes.start(["cat", "/proc/self/stat"], "group")
    await processes.exit("group")
    fields = (await processes.log("group")).text().rpartition(")")[2].split()
    assert [int(field) for field in fields[2:4]] == [started.pid, started.pid]


async def test_directory_and_variables_are_those_of_the_session_and_of_the_call(processes: Processes) -> None:
    box = processes.box
    show = 'echo "$PWD|$A|$B|${EXPORTED-none}"'
    await box.shell("mkdir -p /tmp/there/deep; cd /tmp/there; export EXPORTED=1")
    await box.link.ask(CreateSession(session_id="mine", cwd="/usr", env={"A": "session"}))
    await box.link.ask(SetEnvironment(env={"A": "sandbox", "B": "sandbox"}))
    for process_id, options in (
        ("plain", {}),
        ("below", {"cwd": "deep", "env": {"A": "call", "B": None}}),
        ("mine", {"session_id": "mine"}),
        ("both", {"session_id": "mine", "cwd": "/", "env": {"B": "call"}}),
    ):
        await processes.start(show, process_id, **options)
        await processes.exit(process_id)
    shown = {name: (await processes.log(name)).text().strip() for name in ("plain", "below", "mine", "both")}
    assert shown == {
        "plain": "/tmp/there|sandbox|sandbox|1",
        "below": "/tmp/there/deep|call||1",
        "mine": "/usr|session|sandbox|none",
        "both": "/|session|call|none",
    }


async def test_deleting_a_session_leaves_its_processes_running(processes: Processes) -> None:
    await processes.box.link.ask(CreateSession(session_id="mine"))
    await processes.box.shell("true", session="mine")
    await processes.start("read line < fifo; echo lived", "lives", session_id="mine", cwd="/tmp", restart="always")
    await processes.box.link.ask(DeleteSession(session_id="mine"))
    assert (await processes.get("lives")).status.is_over is False
    assert (await processes.kill("lives")).session_id == "mine"


async def test_it_outlives_the_connection_that_started_it(processes: Processes) -> None:
    async with linked(processes.box.live) as link:
        other = Processes(Box(processes.box.live, link, ""))
        await other.start("mkfifo /tmp/go; cat /tmp/go; echo still here", "lasting")
    await processes.box.text("while ! [ -p /tmp/go ]; do sleep 0.01; done; echo go > /tmp/go")
    await processes.exit("lasting")
    assert (await processes.log("lasting")).text() == "go\nstill here\n"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (StartProcess(command=""), ErrorCode.INVALID_COMMAND),
        (StartProcess(command=" \n"), ErrorCode.INVALID_COMMAND),
        (StartProcess(command=[]), ErrorCode.INVALID_COMMAND),
        (StartProcess(command="a\0b"), ErrorCode.INVALID_COMMAND),
        (StartProcess(command="true", timeout=-1), ErrorCode.INVALID_COMMAND),
        (StartProcess(command="x" * 140_000), ErrorCode.INVALID_COMMAND),
        (StartProcess(command=["x"] * 70_000, restart=RestartPolicy.ALWAYS), ErrorCode.INVALID_COMMAND),
        (StartProcess(command="true", env={"": "x"}), ErrorCode.INVALID_ENVIRONMENT),
        (StartProcess(command="true", process_id="../x"), ErrorCode.INVALID_PROCESS_ID),
        (StartProcess(command="true", cwd="/no/such"), ErrorCode.FILE_NOT_FOUND),
        (StartProcess(command="true", session_id="none"), ErrorCode.SESSION_NOT_FOUND),
        (StartProcess(command=["/no/such/program"]), ErrorCode.COMMAND_NOT_FOUND),
        (GetProcess(process_id="none"), ErrorCode.PROCESS_NOT_FOUND),
        (KillProcess(process_id="none"), ErrorCode.PROCESS_NOT_FOUND),
        (KillProcess(process_id="done", signal=0), ErrorCode.INVALID_SIGNAL),
        (KillProcess(process_id="done", signal=65), ErrorCode.INVALID_SIGNAL),
        (StreamProcessLog(process_id="none"), ErrorCode.PROCESS_NOT_FOUND),
        (StreamProcessLog(process_id="done", since=2), ErrorCode.INVALID_REQUEST),
        (StreamProcessLog(process_id="done", since=-1), ErrorCode.INVALID_REQUEST),
        (WaitForExit(process_id="done", timeout=-1), ErrorCode.INVALID_REQUEST),
        (WaitForPort(process_id="done", port=0), ErrorCode.INVALID_PORT),
        (WaitForPort(process_id="done", port=80, path="/ HTTP/1.1\r\nX: y"), ErrorCode.INVALID_REQUEST),
        (WaitForPort(process_id="done", port=80, min_status=7), ErrorCode.INVALID_REQUEST),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, ErrorCode) else value.value,
)
async def test_what_cannot_be_done_is_a_typed_error(processes: Processes, call: Call[Any], code: ErrorCode) -> None:
    await processes.start("true", "done")
    await processes.exit("done")
    with pytest.raises(AtollError) as caught:
        await processes.ask(call)
    assert code_of(caught) is code
    assert caught.value.remedy
    assert [process.id for process in await processes.list()] == ["done"]


async def test_an_id_is_taken_while_its_process_runs_and_free_afterwards(processes: Processes) -> None:
    await processes.start("echo one; sleep 1000", "same")
    with pytest.raises(FileExistsError) as caught:
        await processes.start("true", "same")
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.PROCESS_EXISTS
    await processes.kill("same")
    await processes.start("echo two", "same")
    await processes.exit("same")
    assert (await processes.log("same")).text() == "two\n"
    assert len(await processes.list()) == 1


# Ending.


async def test_a_process_that_ignores_sigterm_is_killed_with_its_children_after_a_grace_period(
    processes: Processes,
) -> None:
    command = "trap '' TERM; (trap '' TERM; echo child; while :; do sleep 0.05; done) & echo parent; wait; sleep 1000"
    await processes.start(command, "stubborn")
    await processes.wait_for("stubborn", "child")
    killed = await processes.kill("stubborn")
    assert (killed.status, killed.exit_code) == (ProcessStatus.KILLED, 137)
    await processes.wait_until_gone("sleep")
    while await processes.box.text(ZOMBIES) != "0":  # one that ended just now
        await asyncio.sleep(0.01)


async def test_kill_returns_when_the_process_has_ended_and_cleaned_up(processes: Processes) -> None:
    await processes.start("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done", "polite")
    await processes.wait_for("polite", "ready")
    killed = await processes.kill("polite")
    assert (killed.status, killed.exit_code) == (ProcessStatus.KILLED, 0)
    assert "bye" in (await processes.log("polite")).text()
    assert await processes.kill("polite") == killed  # twice is fine


async def test_the_signal_asked_for_reaches_the_whole_tree_and_is_not_followed_by_another(processes: Processes) -> None:
    child = "trap 'echo child heard' USR1; echo child ready; while :; do sleep 0.02; done"
    command = f"({child}) & trap 'echo parent heard' USR1; echo parent ready; while :; do sleep 0.02; done"
    await processes.start(["sh", "-c", f"trap '' HUP; {command.replace('sleep 0.02', 'sh -c :')}"], "tree")
    for words in ("child ready", "parent ready"):
        await processes.wait_for("tree", words)
    await processes.kill("tree", 10)
    for words in ("child heard", "parent heard"):
        await processes.wait_for("tree", words)
    assert (await processes.get("tree")).status is ProcessStatus.RUNNING
    assert (await processes.kill("tree", 9)).exit_code == 137


async def test_one_that_forks_and_exits_is_completed_and_its_child_is_logged_and_killed(processes: Processes) -> None:
    await processes.start("(mkfifo /tmp/go; cat /tmp/go; echo later; sleep 1000) & exit 0", "daemon")
    ended = await processes.exit("daemon")
    assert (ended.status, ended.exit_code) == (ProcessStatus.COMPLETED, 0)
    await processes.box.text("while ! [ -p /tmp/go ]; do sleep 0.01; done; echo go > /tmp/go")
    await processes.wait_for("daemon", "later")
    assert await processes.kill("daemon") == ended
    await processes.wait_until_gone("sleep")
    async with processes.reading("daemon") as agent:  # ends, as nobody is left to write
        parts = [part_in(frame) async for frame in agent.frames() if frame.kind is FrameKind.EVENT]
    assert [part.ended for part in parts if part.ended] == [ended]
    assert [(part.number, b"".join(entry.data for entry in part.entries)) for part in parts] == [
        (1, b""),
        (len("xgo\nlater\n"), b"go\nlater\n"),
    ]
    while await processes.box.text(ZOMBIES) != "0":  # one that ended just now
        await asyncio.sleep(0.01)


async def test_what_is_written_after_the_exit_is_resumed_exactly(processes: Processes) -> None:
    """A reader may stop anywhere: the exit has a number of its own, between what came before it and after it."""
    await processes.start("echo before; (mkfifo /tmp/go; cat /tmp/go; echo after) & exit 7", "daemon")
    await processes.exit("daemon")
    await processes.box.text("while ! [ -p /tmp/go ]; do sleep 0.01; done; : > /tmp/go")
    await processes.wait_for("daemon", "after")
    whole = b"before\n" + b"\0" + b"after\n"  # the exit in its place
    for since in range(len(whole) + 1):
        seen = b""
        async with processes.reading("daemon", since=since) as agent:
            async for frame in agent.frames():
                if frame.kind is not FrameKind.EVENT:
                    break
                part = part_in(frame)
                assert part.dropped == 0
                seen += b"".join(entry.data for entry in part.entries) + (b"\0" if part.ended else b"")
                assert part.number == since + len(seen)
        assert seen == whole[since:]
    with pytest.raises(ValueError) as caught:
        await processes.log("daemon", since=len(whole) + 1)
    assert isinstance(caught.value, AtollError)
    assert caught.value.context == {"since": len(whole) + 1, "end": len(whole), "process_id": "daemon"}


async def test_a_child_that_writes_nowhere_is_still_reached_after_its_parent_ended(processes: Processes) -> None:
    await processes.start("sleep 1000 > /dev/null 2>&1 & exit 4", "left")
    assert (await processes.exit("left")).exit_code == 4
    await processes.kill("left", 9)
    await processes.wait_until_gone("sleep")


async def test_a_daemon_in_a_session_of_its_own_is_reached_by_the_output_it_holds(processes: Processes) -> None:
    daemon = "setsid sh -c 'echo daemon in $$; echo x > /tmp/up; sleep 1000; echo never'"
    await processes.start(f"mkfifo /tmp/up; {daemon} & read x < /tmp/up; exit 0", "daemon")
    assert (await processes.exit("daemon")).exit_code == 0
    assert "daemon in" in (await processes.log("daemon")).text()
    bystander = await processes.start("setsid sleep 2000 & sleep 3000", "bystander")
    await processes.kill("daemon", 9)
    while await processes.box.text("grep -lx 1000 /proc/[0-9]*/cmdline -z 2>/dev/null || true"):
        await asyncio.sleep(0.02)
    assert (await processes.get("bystander")).pid == bystander.pid
    assert (await processes.get("bystander")).status is ProcessStatus.RUNNING
    assert (await processes.kill("bystander")).status is ProcessStatus.KILLED
    await processes.wait_until_gone("sleep")


async def test_a_timeout_kills_the_tree(processes: Processes) -> None:
    await processes.start("sleep 1000 & wait", "late", timeout=0.3)
    ended = await processes.exit("late")
    assert (ended.status, ended.exit_code, ended.timed_out) == (ProcessStatus.KILLED, 124, True)
    await processes.wait_until_gone("sleep")


async def test_two_hundred_processes_at_once_run_and_end(processes: Processes) -> None:
    started = [await processes.start(f"echo {n}; exec sleep 1000", f"many-{n}") for n in range(200)]
    assert len({process.pid for process in started}) == 200
    for number in range(200):
        await processes.wait_for(f"many-{number}", f"{number}\n")
    assert {process.status for process in await processes.list()} == {ProcessStatus.RUNNING}
    assert (await processes.ask(KillAllProcesses())).count == 200
    ended = await processes.list()
    assert {process.status for process in ended} == {ProcessStatus.KILLED}
    assert {process.exit_code for process in ended} == {143}
    assert len(ended) == 200
    await processes.wait_until_gone("sleep")
    while await processes.box.text(ZOMBIES) != "0":  # one that ended just now
        await asyncio.sleep(0.01)
    assert memory(processes.box, "VmHWM") < AGENT_MEMORY
    assert (await processes.ask(CleanUpProcesses())).count == 200
    assert await processes.list() == []


async def test_who_comes_late_learns_how_each_of_hundreds_ended_and_what_is_gone_of_its_log(
    processes: Processes,
) -> None:
    for number in range(250):
        command = f"echo {number}; exit {number % 3}"
        await processes.start(f"{command} #{'x' * 500}" if number == 0 else command, f"short-{number}")
    for number in range(250):
        ended = await processes.exit(f"short-{number}")
        assert (ended.exit_code, ended.status.is_over) == (number % 3, True)
    assert await processes.get("short-7") == await processes.kill("short-7") == (await processes.list())[7]
    in_order = sorted(await processes.list(), key=lambda process: process.end_time or process.start_time)
    for process in in_order[::10]:
        log = await processes.log(process.id)
        whole = process.id.removeprefix("short-") + "\n"
        assert (log.text(), log.dropped) in ((whole, 0), ("", len(whole)))
        assert log.parts[-1].ended == await processes.get(process.id)
    assert (await processes.log(in_order[0].id)).dropped > 0
    assert (await processes.log(in_order[-1].id)).dropped == 0
    assert len((await processes.get("short-0")).command) < 300


async def test_what_one_without_its_log_left_running_is_still_killed(processes: Processes) -> None:
    for name in ("before", "after"):
        daemon = f"setsid sh -c 'trap \"\" TERM; echo x > /tmp/{name}; sleep 1000'"
        await processes.start(f"mkfifo /tmp/{name}; {daemon} & read x < /tmp/{name}; echo up", name)
        await processes.exit(name)
    await processes.kill("before")  # begins a grace period
    await many_short(processes, 100)
    assert [(await processes.log(name)).dropped for name in ("before", "after")] == [len("up\n")] * 2
    await processes.kill("after", 9)
    await processes.wait_until_gone("sleep")


async def test_those_that_ended_last_are_kept_however_early_they_were_started(processes: Processes) -> None:
    before = memory(processes.box)
    await processes.start("mkfifo /tmp/go; read x < /tmp/go; echo ended last", "first")
    await many_short(processes, 1001)
    await processes.box.text("echo > /tmp/go")
    await processes.exit("first")
    assert (await processes.log("first")).text() == "ended last\n"
    assert [process.id for process in await processes.list()] == ["first", *(f"short-{n}" for n in range(2, 1001))]
    assert memory(processes.box) - before < 4 * 2**20
    with pytest.raises(AtollError) as caught:
        await processes.exit("short-1")
    assert code_of(caught) is ErrorCode.PROCESS_NOT_FOUND


async def many_short(processes: Processes, count: int) -> None:
    """Start so many one after the other, each when the last has ended."""
    for number in range(count):
        await processes.start(["true"], f"short-{number}")
        await processes.exit(f"short-{number}")


async def test_too_many_are_refused_and_the_others_can_still_be_ended(processes: Processes) -> None:
    with pytest.raises(AtollError) as caught:
        for _ in range(513):
            await processes.start(["sleep", "1000"])
    assert code_of(caught) in (ErrorCode.TOO_MANY_PROCESSES, ErrorCode.PROCESS_LIMIT_REACHED)
    assert caught.value.remedy
    running = len(await processes.list())
    assert running > 200
    assert (await processes.ask(KillAllProcesses())).count == running
    await processes.wait_until_gone("sleep")


async def test_one_that_was_stopped_by_a_signal_is_killed_too(processes: Processes) -> None:
    await processes.start("echo up; exec sleep 1000", "stopped")
    await processes.wait_for("stopped", "up")
    stopped = await processes.kill("stopped", 19)
    assert stopped.status is ProcessStatus.RUNNING
    await processes.box.text(f"until grep -q ') T ' /proc/{stopped.pid}/stat; do sleep 0.01; done")
    assert (await processes.kill("stopped")).exit_code == 137


async def test_one_that_closes_its_output_runs_on(processes: Processes) -> None:
    await processes.start("echo bye; exec > /dev/null 2>&1; mkfifo /tmp/go; read x < /tmp/go; exit 6", "silent")
    await processes.wait_for("silent", "bye")
    await processes.box.text("while ! [ -p /tmp/go ]; do sleep 0.01; done")
    reading = asyncio.create_task(processes.wait_for("silent", "never"))
    await processes.box.text("echo > /tmp/go")
    with pytest.raises(AssertionError):  # the stream ends with the process
        await reading
    assert (await processes.get("silent")).exit_code == 6


# Restarting.


async def test_on_failure_it_is_started_again_until_it_succeeds(processes: Processes) -> None:
    command = "echo run; echo x >> /tmp/runs; [ $(wc -l < /tmp/runs) -ge 3 ]"
    await processes.start(command, "again", restart=RestartPolicy.ON_FAILURE)
    ended = await processes.exit("again")
    assert (ended.status, ended.exit_code, ended.restarts) == (ProcessStatus.COMPLETED, 0, 2)
    assert (await processes.log("again")).text() == "run\n" * 3


async def test_always_goes_on_until_it_is_killed_whatever_the_last_run_left_is_ended(processes: Processes) -> None:
    await processes.start("sleep 1000 & echo run", "always", restart=RestartPolicy.ALWAYS)
    while (await processes.get("always")).restarts < 3:
        await asyncio.sleep(0.01)
    await processes.kill("always")
    ended = await processes.get("always")
    assert ended.status is ProcessStatus.KILLED
    await processes.wait_until_gone("sleep")
    assert await processes.get("always") == ended


async def test_one_that_cannot_be_started_again_says_why(processes: Processes) -> None:
    script = "#!/bin/sh\nrm /tmp/program\nexit 1\n"
    await processes.box.text(f"printf '{script}' > /tmp/program; chmod +x /tmp/program")
    await processes.start(["/tmp/program"], "vanishing", restart=RestartPolicy.ALWAYS)
    ended = await processes.exit("vanishing")
    assert ended.status is ProcessStatus.ERROR
    assert ended.error and "not found" in ended.error


# Logs.


def memory(box: Box, field: str = "VmRSS") -> int:
    """What the agent holds, in bytes."""
    status = Path(f"/proc/{native(box.live).process.pid}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


async def test_a_gigabyte_of_log_costs_bounded_memory_and_starves_nobody(processes: Processes) -> None:
    box = processes.box
    before = memory(box)
    await processes.start(f"head -c {GIGABYTE} /dev/zero; echo the end", "flood")
    answers = 0
    while not (await processes.get("flood")).status.is_over:
        assert await box.text("echo served") == "served"
        answers += 1
    assert answers > 3
    assert memory(box, "VmHWM") - before < 20 * 2**20
    log = await processes.log("flood")
    kept = sum(len(entry.data) for entry in log.entries)
    assert log.dropped + kept == GIGABYTE + len("the end\n")
    assert 3 * 2**20 <= kept <= 5 * 2**20  # pieces that are full to three quarters at least
    assert log.entries[-1].data.endswith(b"the end\n")


async def test_a_hundred_that_flood_at_once_share_what_there_is(processes: Processes) -> None:
    before = memory(processes.box)
    for number in range(100):
        await processes.start(f"head -c 2000000 /dev/zero; echo end of {number}", f"flood-{number}")
    for number in range(100):
        assert (await processes.exit(f"flood-{number}")).exit_code == 0
    assert memory(processes.box, "VmHWM") - before < 30 * 2**20
    for number in range(100):
        log = await processes.log(f"flood-{number}")
        assert log.dropped + sum(len(entry.data) for entry in log.entries) == 2_000_000 + len(f"end of {number}\n")
        assert log.text().endswith(f"end of {number}\n")


async def test_a_reader_who_stops_reading_slows_nobody_and_is_told_what_it_missed(processes: Processes) -> None:
    size = 10**8
    await processes.box.text("mkfifo /tmp/go")
    await processes.start(f"read x < /tmp/go; head -c {size} /dev/zero", "flood")
    async with processes.reading("flood") as lazy, processes.reading("flood") as eager:
        await processes.box.text("echo > /tmp/go")
        received = Log()
        while (frame := await eager.next_frame()).kind is not FrameKind.DONE:
            received.parts.append(part_in(frame))
        late = Log()
        while (frame := await lazy.next_frame()).kind is not FrameKind.DONE:
            late.parts.append(part_in(frame))
    for log in (received, late):
        assert log.dropped + sum(len(entry.data) for entry in log.entries) == size
        assert log.parts[-1].ended and log.parts[-1].number == size + 1
    assert late.dropped > 0


async def test_a_stream_that_was_cut_goes_on_exactly_where_it_stopped(processes: Processes) -> None:
    await processes.start("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done", "lines")
    seen, since = "", 0
    for cut_after in (1, 2, 3, 5, 8, 10**9):
        async with processes.reading("lines", since=since) as agent:
            while (frame := await agent.next_frame()).kind is not FrameKind.DONE:
                part = part_in(frame)
                assert part.dropped == 0
                for entry in part.entries[:cut_after]:
                    seen += entry.data.decode()
                    since = entry.number
                if len(part.entries) > cut_after:
                    break
    assert seen == "".join(f"line {number}\n" for number in range(3000))


async def test_many_readers_get_the_same(processes: Processes) -> None:
    await processes.box.text("mkfifo /tmp/go")
    await processes.start("read x < /tmp/go; for i in 1 2 3 4 5; do echo $i; echo $i >&2; done", "shared")

    async def read() -> str:
        log = Log()
        async with processes.reading("shared") as agent:
            while (frame := await agent.next_frame()).kind is not FrameKind.DONE:
                log.parts.append(part_in(frame))
        return log.text() + log.text("stderr")

    readers = [asyncio.create_task(read()) for _ in range(50)]
    await processes.box.text("echo > /tmp/go")
    assert set(await asyncio.gather(*readers)) == {"1\n2\n3\n4\n5\n" * 2}


async def test_a_full_disk_costs_history_and_nothing_else(workshop: Workshop) -> None:
    live = await create(workshop, "full-disk", image="busybox", limits={"disk": "16MiB"})
    async with linked(live) as link:
        processes = Processes(Box(live, link, "busybox"))
        await processes.box.sh("dd if=/dev/zero of=/fill bs=1M; dd if=/dev/zero of=/fill2 bs=1k; sync")
        await processes.start("head -c 50000000 /dev/zero; echo the end", "flood")
        assert (await processes.exit("flood")).exit_code == 0
        log = await processes.log("flood")
        kept = sum(len(entry.data) for entry in log.entries)
        assert log.dropped + kept == 50_000_000 + len("the end\n")
        assert log.entries[-1].data.endswith(b"the end\n")
        assert await processes.box.text("echo served") == "served"
    await workshop.destroy(live)


async def test_the_files_of_logs_have_no_name_and_no_descriptor_in_a_process(processes: Processes) -> None:
    await processes.start("head -c 2000000 /dev/zero; ls -l /proc/self/fd; ls -a /", "nameless")
    await processes.exit("nameless")
    output = (await processes.log("nameless")).text().lstrip("\0")
    assert "atoll" not in output
    assert "deleted" not in output


# Waiting.


async def test_waiting_for_the_exit_of_one_that_goes_on_ends_with_a_timeout(processes: Processes) -> None:
    await processes.start("sleep 1000", "goes-on")
    with pytest.raises(TimeoutError) as caught:
        await processes.exit("goes-on", timeout=0.05)
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.PROCESS_EXIT_TIMEOUT


async def test_one_that_dies_before_its_port_opens_is_found_out_at_once(processes: Processes) -> None:
    await processes.start("echo starting; sleep 0.2; echo cannot bind >&2; exit 3", "dies")
    with pytest.raises(AtollError) as caught:
        await processes.port("dies", 8080, timeout=1000)
    problem = caught.value
    assert problem.code is ErrorCode.PROCESS_EXITED_BEFORE_READY
    assert problem.context["exit_code"] == 3
    assert problem.context["log"] == "starting\ncannot bind"
    assert "cannot bind" in problem.message


async def test_a_port_that_does_not_open_in_time_is_a_timeout_with_the_last_lines_of_the_log(
    processes: Processes,
) -> None:
    await processes.start("for i in 1 2 3; do echo trying $i; done; sleep 1000", "slow")
    await processes.wait_for("slow", "trying 3")
    with pytest.raises(TimeoutError) as caught:
        await processes.port("slow", 8080, timeout=0.1)
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is ErrorCode.PROCESS_READY_TIMEOUT
    assert caught.value.context["log"] == "trying 1\ntrying 2\ntrying 3"


async def test_a_port_is_ready_when_it_takes_connections(processes: Processes) -> None:
    listen = "busybox nc -l -p 8080" if processes.box.image == "busybox" else "nc -l 8080"
    if processes.box.image == "host":
        listen = (
            "import socket, time; s = socket.create_server(('::1', 8080), family=socket.AF_INET6); time.sleep(1000)"
        )
        await processes.start(["python3", "-c", listen], "listens")
    else:
        await processes.start(f"sleep 0.2; {listen}", "listens")
    assert (await processes.port("listens", 8080, mode=PortMode.TCP)).id == "listens"


async def test_http_is_ready_when_the_status_fits(processes: Processes) -> None:
    answer = "read line; echo $line >&2; printf 'HTTP/1.1 %s x\\r\\n\\r\\n' $(cat /tmp/status)"
    serve = f'while :; do busybox nc -l -p 8080 -e sh -c "{answer.replace("$", chr(92) + "$")}"; done'
    if processes.box.image == "host":
        serve = "exec python3 /tmp/server.py"
        await processes.box.run(
            "tee",
            "/tmp/server.py",
            stdin=b"""
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.requestline, flush=True)
        self.send_response(int(open("/tmp/status").read()))
        self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
""",
        )
    await processes.box.text("echo 503 > /tmp/status")
    await processes.start(serve, "web")
    with pytest.raises(TimeoutError):
        await processes.port("web", 8080, path="/health?x=1", timeout=0.5)
    waiting = asyncio.create_task(processes.port("web", 8080, path="/health?x=1"))
    await processes.wait_for("web", "GET /health?x=1 HTTP/1.1")
    await processes.box.text("echo 204 > /tmp/status")
    assert (await waiting).id == "web"
    await processes.box.text("echo 404 > /tmp/status")
    await processes.port("web", 8080, min_status=404, max_status=404)


async def test_a_server_that_never_says_anything_is_not_ready(host_processes: Processes) -> None:
    silent = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 8080)); print('up', flush=True); time.sleep(9e3)"
    )
    await host_processes.start(["python3", "-c", silent], "silent")
    await host_processes.wait_for("silent", "up")
    with pytest.raises(TimeoutError):
        await host_processes.port("silent", 8080, timeout=0.3)
    await host_processes.port("silent", 8080, mode=PortMode.TCP, timeout=60)


async def test_a_daemon_that_opens_its_port_after_its_parent_ended_is_waited_for(host_processes: Processes) -> None:
    daemon = "import socket, time; time.sleep(0.5); s = socket.create_server(('0.0.0.0', 8080)); time.sleep(1000)"
    await host_processes.start(f'python3 -c "{daemon}" > /dev/null 2>&1 &', "daemon")
    await host_processes.exit("daemon")
    assert (await host_processes.port("daemon", 8080, mode=PortMode.TCP)).status is ProcessStatus.COMPLETED


def test_streams_have_the_names_users_know() -> None:
    assert [stream.value for stream in OutputStream] == ["stdout", "stderr"]
