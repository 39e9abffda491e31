"""Sessions: what carries over and what does not, queues, limits, and shells other than bash."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from atoll.protocol.commands import Exec, ExecDone, ExecShell
from atoll.protocol.errors import AtollError, ErrorCode, LimitReachedError
from atoll.protocol.frames import FrameKind
from atoll.protocol.limits import Limits
from atoll.protocol.sessions import CreateSession, DeleteSession, ListSessions, SetEnvironment
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked
from tests.system.test_agent_commands import time_out_after_printing, wait_until_gone

DONE = FrameKind.DONE


async def said(box: Box, command: str, **options: object) -> str:
    """What a command in the default session prints, which must succeed."""
    output = await box.shell(command, **options)  # type: ignore[arg-type]
    assert output.done.exit_code == 0, (output.stdout, output.stderr)
    return output.stdout.decode().strip()


async def test_directory_variables_functions_and_options_carry_over(box: Box) -> None:
    await box.shell("cd /tmp; x='a b'; export y=2; f() { echo \"f $1\"; }; set -f; umask 027")
    assert await said(box, "pwd; echo \"$x\"; sh -c 'echo $y'; f 3; echo *; umask") == "/tmp\na b\n2\nf 3\n*\n0027"


async def test_the_exit_code_carries_over(box: Box) -> None:
    assert (await box.shell("sh -c 'exit 7'")).done.exit_code == 7
    assert await said(box, "echo $?") == "7"
    assert await said(box, "sh -c 'kill -9 $$'; echo $?") == "137"


async def test_a_session_starts_in_workspace_with_the_sandboxes_variables(box: Box) -> None:
    assert await said(box, 'pwd; echo "$HOME $LANG $TZ"') == "/workspace\n/root C.UTF-8 UTC"


async def test_cwd_holds_for_one_command_even_if_that_changes_it(box: Box) -> None:
    await box.shell("cd /usr; cd /tmp")
    assert await said(box, "pwd; cd /etc; pwd", cwd="/bin") == "/bin\n/etc"
    assert await said(box, "pwd; cd - >/dev/null; pwd") == "/tmp\n/usr"


async def test_a_relative_cwd_counts_from_the_sessions_directory(box: Box) -> None:
    await box.shell("mkdir -p /tmp/a/b; cd /tmp/a")
    assert await said(box, "pwd", cwd="b") == "/tmp/a/b"
    assert (await box.run("pwd", session_id="default", cwd="b")).stdout == b"/tmp/a/b\n"


async def test_env_holds_for_one_command_even_if_that_changes_it(box: Box) -> None:
    await box.shell("a=shell; export b=exported")
    call = {"a": "it's $x", "b": None, "c": "new"}
    assert await said(box, 'echo "$a|${b-unset}|$c"; sh -c \'echo "$a|${b-unset}|$c"\'; a=1; b=2; c=3', env=call) == (
        "it's $x|unset|new\nit's $x|unset|new"
    )
    assert await said(box, 'echo "$a|$b|${c-unset}"; sh -c \'echo "$b|${c-unset}"\'') == (
        "shell|exported|unset\nexported|unset"
    )


async def test_cwd_and_env_are_taken_back_after_a_timeout_and_a_syntax_error(box: Box) -> None:
    await box.shell("sleep 60", cwd="/etc", env={"a": "1"}, timeout=0.1)
    assert await said(box, 'pwd; echo "${a-unset}"') == "/workspace\nunset"
    await box.shell("echo 'open", cwd="/etc", env={"a": "1"})
    assert await said(box, 'pwd; echo "${a-unset}"') == "/workspace\nunset"


async def test_an_array_survives_a_call_that_sets_its_name(host_box: Box) -> None:
    await host_box.shell("list=(1 2 3); declare -i number=4")
    await host_box.shell("true", env={"list": "x", "number": "y"})
    assert await said(host_box, 'number+=1; echo "${list[@]} $number"') == "1 2 3 5"


async def test_standard_input_holds_for_one_command(box: Box) -> None:
    data = b"0123456789abcdef" * 2**18
    output = await box.shell("sleep 0.2; cat", stdin=data)
    assert hashlib.sha256(output.stdout).digest() == hashlib.sha256(data).digest()
    assert await said(box, "cat") == ""
    assert await said(box, "head -c 3", stdin=data) == "012"
    assert await said(box, "true", stdin=data) == ""
    assert await said(box, "read x; echo $x", stdin=b"line\n") == "line"


async def test_a_command_has_three_descriptors_and_no_more(box: Box) -> None:
    names = (await said(box, "ls /proc/self/fd", stdin=b"x")).split()
    assert set(names) - {"3"} == {"0", "1", "2"}, "3 is the directory that ls itself reads"


async def test_a_program_of_a_session_starts_in_its_directory(box: Box) -> None:
    await box.shell("cd /tmp")
    assert (await box.run("pwd", session_id="default")).stdout == b"/tmp\n"
    assert (await box.run("pwd")).stdout == b"/workspace\n"
    await box.shell("cd /etc; exit 1")
    assert (await box.run("pwd", session_id="default")).stdout == b"/etc\n"


async def test_output_comes_while_the_command_runs(box: Box) -> None:
    async with box.link.operation(ExecShell(command="echo one; read x; echo two", stdin=True)) as connection:
        assert (await connection.next_frame()).payload == b"one\n"
        await connection.send_input(b"go\n")
        assert (await connection.next_frame()).payload == b"two\n"


async def test_output_past_the_limit_is_dropped_and_said_to_be(box: Box) -> None:
    output = await box.shell("seq 1 100000; echo end >&2; x=5", max_output=1000)
    assert (len(output.stdout), output.stderr, output.done.truncated) == (1000, b"end\n", True)
    assert await said(box, "echo $x") == "5"


async def test_output_nobody_reads_stops_the_writer_and_nobody_else(box: Box) -> None:
    async with box.link.operation(ExecShell(command="yes | head -c 50000000; touch /tmp/through")) as connection:
        await connection.next_frame()
        await asyncio.sleep(0.2)
        assert await box.text("test -e /tmp/through && echo through || echo held") == "held"
        size = 0
        async for frame in connection.frames():
            size += len(frame.payload)
    assert size > 49_000_000


async def test_commands_of_one_session_run_in_order(box: Box) -> None:
    await box.shell("order=")
    calls = [box.shell(f"order=${{order}}{letter}; sleep 0.01; echo $order") for letter in "abcdefgh"]
    outputs = await asyncio.gather(*calls)
    assert [output.stdout.strip().decode() for output in outputs] == ["abcdefgh"[:end] for end in range(1, 9)]


async def test_programs_run_at_once_where_the_last_command_left_the_session(box: Box) -> None:
    await box.shell("cd /tmp; export v=1")
    async with box.link.operation(ExecShell(command="cd /etc; export v=2; echo go; read x", stdin=True)) as first:
        await first.next_frame()
        for _ in range(3):
            assert (await box.run("sh", "-c", "pwd; echo $v", session_id="default")).stdout == b"/tmp\n1\n"
        await first.send_input(b"\n")
        assert (await first.next_frame()).kind is FrameKind.DONE
    assert (await box.run("sh", "-c", "pwd; echo $v", session_id="default")).stdout == b"/etc\n2\n"


async def test_one_whose_turn_does_not_come_in_its_time_is_told_what_the_session_does(box: Box) -> None:
    async with box.link.operation(ExecShell(command="echo go; read x # \x1b[31m\nmore", stdin=True)) as first:
        await first.next_frame()
        with pytest.raises(TimeoutError, match="busy") as caught:
            await box.shell("touch /tmp/never", timeout=0.05)
        assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.SESSION_BUSY
        assert caught.value.context["busy_with"] == "echo go; read x # \\x1b[31m…"
        assert ((await box.link.ask(ListSessions())).sessions)[0].commands_waiting == 1
        await first.send_input(b"\n")
        await first.next_frame()
    assert await said(box, "test -e /tmp/never || echo never") == "never"


async def test_the_time_a_command_waits_is_not_given_to_it_once_more(box: Box) -> None:
    async with box.link.operation(ExecShell(command="echo go; read x", stdin=True)) as first:
        await first.next_frame()
        async with box.link.operation(ExecShell(command="sleep 60", timeout=3)) as second:
            assert (await second.next_frame()).kind is FrameKind.WAITING
            await asyncio.sleep(2)
            await first.send_input(b"\n")
            done = [msgspec.msgpack.decode(f.payload, type=ExecDone) async for f in second.frames() if f.kind is DONE]
            assert (done[0].timed_out, done[0].exit_code) == (True, 124) and done[0].duration < 3
    assert await said(box, "echo on") == "on"


async def test_deleting_a_session_ends_what_runs_beside_its_shell(box: Box) -> None:
    await box.link.ask(CreateSession(session_id="doomed"))
    async with box.link.operation(Exec(argv=["sh", "-c", "echo go; sleep 60"], session_id="doomed")) as program:
        await program.next_frame()
        await box.link.ask(DeleteSession(session_id="doomed"))
        done = msgspec.msgpack.decode((await program.next_frame()).payload, type=ExecDone)
        assert done.exit_code == 143


async def test_one_that_waits_hears_so_and_when_it_starts(box: Box) -> None:
    async with box.link.operation(ExecShell(command="echo go; read x", stdin=True)) as first:
        await first.next_frame()
        async with box.link.operation(ExecShell(command="cat", stdin=True)) as second:
            assert (await second.next_frame()).kind is FrameKind.WAITING
            await second.send_input(b"held meanwhile")
            await first.send_input(b"\n")
            assert (await second.next_frame()).kind is FrameKind.STARTED
            assert (await second.next_frame()).payload == b"held meanwhile"


async def test_one_that_waits_and_is_left_never_runs(box: Box) -> None:
    async with box.link.operation(ExecShell(command="echo go; read x", stdin=True)) as first:
        await first.next_frame()
        async with box.link.operation(ExecShell(command="touch /tmp/never")) as second:
            assert (await second.next_frame()).kind is FrameKind.WAITING
        while ((await box.link.ask(ListSessions())).sessions)[0].commands_waiting > 1:
            await asyncio.sleep(0.01)
        await first.send_input(b"\n")
        await first.next_frame()
    assert await said(box, "test -e /tmp/never || echo never") == "never"


async def test_sessions_run_side_by_side_and_share_files(box: Box) -> None:
    for name in ("reader", "writer"):
        await box.link.ask(CreateSession(session_id=name))
    await box.shell("mkfifo /tmp/fifo")
    reader = asyncio.create_task(box.shell("cat /tmp/fifo", session="reader"))
    await box.shell("echo through >/tmp/fifo", session="writer")
    assert (await reader).stdout == b"through\n"


async def test_a_session_has_its_own_directory_and_variables(box: Box) -> None:
    info = await box.link.ask(CreateSession(session_id="own", cwd="/tmp", env={"a": "1", "HOME": None}))
    assert (info.id, info.cwd, info.commands_waiting) == ("own", "/tmp", 0)
    assert (await box.shell('pwd; echo "$a ${HOME-unset}"; cd /etc', session="own")).stdout == b"/tmp\n1 unset\n"
    assert await said(box, 'pwd; echo "${a-unset}"') == "/workspace\nunset"
    assert {session.id: session.cwd for session in (await box.link.ask(ListSessions())).sessions} == {
        "own": "/etc",
        "default": "/workspace",
    }


async def test_a_new_environment_reaches_programs_and_every_session(box: Box) -> None:
    await box.link.ask(CreateSession(session_id="old"))
    await box.shell("true", session="old")
    await box.link.ask(SetEnvironment(env={"NEW": "it's new", "HOME": None, "not-for-a-shell": "x"}))
    await box.link.ask(CreateSession(session_id="young"))
    script = 'echo "$NEW|${HOME-unset}"; sh -c \'echo "$NEW|${HOME-unset}"\''
    for session in ("old", "young", "default"):
        assert (await box.shell(script, session=session)).stdout == b"it's new|unset\n" * 2
    assert await box.text('echo "$NEW|${HOME-unset}"') == "it's new|unset"


async def test_a_new_environment_reaches_a_shell_that_is_replaced(box: Box) -> None:
    await box.shell("export NEW=old")
    await box.link.ask(SetEnvironment(env={"NEW": "new"}))
    await box.shell("kill -9 $$")
    assert await said(box, "echo $NEW") == "new"


async def test_a_shell_that_nobody_uses_for_its_tmout_leaves_everything_to_the_next(host_box: Box) -> None:
    shell = await said(host_box, "kept=yes; TMOUT=1; echo $$")
    while await host_box.text(f"test -e /proc/{shell} && echo alive || true"):
        await asyncio.sleep(0.01)
    assert await said(host_box, f"echo $kept $(( $$ != {shell} ))") == "yes 1"


async def test_deleting_a_session_ends_its_command_and_spares_its_jobs(box: Box) -> None:
    await box.link.ask(CreateSession(session_id="gone"))
    await box.shell("sleep 4801 & setsid sleep 4801 &", session="gone")
    count = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done | grep -c 'sleep 480[1]'"
    while (await box.sh(count)).stdout != b"2\n":  # until then they are called as the shell is
        await asyncio.sleep(0.01)
    async with box.link.operation(ExecShell(command="echo go; sleep 4802", session_id="gone")) as running:
        await running.next_frame()
        waiting = asyncio.create_task(box.shell("true", session="gone"))
        while ((await box.link.ask(ListSessions())).sessions)[0].commands_waiting < 2:
            await asyncio.sleep(0.01)
        await box.link.ask(DeleteSession(session_id="gone"))
        assert (await running.next_frame()).kind is FrameKind.DONE
    with pytest.raises(AtollError) as caught:
        await waiting
    assert caught.value.code == ErrorCode.SESSION_NOT_FOUND
    await wait_until_gone(box, "sleep 4802")
    assert await box.text(count) == "2"
    assert (await box.link.ask(ListSessions())).sessions == []


async def test_the_default_session_can_be_deleted_and_comes_back_fresh(box: Box) -> None:
    await box.shell("x=1; cd /tmp")
    await box.link.ask(DeleteSession(session_id="default"))
    assert await said(box, 'pwd; echo "${x-fresh}"') == "/workspace\nfresh"


async def test_sessions_are_bounded_and_room_comes_back(box: Box) -> None:
    with pytest.raises(LimitReachedError, match="already has 64 sessions") as caught:
        for number in range(65):
            await box.link.ask(CreateSession(session_id=str(number)))
    assert caught.value.remedy
    await box.link.ask(DeleteSession(session_id="0"))
    assert await said(box, "echo room") == "room"


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a/b", "a b", "ä", "x" * 64, "a\0b", "a\n"])
async def test_a_session_id_has_rules(box: Box, name: str) -> None:
    with pytest.raises(ValueError, match="not a session id") as caught:
        await box.link.ask(CreateSession(session_id=name))
    assert isinstance(caught.value, AtollError) and caught.value.code == ErrorCode.INVALID_SESSION_ID


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (ExecShell(command="true", session_id="nobody"), ErrorCode.SESSION_NOT_FOUND),
        (Exec(argv=["true"], session_id="nobody"), ErrorCode.SESSION_NOT_FOUND),
        (ExecShell(command="true", session_id="a/b"), ErrorCode.INVALID_SESSION_ID),
        (ExecShell(command="touch /tmp/ran; echo \0"), ErrorCode.INVALID_COMMAND),
        (ExecShell(command="touch /tmp/ran", cwd="/nowhere"), ErrorCode.FILE_NOT_FOUND),
        (ExecShell(command="touch /tmp/ran", cwd="/etc/hosts"), ErrorCode.NOT_DIRECTORY),
        (ExecShell(command="touch /tmp/ran", cwd="/tmp\0"), ErrorCode.INVALID_COMMAND),
        (ExecShell(command="touch /tmp/ran", env={"a-b": "c"}), ErrorCode.INVALID_ENVIRONMENT),
        (ExecShell(command="touch /tmp/ran", env={"a": "\0"}), ErrorCode.INVALID_ENVIRONMENT),
        (ExecShell(command="touch /tmp/ran", timeout=-1), ErrorCode.INVALID_COMMAND),
        (ExecShell(command="touch /tmp/ran", max_output=-1), ErrorCode.INVALID_COMMAND),
        (ExecShell(command="x" * 2_000_000), ErrorCode.INVALID_COMMAND),
        (Exec(argv=["no-such-program"], session_id="default"), ErrorCode.COMMAND_NOT_FOUND),
        (Exec(argv=["touch", "/tmp/ran"], session_id="default", cwd="nowhere"), ErrorCode.FILE_NOT_FOUND),
    ],
    ids=lambda value: value.value if isinstance(value, ErrorCode) else None,
)
async def test_what_cannot_run_says_why_and_leaves_the_session_as_it_was(
    box: Box, call: Exec | ExecShell, code: ErrorCode
) -> None:
    await box.shell("x=1; cd /tmp")
    with pytest.raises(AtollError) as caught:
        await box.link.run(call)
    assert (caught.value.code, bool(caught.value.remedy)) == (code, True)
    assert await said(box, "test -e /tmp/ran || echo $x $PWD") == "1 /tmp"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (CreateSession(session_id="x", cwd="/nowhere"), ErrorCode.FILE_NOT_FOUND),
        (CreateSession(session_id="x", cwd="/etc/hosts"), ErrorCode.NOT_DIRECTORY),
        (CreateSession(session_id="x", cwd="\0"), ErrorCode.INVALID_COMMAND),
        (CreateSession(session_id="x", env={"=": "c"}), ErrorCode.INVALID_ENVIRONMENT),
        (CreateSession(session_id="taken"), ErrorCode.SESSION_EXISTS),
    ],
)
async def test_a_session_that_cannot_be_created_says_why(box: Box, call: CreateSession, code: ErrorCode) -> None:
    await box.link.ask(CreateSession(session_id="taken"))
    with pytest.raises(AtollError) as caught:
        await box.link.ask(call)
    assert (caught.value.code, bool(caught.value.remedy)) == (code, True)
    assert [session.id for session in (await box.link.ask(ListSessions())).sessions] == ["taken"]


async def test_deleting_a_session_that_is_not_there_says_so(box: Box) -> None:
    with pytest.raises(LookupError, match="no session 'nobody'"):
        await box.link.ask(DeleteSession(session_id="nobody"))


@pytest.mark.parametrize("size", [1_000, 500_000, 1_000_000])
async def test_a_long_command_runs_whole(box: Box, size: int) -> None:
    text = "it's long " * (size // 14)
    quoted = text.replace("'", "'\\''")
    assert (await box.shell(f"printf %s '{quoted}'")).stdout.decode() == text


@pytest.mark.parametrize("text", ["née ✓ \t", "$'x'", 'a "b" \\ `c`', "!x !! !1", "-e", "%s\\n", "a\r\nb", "*?[]{}~"])
async def test_text_reaches_the_shell_as_it_is(box: Box, text: str) -> None:
    quoted = text.replace("'", "'\\''")
    assert (await box.shell(f"printf %s '{quoted}'")).stdout.decode() == text


async def test_a_command_as_the_shells_own_child_is_killed_before_the_agent(box: Box) -> None:
    assert await said(box, "cat /proc/self/oom_score_adj; cat /proc/$$/oom_score_adj") == "600\n600"


async def test_a_cancelled_command_leaves_the_session_usable_at_once(box: Box) -> None:
    for _ in range(10):
        async with box.link.operation(ExecShell(command="echo go; while :; do :; done")) as connection:
            await connection.next_frame()
        assert await said(box, "echo next") == "next"


async def test_a_child_that_is_about_to_start_when_its_command_is_cancelled_dies_too(box: Box) -> None:
    await box.shell("x=kept")
    for _ in range(40):
        async with box.link.operation(ExecShell(command="echo go; sleep 4804; touch late")) as connection:
            await connection.next_frame()
        assert await said(box, "test -e late || echo $x") == "kept"
    await wait_until_gone(box, "sleep 4804")


async def test_a_stubborn_tree_that_forks_while_it_dies_is_caught(box: Box) -> None:
    script = "sh -c \"trap '' TERM; while :; do (sh -c 'exec sleep 4803' &); sleep 0.005; : forker; done\""
    await box.shell(script, timeout=0.2)
    await wait_until_gone(box, "forker")
    await wait_until_gone(box, "sleep 4803")


async def test_quick_commands_with_timeouts_race_their_ends(box: Box) -> None:
    """Whether a command ends or is ended, its session goes on, and its result says which."""
    await box.shell("x=kept")
    for number in range(40):
        output = await box.shell("sleep 0.0$((RANDOM % 3)) 2>/dev/null || sleep 0", timeout=0.002 * (number % 10))
        assert output.done.exit_code == 124 if output.done.timed_out else output.done.exit_code in (0, 1)
        assert await said(box, "echo $x") == "kept"


SMALL = Limits(cpus=1, memory="64MiB", pids=64)


@pytest.fixture
async def small(workshop: Workshop) -> AsyncIterator[Box]:
    live = await create(workshop, "small-session", image="host", limits=SMALL)
    async with linked(live) as link:
        yield Box(live, link, "host")
    await workshop.destroy(live)


async def test_a_command_killed_by_the_oom_killer_leaves_the_session_as_it_was(small: Box) -> None:
    await small.shell("f() { echo f; }; x=1; cd /tmp")
    assert await said(small, "python3 -c 'x = bytearray(200 * 2**20)'; echo $?") == "137"
    assert await said(small, "f; echo $x; pwd") == "f\n1\n/tmp"


async def test_a_shell_killed_by_the_oom_killer_is_replaced_with_its_state(small: Box) -> None:
    await small.shell("f() { echo f; }; x=1; cd /tmp")
    output = await small.shell("huge=$(yes | head -c 200000000)")
    assert output.done.exit_code in (137, 141)
    assert await said(small, "f; echo $x; pwd") == "f\n1\n/tmp"


async def test_state_that_does_not_fit_is_not_saved_and_nothing_breaks(host_box: Box) -> None:
    await host_box.shell("x=1")
    await host_box.shell("huge=$(yes | head -c 40000000)")
    await host_box.shell("huger=$huge")
    assert await said(host_box, "echo ${#huger}; huge= huger=") == "39999999"
    await host_box.shell("kill -9 $$")
    assert await said(host_box, "echo $x") == "1"


async def test_a_session_that_saves_much_takes_no_room_from_another(host_box: Box) -> None:
    await host_box.link.ask(CreateSession(session_id="large"))
    for size in (25, 31, 33, 28):
        await host_box.shell(f"huge=$(head -c {size}000000 /dev/zero | tr '\\0' x)", session="large")
        for _ in range(5):
            assert await said(host_box, "echo room") == "room"
    fill = "for fd in /proc/$$/fd/*; do head -c 100000000 /dev/zero >$fd/restore; done 2>/dev/null"
    await host_box.shell(fill, session="large")
    assert await said(host_box, "echo room") == "room"


async def test_no_room_for_a_shell_is_a_typed_error(small: Box) -> None:
    fill = "import os, time\ntry:\n  while os.fork(): pass\nexcept OSError: print('full', flush=True)\ntime.sleep(60)"
    async with small.link.operation(Exec(argv=["python3", "-c", fill])) as connection:
        assert (await connection.next_frame()).payload == b"full\n"
        with pytest.raises(LimitReachedError):
            await small.shell("true")
    while True:
        try:
            assert await said(small, "echo room") == "room"
            return
        except LimitReachedError:  # the cancelled ones have not all gone yet
            await asyncio.sleep(0.02)


async def test_dash_is_as_good_as_busybox(host_box: Box) -> None:
    await host_box.run("rm", "/usr/bin/bash")
    await host_box.shell("f() { echo f; }; x=1; cd /tmp; sleep 0.01 &")
    assert (await host_box.shell("echo 'open")).done.exit_code == 2
    assert (await host_box.shell("sleep 60; touch late", timeout=0.1)).done.exit_code == 124
    assert await said(host_box, "f; echo $x; pwd; test -e late || echo $BASH_VERSION") == "f\n1\n/tmp"
    assert (await host_box.shell("set -e; false")).done.exit_code == 1
    assert await said(host_box, "echo $x; pwd; echo $-") == "1\n/tmp\nsie"
    await host_box.shell("set +e; export y=2; exit 3")
    assert await said(host_box, 'echo "${x-fresh} $y"; pwd; cat', stdin=b"in") == "fresh 2\n/tmp\nin"


async def test_without_any_shell_the_error_says_so(host_box: Box) -> None:
    await host_box.run("rm", "/usr/bin/bash", "/usr/bin/dash", "/usr/bin/sh")
    with pytest.raises(FileNotFoundError, match="no shell"):
        await host_box.shell("true")
    assert (await host_box.run("echo", "x")).stdout == b"x\n"


async def test_a_thing_called_bash_that_is_none_does_no_harm(host_box: Box) -> None:
    await host_box.text(
        "printf '#!/bin/sh\\nexec cat\\n' >/tmp/cat-shell; chmod +x /tmp/cat-shell; cp /tmp/cat-shell /bin/bash"
    )
    output = await host_box.shell("true", timeout=0.5)
    assert output.done.timed_out or output.done.session_ended
    await host_box.text("rm /bin/bash")
    assert await said(host_box, "echo $-") == "si"


DEATHS = ("exec true", "kill -9 $$", "f() { kill -9 $$; }; f", "exec /bin/sh -c 'exit 3'")


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("commands", [1, 2, 3])
async def test_a_shell_that_dies_without_a_word_leaves_the_state_after_the_last_command(
    host_box: Box, death: str, commands: int
) -> None:
    for number in range(1, commands + 1):
        await host_box.shell(f"mkdir -p /tmp/{number}; cd /tmp/{number}; x={number}; f() {{ echo f{number}; }}")
    for _ in range(2):  # the state of one that a shell began with is not lost either
        assert (await host_box.shell(f"x=lost; cd /; {death}")).done.session_ended
        assert await said(host_box, "pwd; echo $x; f") == f"/tmp/{commands}\n{commands}\nf{commands}"


async def test_nor_is_it_lost_after_commands_that_timed_out(host_box: Box) -> None:
    await host_box.shell("x=1; cd /tmp")
    await host_box.shell("x=2; cd /usr")
    command = "x=3; : >/tmp/printed; sleep 60"
    await time_out_after_printing(host_box, lambda timeout: host_box.shell(command, timeout=timeout))
    await host_box.shell("kill -9 $$")
    assert await said(host_box, "echo $x $PWD") == "3 /usr"


ENDS = ("exit 2", "f() { exit 2; }; f", "set -e; false", "f() { return 3; }; set -e; f", "set -eu; echo $nowhere")


@pytest.mark.parametrize("end", ENDS)
async def test_what_was_given_to_one_command_does_not_outlive_its_shell(box: Box, end: str) -> None:
    await box.shell("cd /usr; export kept=1 other=own")
    await box.shell(end, env={"secret": "x", "other": "given", "kept": None}, cwd="/tmp")
    assert await said(box, "set +eu; echo [$secret] $other $kept $PWD") == "[] own 1 /usr"


FAILURES = (
    "false",
    "echo $nowhere",
    "echo ${nowhere:?}",
    "f() { echo $nowhere; }; f",
    "g() { ls /nowhere; }; f() { g; }; f",
    "echo 'open",
    "if then",
    "readonly r=1; r=2",
    "false | true",
    "(exit 4)",
    ". /nowhere",
    "cd /nowhere",
)


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_in_strict_mode_keeps_everything_and_says_nothing_of_ours(host_box: Box, failure: str) -> None:
    await host_box.shell("set -euo pipefail")
    await host_box.shell("cd /usr; x=1; export y=2; fn() { echo fn; }")
    output = await host_box.shell(f"x=3\n{failure}")
    assert output.done.exit_code != 0
    assert not output.done.session_ended
    assert b"/proc/self/fd" not in output.stderr
    assert await said(host_box, "pwd; echo $y; fn") == "/usr\n2\nfn"
    assert "u" in await said(host_box, "echo $-")


@pytest.mark.parametrize("end", ["exit 3", "die() { exit 3; }; die", "die() { (exit 3); exit; }; die", "eval 'exit 3'"])
async def test_exit_from_anywhere_keeps_directory_and_exported_variables(box: Box, end: str) -> None:
    await box.shell("plain=1")
    output = await box.shell(f"cd /usr; export z=9; {end}")
    assert (output.done.exit_code, output.done.session_ended, output.stderr) == (3, True, b"")
    assert await said(box, "echo $PWD $z [$plain]") == "/usr 9 []"
