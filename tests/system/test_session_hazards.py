"""What a shell session must survive, with its directory, variables and functions, in bash and in busybox's sh.

Each hazard is met in the default session, in a named one, and with the output read as a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from atoll.protocol.calls import result
from atoll.protocol.commands import CommandOutput, ExecShell
from atoll.protocol.frames import FrameKind
from atoll.protocol.sessions import CreateSession
from tests.conftest import Box
from tests.system.test_agent_commands import time_out_after_printing, wait_until_gone

WAYS = ("default", "named", "streaming")


@dataclass
class Talk:
    """One way to talk to a session, which has been given a directory, a variable and a function to keep."""

    box: Box
    way: str

    @property
    def session(self) -> str:
        return "default" if self.way == "default" else "another"

    @property
    def is_bash(self) -> bool:
        return self.box.image == "host"

    async def run(self, command: str, *, stdin: bytes | None = None, **options: object) -> CommandOutput:
        if self.way == "streaming" and stdin is None:
            return await self._stream(ExecShell(command=command, session_id=self.session, **options))  # type: ignore[arg-type]
        return await self.box.shell(command, session=self.session, stdin=stdin, **options)

    async def _stream(self, call: ExecShell) -> CommandOutput:
        output = {FrameKind.STDOUT: b"", FrameKind.STDERR: b""}
        async with self.box.link.operation(call) as connection:
            async for frame in connection.frames():
                if frame.kind is FrameKind.DONE:
                    done = result(call, frame)
                elif frame.kind in output:
                    output[frame.kind] += frame.payload
        return CommandOutput(stdout=output[FrameKind.STDOUT], stderr=output[FrameKind.STDERR], done=done)

    async def check_state(self) -> None:
        output = await self.run('kept_function; echo "$kept"; pwd')
        assert (output.stdout, output.stderr) == (b"function\nvariable\n/tmp\n", b"")

    async def check_saved_state(self) -> None:
        """After its shell was killed: a plain sh cannot print its functions."""
        if self.is_bash:
            await self.check_state()
        else:
            assert (await self.run('echo "$kept"; pwd')).stdout == b"variable\n/tmp\n"


@pytest.fixture(params=WAYS)
async def talk(request: pytest.FixtureRequest, box: Box) -> AsyncIterator[Talk]:
    talk = Talk(box, request.param)
    if talk.session != "default":
        await box.link.ask(CreateSession(session_id=talk.session))
    await talk.run("kept_function() { echo function; }; kept=variable; cd /tmp")
    yield talk
    assert (await talk.run("echo usable")).stdout == b"usable\n"


async def test_a_syntax_error(talk: Talk) -> None:
    output = await talk.run("if then; fi )")
    assert output.done.exit_code == 2 and b"syntax error" in output.stderr.lower()
    await talk.check_state()


@pytest.mark.parametrize(
    "command", ["echo 'open", 'echo "open', "echo $(open", "echo `open", "if true; then", "{ echo"]
)
async def test_an_unterminated_quote(talk: Talk, command: str) -> None:
    output = await talk.run(command)
    assert output.done.exit_code == 2 and output.stderr
    await talk.check_state()


async def test_an_unterminated_here_document(talk: Talk) -> None:
    assert (await talk.run("cat <<EOF\nline")).stdout.startswith(b"line")
    await talk.check_state()


async def test_set_e_and_a_failure(talk: Talk) -> None:
    output = await talk.run("set -e; late=yes; false; touch /tmp/never")
    assert (output.done.exit_code, output.done.session_ended) == (1, False)
    assert (await talk.run('test -e /tmp/never || case $- in *e*) echo "$late";; esac')).stdout == b"yes\n"
    await talk.check_saved_state()
    assert (await talk.run("false; echo no")).stdout == b""
    await talk.check_saved_state()


async def test_set_u_and_an_unset_variable(talk: Talk) -> None:
    output = await talk.run('set -u; echo "$nothing"; echo no')
    assert output.done.exit_code != 0 and output.stdout == b"" and b"nothing" in output.stderr
    await talk.check_state()


async def test_exec_2_to_1(talk: Talk) -> None:
    assert (await talk.run("exec 2>&1; echo x >&2")).stdout == b"x\n"
    await talk.check_state()


async def test_exec_that_closes_everything(talk: Talk) -> None:
    await talk.run("exec 0<&- 1>&- 2>&-")
    await talk.check_state()


async def test_exec_of_something_that_does_not_exist(talk: Talk) -> None:
    output = await talk.run("exec /no/such/program")
    assert output.done.exit_code == 127
    if talk.is_bash:
        await talk.check_state()
    else:
        assert output.done.session_ended, "a plain sh exits then, as POSIX has it"


async def test_exec_of_another_program(talk: Talk) -> None:
    output = await talk.run("exec false")
    assert (output.done.exit_code, output.done.session_ended) == (1, True)
    await talk.check_saved_state()


@pytest.mark.parametrize("signal", ["INT", "TERM", "EXIT", "HUP", "CHLD"])
async def test_a_trap(talk: Talk, signal: str) -> None:
    await talk.run(f"trap 'echo trapped' {signal}")
    assert (await talk.run("trap")).stdout.count(b"trapped") == 1
    await talk.check_state()


async def test_traps_that_ignore(talk: Talk) -> None:
    assert (await talk.run("trap '' INT TERM HUP QUIT")).done.exit_code == 0
    await talk.check_state()


async def test_a_command_that_reads_standard_input(talk: Talk) -> None:
    assert (await talk.run("cat; read x; echo $?")).stdout == b"1\n"
    assert (await talk.run("cat", stdin=b"given")).stdout == b"given"
    await talk.check_state()


async def test_a_background_job_that_keeps_the_output_open(talk: Talk) -> None:
    output = await talk.run("(while :; do echo late; sleep 0.01; done) & echo $! >&2")
    job = output.stderr.strip().decode()
    for _ in range(5):
        assert (await talk.run("echo mine; echo own >&2")).stdout == b"mine\n"
    assert (await talk.run(f"kill {job} && echo lived")).stdout == b"lived\n"
    await talk.check_state()


async def test_a_child_that_ignores_sigterm(talk: Talk) -> None:
    shell = (await talk.run("echo $$")).stdout
    for _ in range(5):  # its orphans end at another moment each time, and the shell hears of it wherever it is
        output = await talk.run(
            "sh -c \"trap '' TERM; while :; do sleep 0.01; : stubborn; done\"; touch late", timeout=0.1
        )
        assert (output.done.exit_code, output.done.timed_out, output.done.session_ended) == (124, True, False)
        await wait_until_gone(talk.box, "stubborn")
        assert (await talk.run("test -e late")).done.exit_code == 1
        await talk.check_state()
    assert (await talk.run("echo $$")).stdout == shell


async def test_words_that_a_shell_is_told_things_with_mean_something_else(talk: Talk) -> None:
    """Fields are split at digits, and what we use is a function or an alias."""
    await talk.run("IFS=0123456789; set -u; alias read=false while=false; test() { false; }; read() { false; }")
    for number in range(12):
        assert (await talk.run(f"echo {number}")).stdout == b"%d\n" % number
    await talk.run("unalias read while; unset -f test read; set +u; IFS=' '")
    await talk.check_state()


@pytest.mark.parametrize(
    "command",
    [
        "sleep 4711; touch late",
        "while :; do :; done; touch late",
        "while :; do sleep 0.01; done; touch late",
        "(while :; do :; done); touch late",
        "f() { sleep 4711; touch late; }; f; touch late",
        "x=$(sleep 4711); touch late",
        "sleep 4711 | cat; touch late",
        "sleep 4711 || touch late",
        "if ! sleep 4711; then touch late; fi",
        "eval 'sleep 4711; touch late'; touch late",
        "trap 'touch late' INT; sleep 4711; touch late",
        "trap '' INT; while :; do :; done; touch late",
        "sleep 4711 & setsid sleep 4711 & (setsid sleep 4711 &); wait; touch late",
        "mkfifo fifo; read x <fifo; touch late",
        "cat /dev/zero >/dev/null; touch late",
        "kill -STOP $$; touch late",
    ],
)
async def test_a_timeout(talk: Talk, command: str) -> None:
    line = f"late=set; echo before; : >/tmp/printed; {command}"
    output = await time_out_after_printing(talk.box, lambda timeout: talk.run(line, timeout=timeout))
    assert (output.done.exit_code, output.done.timed_out, output.done.session_ended) == (124, True, False)
    assert output.stdout == b"before\n"
    await wait_until_gone(talk.box, "sleep 4711")
    assert (await talk.run('test -e late || echo "$late"')).stdout == b"set\n"
    await talk.check_state()


async def test_a_timeout_spares_jobs_of_earlier_commands(talk: Talk) -> None:
    await talk.run("sleep 4712 & setsid sleep 4713 & (sleep 4714 &)")
    await talk.run("sleep 4715 & sleep 4716", timeout=0.1)
    await wait_until_gone(talk.box, "sleep 471[56]")
    count = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done | grep -c 'sleep 471[234]'"
    assert await talk.box.text(count) == "3"
    await talk.check_state()


async def test_a_million_lines_of_output(talk: Talk) -> None:
    output = await talk.run("seq 1000000")
    assert output.stdout == b"".join(b"%d\n" % number for number in range(1, 1_000_001))
    await talk.check_state()


async def test_nul_bytes_and_invalid_utf_8(talk: Talk) -> None:
    every = bytes(range(256)) * 100
    assert (await talk.run("cat", stdin=every)).stdout == every
    assert (await talk.run(r"printf '\000\377\376a'")).stdout == b"\0\xff\xfea"
    await talk.check_state()


async def test_a_deleted_working_directory(talk: Talk) -> None:
    await talk.run("mkdir gone; cd gone; rmdir /tmp/gone")
    assert (await talk.run("echo still")).stdout == b"still\n"
    await talk.run("cd /tmp")
    await talk.check_state()


async def test_exit(talk: Talk) -> None:
    output = await talk.run("export exported=yes; cd /etc; exit 3")
    assert (output.done.exit_code, output.done.session_ended) == (3, True)
    assert (await talk.run('pwd; echo "$exported ${kept-fresh}"')).stdout == b"/etc\nyes fresh\n"


async def test_exit_under_set_e(talk: Talk) -> None:
    assert (await talk.run("set -e; exit 0")).done.session_ended
    assert (await talk.run('echo "${kept-fresh}"; false; echo on')).stdout == b"fresh\non\n"


async def test_kill_9_of_the_shell_itself(talk: Talk) -> None:
    output = await talk.run("kill -9 $$")
    assert (output.done.exit_code, output.done.session_ended) == (137, True)
    await talk.check_saved_state()


async def test_other_signals_for_the_shell_itself(talk: Talk) -> None:
    for name in ("TERM", "INT", "QUIT", "TSTP", "TTIN", "USR1", "HUP"):
        await talk.run(f"kill -{name} $$")
    await talk.check_saved_state()


async def test_kill_0(talk: Talk) -> None:
    await talk.run("kill -9 0")
    await talk.check_saved_state()


@pytest.mark.parametrize(
    "command",
    [
        "set -x",
        "set -v",
        "set -f",
        "set -C",
        "set -a",
        "set -m",
        "IFS=0123456789",
        "PATH=",
        "PS1=; PS2=; PS4=",
        "PWD=/lie",
        "unset PWD OLDPWD HOME; CDPATH=/usr",
        "umask 777",
        "alias printf=false eval=false return=false cd=false .=false",
        "printf() { false; }; cd() { false; }; echo_() { false; }; kill() { false; }",
        "return 5; echo no",
        "break; continue 7",
        "TMOUT=30",
        "set -- a b c; shift 2",
        "! true",
        "true &",
        "wait",
        "# only a comment",
        "",
        "\n\n",
        "echo a\\",
        "-n",
        "--help",
        "echo ${x!}",
        "echo $((1/0)); echo no",
        ": ${nothing?message}; echo no",
        "readonly fixed=1; fixed=2; echo no",
        "local x=1",
        "ulimit -c 0",
        "umask 077; echo x >/tmp/private",
    ],
)
async def test_a_setting_that_could_break_the_shell(talk: Talk, command: str) -> None:
    await talk.run(command)
    assert (await talk.run('kept_function; echo "$kept"')).stdout == b"function\nvariable\n"
    await talk.run("true")
    assert (await talk.run("echo out; echo err >&2")).stdout == b"out\n"


@pytest.mark.parametrize(
    "command",
    [
        "set -o posix",
        "POSIXLY_CORRECT=1",
        "set -o vi",
        "set -k",
        "set -r",
        "shopt -s extdebug; trap false DEBUG",
        "trap 'echo debug' DEBUG",
        "trap 'echo err' ERR; false",
        "shopt -s failglob nullglob globstar",
        "enable -n printf",
        "enable -n eval",
        "enable -n builtin",
        "builtin() { false; }",
        "PROMPT_COMMAND='echo prompt; false'",
        "unset PROMPT_COMMAND; PS1='$(false)'",
        "ulimit -n 6",
        'for i in $(seq 3 255); do eval "exec $i>&-"; done',
        "exec 200>&-",
        "exec 10>&- 11>&- 12>&- 13>&-",
        'set -o history; history -c; echo "a!b"',
        "function . { false; }",
        "eval() { false; }",
        "read -r x <&10",
        "printf '7\\0' >&10",
        "declare -r BASH_COMMAND; unset BASH_VERSION",
        "stty -echo; tput reset",
        "kill -41 $$",
        "trap - 41 EXIT",
        "disown -a; suspend",
        "coproc cat; exec 5<&1",
        "LANG=tlh_KL; LC_ALL=C",
    ],
)
async def test_a_setting_that_could_break_bash(host_box: Box, command: str) -> None:
    """Where the shell cannot go on it is replaced; the session goes on in any case."""
    talk = Talk(host_box, "default")
    await talk.run("kept_function() { echo function; }; kept=variable; cd /tmp")
    await talk.run(command, timeout=20)
    assert (await talk.run('kept_function; echo "$kept"', timeout=20)).stdout == b"function\nvariable\n"
    assert (await talk.run("echo out; echo err >&2")).stderr == b"err\n"


@pytest.mark.parametrize("command", ["set -n", "readonly __atoll"])
async def test_a_setting_after_which_the_shell_is_replaced(talk: Talk, command: str) -> None:
    await talk.run(command)
    await talk.check_saved_state()


@pytest.mark.parametrize(
    "command",
    [
        "for fd in /proc/$$/fd/*; do rm -rf $fd/* 2>/dev/null; done",
        "trap 'exit 1' CHLD; /bin/true",
        "PROMPT_COMMAND='exit 9'",
        "PROMPT_COMMAND='kill -9 $$'",
    ],
)
async def test_a_setting_that_costs_the_state(host_box: Box, command: str) -> None:
    await host_box.shell(command)
    for _ in range(3):
        await host_box.shell("true")
    assert (await host_box.shell("echo usable")).stdout == b"usable\n"


async def test_a_command_killed_by_the_oom_killer(talk: Talk) -> None:
    output = await talk.run("sh -c 'kill -9 $$'; echo $?")
    assert output.stdout == b"137\n"
    await talk.check_state()


async def test_a_cancelled_command(talk: Talk) -> None:
    call = ExecShell(command="echo go; sleep 4717; touch late", session_id=talk.session)
    async with talk.box.link.operation(call) as connection:
        assert (await connection.next_frame()).payload == b"go\n"
    assert (await talk.run("test -e late")).done.exit_code == 1
    await wait_until_gone(talk.box, "sleep 4717")
    await talk.check_state()


async def test_hazards_in_parallel_sessions_do_not_disturb_each_other(box: Box) -> None:
    for number in range(8):
        await box.link.ask(CreateSession(session_id=f"s{number}"))
    commands = [
        "sleep 9; touch late",
        "exit 3",
        "while :; do :; done",
        "kill -9 $$",
        "echo 'open",
        "cat",
        "seq 99999",
        ":",
    ]
    async with asyncio.TaskGroup() as group:
        for number, command in enumerate(commands):
            group.create_task(box.shell(command, session=f"s{number}", timeout=0.5))
    for number in range(8):
        assert (await box.shell("echo $((1+1))", session=f"s{number}")).stdout == b"2\n"
