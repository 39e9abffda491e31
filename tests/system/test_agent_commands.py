"""What the agent does with a command, on an image with everything and on one with nothing but busybox."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from atoll.protocol.commands import CommandOutput, Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.limits import MIB, MIN_MEMORY
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked


async def time_out_after_printing(box: Box, run: Callable[[float], Awaitable[CommandOutput]]) -> CommandOutput:
    """The output of a command that prints, makes /tmp/printed and hangs, with a timeout that let it come so far."""
    for timeout in (0.2, 1.0, 5.0, 25.0):
        output = await run(timeout)
        if await box.text("test -e /tmp/printed && echo yes || true"):
            return output
    raise AssertionError("it did not even print")


async def wait_until_gone(box: Box, marker: str) -> None:
    """Until no process in the sandbox has `marker` in its command line; ends by the test's own time limit."""
    script = f"for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done | grep -c '{marker}' || true"
    while int(await box.text(script.replace(marker, f"[{marker[0]}]{marker[1:]}"))):
        await asyncio.sleep(0.02)


async def test_output_and_exit_code_come_back(box: Box) -> None:
    output = await box.sh("echo out; echo err >&2; exit 3")
    assert (output.stdout, output.stderr, output.done.exit_code) == (b"out\n", b"err\n", 3)
    assert output.done.duration > 0 and not output.done.timed_out and not output.done.truncated


async def test_every_byte_comes_back_as_it_was(box: Box) -> None:
    every = bytes(range(256)) * 500
    output = await box.run("cat", stdin=every)
    assert output.stdout == every


async def test_arguments_are_touched_by_no_shell(box: Box) -> None:
    words = ["$HOME", "a  b", "*", "`id`", "'", '"', "\\", "née", "-n", "", "\n"]
    output = await box.run("printf", "%s|", *words)
    assert output.stdout.decode() == "".join(f"{word}|" for word in words)


async def test_a_signal_shows_as_128_plus_its_number(box: Box) -> None:
    assert (await box.sh("kill -9 $$")).done.exit_code == 137
    assert (await box.sh("kill -15 $$")).done.exit_code == 143


async def test_the_default_directory_is_workspace(box: Box) -> None:
    assert await box.text("pwd") == "/workspace"


async def test_without_a_workspace_commands_start_in_the_root(box: Box) -> None:
    await box.text("cd / && rmdir /workspace")
    assert await box.text("pwd") == "/"


async def test_cwd_is_used_and_forgotten(box: Box) -> None:
    assert (await box.run("pwd", cwd="/tmp")).stdout == b"/tmp\n"
    assert await box.text("pwd") == "/workspace"


async def test_env_is_added_for_one_command_and_none_unsets(box: Box) -> None:
    output = await box.sh('echo "$A|${HOME-unset}|$LANG"', env={"A": "x=y z", "HOME": None})
    assert output.stdout == b"x=y z|unset|C.UTF-8\n"
    assert await box.text('echo "${A-unset}|$HOME"') == "unset|/root"


async def test_the_environment_is_the_documented_one(box: Box) -> None:
    lines = (await box.run("env")).stdout.decode().splitlines()
    env = dict(line.split("=", 1) for line in lines)
    assert env["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert (env["HOME"], env["LANG"], env["USER"], env["TZ"]) == ("/root", "C.UTF-8", "root", "UTC")
    limits = {"ATOLL_CPUS", "ATOLL_MEMORY", "ATOLL_DISK", "ATOLL_PIDS"}
    assert limits <= set(env)
    image = {"PIP_BREAK_SYSTEM_PACKAGES", "PIP_ROOT_USER_ACTION"}
    assert set(env) <= {"PATH", "HOME", "LANG", "USER", "TZ"} | limits | image
    assert await box.text("date +%Z") == "UTC"


async def test_without_stdin_a_reader_sees_the_end_at_once(box: Box) -> None:
    assert (await box.run("cat")).stdout == b""


async def test_large_input_passes_through_a_slow_reader(box: Box) -> None:
    data = b"0123456789abcdef" * 2**18  # 4 MiB: more than the pipe, the agent and the sockets hold together
    output = await box.sh("sleep 0.3; cat", stdin=data)
    assert hashlib.sha256(output.stdout).digest() == hashlib.sha256(data).digest()


async def test_input_for_a_program_that_does_not_read_is_no_error(box: Box) -> None:
    output = await box.run("true", stdin=b"x" * 2**21)
    assert output.done.exit_code == 0
    assert await box.text("echo next") == "next"


async def test_a_megabyte_on_each_stream_arrives_in_order(box: Box) -> None:
    output = await box.sh("seq 1 150000; seq 150000 -1 1 >&2")
    assert output.stdout == b"".join(b"%d\n" % number for number in range(1, 150001))
    assert output.stderr == b"".join(b"%d\n" % number for number in range(150000, 0, -1))


async def test_output_past_the_limit_is_dropped_and_said_to_be(box: Box) -> None:
    output = await box.sh("seq 1 100000; echo end >&2; exit 5", max_output=1000)
    assert len(output.stdout) == 1000
    assert output.stdout.startswith(b"1\n2\n3\n")
    assert (output.stderr, output.done.truncated, output.done.exit_code) == (b"end\n", True, 5)


async def test_output_of_exactly_the_limit_is_whole(box: Box) -> None:
    output = await box.sh("printf 12345", max_output=5)
    assert (output.stdout, output.done.truncated) == (b"12345", False)


async def test_a_timeout_returns_what_was_printed_and_124(box: Box) -> None:
    script = "echo before; : >/tmp/printed; sleep 60; echo after; touch /tmp/late"
    output = await time_out_after_printing(box, lambda timeout: box.sh(script, timeout=timeout))
    assert (output.stdout, output.done.exit_code, output.done.timed_out) == (b"before\n", 124, True)
    assert await box.text("test ! -e /tmp/late; echo $?") == "0"


async def test_a_timeout_ends_the_whole_tree(box: Box) -> None:
    await box.sh("sleep 4321 & setsid sleep 4321 & (sleep 4321 &) ; sleep 4321", timeout=2.0)
    await wait_until_gone(box, "sleep 4321")


async def test_many_that_time_out_at_once_all_end_with_what_they_started(box: Box) -> None:
    script = "trap '' TERM; setsid sleep 4321 & sleep 4321; sleep 4321"
    outputs = await asyncio.gather(*(box.sh(script, timeout=1.0) for _ in range(30)))
    assert {(output.done.exit_code, output.done.timed_out) for output in outputs} == {(124, True)}
    await wait_until_gone(box, "sleep 4321")


async def test_a_program_that_ignores_sigterm_is_killed(box: Box) -> None:
    output = await box.sh("trap '' TERM; while :; do sleep 0.01; done", timeout=0.1)
    assert (output.done.exit_code, output.done.timed_out) == (124, True)


async def test_a_stubborn_child_of_a_polite_parent_is_killed_too(box: Box) -> None:
    script = "sh -c \"trap '' TERM; while :; do sleep 0.01; : stubborn; done\" & wait"
    await box.sh(script, timeout=0.2)
    await wait_until_gone(box, "stubborn")


async def test_a_command_that_is_left_early_is_cancelled(box: Box) -> None:
    async with box.link.operation(Exec(argv=["sh", "-c", "echo go; sleep 4242"])) as connection:
        assert (await connection.next_frame()).payload == b"go\n"
    await wait_until_gone(box, "sleep 4242")


async def test_leaving_while_the_command_does_not_read_its_input_cancels_it(box: Box) -> None:
    async with box.link.operation(Exec(argv=["sleep", "4243"], stdin=True)) as connection:
        feeder = asyncio.create_task(connection.send_input(b"x" * 2**22))
        await asyncio.sleep(0.1)
        assert not feeder.done(), "the agent must not take more input than it can hold"
        feeder.cancel()
    await wait_until_gone(box, "sleep 4243")


async def test_a_background_job_does_not_hold_its_command_up_and_is_not_harmed(box: Box) -> None:
    script = "mkfifo /tmp/go; (read x </tmp/go; echo late; sleep 0.1; echo later; touch /tmp/done) & echo now"
    output = await box.sh(script)
    assert output.stdout == b"now\n"
    await box.text("echo >/tmp/go")
    while not await box.text("test -e /tmp/done && echo yes || true"):
        await asyncio.sleep(0.02)


async def test_a_background_job_that_floods_blocks_nobody(box: Box) -> None:
    await box.sh("yes flood & echo $! >/tmp/pid")
    for _ in range(20):
        assert await box.text("echo ok") == "ok"
    assert await box.text("kill $(cat /tmp/pid) && echo killed") == "killed"


async def test_output_nobody_reads_stops_the_writer_and_not_the_agent(box: Box) -> None:
    async with box.link.operation(Exec(argv=["sh", "-c", "yes | head -c 50000000; touch /tmp/through"])) as connection:
        await connection.next_frame()
        assert await box.text("echo alive") == "alive"
        await asyncio.sleep(0.3)
        assert await box.text("test -e /tmp/through && echo through || echo held") == "held"
        size = 0
        async for frame in connection.frames():
            size += len(frame.payload)
    assert size > 49_000_000


async def test_commands_run_side_by_side(box: Box) -> None:
    script = "echo {0} >/tmp/fifo-free; i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo {0}; done"
    outputs = await asyncio.gather(*(box.sh(script.format(number)) for number in range(30)))
    for number, output in enumerate(outputs):
        assert output.stdout == b"%d\n" % number * 20


async def test_orphans_are_reaped(box: Box) -> None:
    await box.text("for i in 1 2 3 4 5 6 7 8; do (sleep 0.05 &) ; done")
    zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"
    sleeping = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c '(sleep)' || true"
    while int(await box.text(sleeping)) or int(await box.text(zombies)):
        await asyncio.sleep(0.02)


async def test_a_command_gets_three_descriptors_and_no_more(box: Box) -> None:
    names = (await box.text("ls /proc/self/fd")).split()
    assert set(names) - {"3"} == {"0", "1", "2"}, "3 is the directory that ls itself reads"


async def test_a_command_leads_its_own_session_and_signals_are_at_their_defaults(box: Box) -> None:
    stat = (await box.run("cat", "/proc/self/stat")).stdout.decode().split()
    pid, _, _, _, group, session = stat[:6]
    assert pid == group == session
    status = dict(
        line.split(":", 1) for line in (await box.run("cat", "/proc/self/status")).stdout.decode().splitlines()
    )
    assert int(status["SigIgn"], 16) == int(status["SigBlk"], 16) == 0
    assert int(await box.text("umask"), 8) == 0o022


async def test_commands_are_killed_before_the_agent_when_memory_runs_out(box: Box) -> None:
    # A command is marked as soon as it is exec'd, which the very quick can overtake.
    await box.text("until [ $(cat /proc/$$/oom_score_adj) = 600 ]; do :; done")
    assert await box.text("cat /proc/1/oom_score_adj") == "100"


@pytest.mark.parametrize("memory", [MIN_MEMORY, 40 * MIB, 64 * MIB])
@pytest.mark.parametrize("hogs_in_all", [6, 16])
async def test_commands_while_memory_is_short_do_not_cost_the_agent(
    workshop: Workshop, memory: int, hogs_in_all: int
) -> None:
    """Each hog grows until it is killed; of many, each is still smaller than the agent when memory runs out."""
    live = await create(workshop, "short", image="busybox", limits={"memory": memory})
    async with linked(live) as link:
        hogs = [asyncio.create_task(link.run(Exec(argv=["sort", "/dev/zero"]))) for _ in range(hogs_in_all)]
        while not all(task.done() for task in hogs):
            with suppress(AtollError):
                await link.run(Exec(argv=["true"]))
        await asyncio.gather(*hogs, return_exceptions=True)
        assert (await link.run(Exec(argv=["echo", "alive"]))).stdout == b"alive\n"
    await workshop.destroy(live)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (Exec(argv=["no-such-program"]), ErrorCode.COMMAND_NOT_FOUND),
        (Exec(argv=["/no/such/program"]), ErrorCode.COMMAND_NOT_FOUND),
        (Exec(argv=["/etc/hosts/x"]), ErrorCode.COMMAND_NOT_FOUND),
        (Exec(argv=["/etc/hosts"]), ErrorCode.PERMISSION_DENIED),
        (Exec(argv=["/tmp"]), ErrorCode.PERMISSION_DENIED),
        (Exec(argv=["true"], cwd="/nowhere"), ErrorCode.FILE_NOT_FOUND),
        (Exec(argv=["true"], cwd="/etc/hosts"), ErrorCode.NOT_DIRECTORY),
        (Exec(argv=[]), ErrorCode.INVALID_COMMAND),
        (Exec(argv=[""]), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["echo", "a\0b"]), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["true"], env={"A=B": "c"}), ErrorCode.INVALID_ENVIRONMENT),
        (Exec(argv=["true"], env={"": "c"}), ErrorCode.INVALID_ENVIRONMENT),
        (Exec(argv=["true"], env={"A": "\0"}), ErrorCode.INVALID_ENVIRONMENT),
        (Exec(argv=["true"], timeout=-1), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["true"], timeout=float("inf")), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["true"], max_output=-1), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["true"], max_output=2**70), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["echo", "x" * 200_000]), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["echo", "x" * 2_000_000]), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["echo", "\udc80"]), ErrorCode.INVALID_COMMAND),
    ],
    ids=lambda value: value.value if isinstance(value, ErrorCode) else None,
)
async def test_a_command_that_cannot_run_says_why_and_the_next_one_runs(box: Box, call: Exec, code: ErrorCode) -> None:
    with pytest.raises(AtollError) as caught:
        await box.link.run(call)
    assert caught.value.code == code
    assert caught.value.remedy
    assert await box.text("echo next") == "next"


async def test_ping(box: Box) -> None:
    assert (await box.link.ping()).commands_running == 0
    async with box.link.operation(Exec(argv=["sleep", "60"])):
        assert (await box.link.ping()).commands_running == 1


STOPPER = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    for (;;) {
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        waitpid(pid, 0, 0);
        for (int i = 0; i < 200; i++) for (int k = 1; k < 4; k++) kill(pid + k, SIGSTOP);
    }
}
"""


async def test_stopping_whatever_the_agent_spawns_does_not_stop_the_agent(host_box: Box) -> None:
    """The next pid can be guessed, and a child stopped before it execs holds its parent."""
    await host_box.sh("cat >s.c && gcc -O -o s s.c && (setsid ./s >/dev/null 2>&1 &)", stdin=STOPPER.encode())
    tries, hits = 0, 0
    while tries < 60 or not hits:  # while the stopper has hit nothing, this shows nothing
        hits += (await host_box.run("true", timeout=0.3)).done.exit_code in (124, 137)
        tries += 1
        await host_box.link.ping()
