"""Terminals: real shells on real ptys, several viewers, and viewers that misbehave."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from atoll.agent.terminals.views import History
from atoll.protocol.calls import Call, result
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import Frame, FrameKind, encode_frame
from atoll.protocol.messages import encode_message
from atoll.protocol.terminals import (
    MAX_SIZE,
    MAX_WRITE,
    REPLAY_BYTES,
    AttachTerminal,
    CloseTerminal,
    CreateTerminal,
    ListTerminals,
    ResizeTerminal,
    TerminalEvent,
    TerminalInfo,
    TerminalLost,
    TerminalReady,
    TerminalResized,
    ViewFold,
    WaitTerminal,
    WriteTerminal,
)
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.agent_link import AgentLink
from tests.conftest import Box
from tests.system.test_agent_protocol import connect

PROMPT = b"# "  # root's
ATTACH = AttachTerminal(terminal_id="any")


class View:
    """One viewer, as a test uses it: all it has seen, and what it was told."""

    def __init__(self, agent: AgentConnection) -> None:
        self.agent = agent
        self.seen = bytearray()
        self.events: list[TerminalEvent] = []
        self.end: TerminalInfo | None = None

    async def step(self) -> bool:
        frame = await self.agent.next_frame()
        match ViewFold(ATTACH).take(frame):
            case bytes() as data:
                self.seen += data
            case None:
                self.end = result(ATTACH, frame)
            case event:
                self.events.append(event)
        return self.end is None

    async def until(self, text: bytes) -> bytes:
        """Everything since the last such call, to `text`."""
        while text not in self.seen:
            assert await self.step(), bytes(self.seen)
        end = self.seen.index(text) + len(text)
        found = bytes(self.seen[:end])
        del self.seen[:end]
        return found

    async def until_event(self, kind: type) -> TerminalEvent:
        while not any(isinstance(event, kind) for event in self.events):
            assert await self.step()
        return next(event for event in self.events if isinstance(event, kind))

    async def until_end(self) -> TerminalInfo:
        while await self.step():
            pass
        assert self.end
        return self.end

    async def type(self, data: bytes) -> None:
        await self.agent.send_frame(Frame(FrameKind.INPUT, data))

    @property
    def bytes_lost(self) -> int:
        return sum(event.bytes for event in self.events if isinstance(event, TerminalLost))


class Desk:
    """Terminals of one sandbox."""

    def __init__(self, link: AgentLink) -> None:
        self.link = link

    async def open(self, *shell: str, **options: object) -> TerminalInfo:
        call = CreateTerminal(shell=list(shell) or None, **options)  # type: ignore[arg-type]
        return await self.link.ask(call)

    async def ask(self, call: Call[TerminalInfo]) -> TerminalInfo:
        return await self.link.ask(call)

    async def list(self) -> list[TerminalInfo]:
        return (await self.link.ask(ListTerminals())).terminals

    @asynccontextmanager
    async def view(self, terminal: TerminalInfo) -> AsyncIterator[View]:
        async with self.link.operation(AttachTerminal(terminal_id=terminal.id)) as agent:
            yield View(agent)

    async def close(self, terminal: TerminalInfo) -> TerminalInfo:
        return await self.ask(CloseTerminal(terminal_id=terminal.id))


@pytest.fixture
def desk(box: Box) -> Desk:
    return Desk(box.link)


@pytest.fixture
def host_desk(host_box: Box) -> Desk:
    return Desk(host_box.link)


async def test_a_shell_has_a_prompt_and_a_terminal_of_its_own_and_an_exit_code(desk: Desk) -> None:
    terminal = await desk.open(cols=91, rows=33, env={"EXTRA": "added"})
    async with desk.view(terminal) as view:
        await view.until(PROMPT)
        await view.type(b"tty; stty size; echo $TERM $EXTRA in $PWD; echo me=$((6*7))\n")
        shown = await view.until(b"me=42\r\n")
        assert b"/dev/pts/0\r\n" in shown
        assert b"33 91\r\n" in shown
        assert b"xterm-256color added in /workspace\r\n" in shown
        assert b"job control" not in shown and b"process group" not in shown
        await view.type(b"exit 7\n")
        assert (await view.until_end()).exit_code == 7


async def test_the_shell_is_bash_where_there_is_one_and_reads_its_start_files(host_box: Box) -> None:
    await host_box.text("echo 'greeting=from-bashrc' > /root/.bashrc")
    desk = Desk(host_box.link)
    terminal = await desk.open()
    assert terminal.command[0].endswith("/bash")
    async with desk.view(terminal) as view:
        await view.type(b"echo $greeting:$-\n")
        await view.until(b"from-bashrc:")
        flags = await view.until(b"\r\n")
        assert b"i" in flags and b"m" in flags  # interactive, with job control


async def test_keys_interrupt_and_stop_what_runs_in_the_foreground(desk: Desk) -> None:
    terminal = await desk.open()
    async with desk.view(terminal) as view:
        await view.until(PROMPT)
        await view.type(b"sh -c 'echo star''ted; exec sleep 4321'\n")
        await view.until(b"started\r\n")
        await view.type(b"\x03")
        await view.until(PROMPT)
        await view.type(b"echo code=$?\n")
        await view.until(b"code=130\r\n")
        # No command in the loop: dash waits in vfork for one that is stopped before its exec, and never stops itself.
        await view.type(b"sh -c 'trap \"echo go''es on\" CONT; echo ag''ain; while :; do :; done'\n")
        await view.until(b"again\r\n")
        await view.type(b"\x1a")
        await view.until(b"Stopped")
        await view.until(PROMPT)
        await view.type(b"fg\n")
        await view.until(b"goes on\r\n")
        await view.type(b"\x03")
        await view.until(PROMPT)
        await view.type(b"\x04")
        assert (await view.until_end()).exit_code == 130


async def test_colours_and_the_alternate_screen_come_through_unchanged(desk: Desk) -> None:
    picture = b"\x1b[31mred\x1b[0m\x1b[?1049h\x1b[2J\xe2\x94\x8c\x00\xff\x1b[?1049l"
    octal = "".join(f"\\{byte:03o}" for byte in picture)
    terminal = await desk.open("printf", octal)
    async with desk.view(terminal) as view:
        await view.until_end()
        assert bytes(view.seen) == picture


async def test_a_resize_reaches_the_program_and_the_other_viewers(desk: Desk) -> None:
    terminal = await desk.open("sh", "-c", "trap 'stty size; exit' WINCH; echo set; while :; do sleep 0.05; done")
    async with desk.view(terminal) as one, desk.view(terminal) as other:
        await one.until(b"set")
        resized = await desk.ask(ResizeTerminal(terminal_id=terminal.id, cols=132, rows=50))
        assert (resized.cols, resized.rows) == (132, 50)
        await one.until(b"50 132\r\n")
        assert await other.until_event(TerminalResized) == TerminalResized(cols=132, rows=50)


@pytest.mark.parametrize("size", [(0, 24), (80, 0), (-1, 24), (MAX_SIZE + 1, 24), (80, 10**30)])
async def test_an_impossible_size_is_refused(host_desk: Desk, size: tuple[int, int]) -> None:
    terminal = await host_desk.open("cat")
    for call in (
        CreateTerminal(cols=size[0], rows=size[1]),
        ResizeTerminal(terminal_id=terminal.id, cols=size[0], rows=size[1]),
    ):
        with pytest.raises(ValueError):
            await host_desk.ask(call)
    await host_desk.close(terminal)


ATTEMPTS = 3  # at reading without a stall: a machine that stands still for two seconds makes a viewer lose something
PRINT = (
    "i=0; while [ $i -lt 40000 ]; do echo $i-abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-$i; i=$((i+1)); done"
)


async def test_two_viewers_see_everything_byte_for_byte(desk: Desk) -> None:
    wanted = b"\r\n" + b"".join(
        b"%d-abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-%d\r\n" % (i, i) for i in range(40_000)
    )
    for _ in range(ATTEMPTS):
        views = await look_together(desk)
        for view in views:
            assert len(view.seen) + view.bytes_lost == len(wanted)
            assert view.end and view.end.exit_code == 0
        if not any(view.bytes_lost for view in views):
            break
    for view in views:
        assert view.bytes_lost == 0
        assert hashlib.sha256(view.seen).digest() == hashlib.sha256(wanted).digest()


async def look_together(desk: Desk) -> tuple[View, View]:
    """Two viewers that have seen a program to its end."""
    terminal = await desk.open("sh", "-c", f"read go; {PRINT}")
    async with desk.view(terminal) as one, desk.view(terminal) as other:
        await one.until_event(TerminalReady)
        await other.until_event(TerminalReady)
        await one.type(b"\n")
        await asyncio.gather(one.until_end(), other.until_end())
    return one, other


async def test_a_viewer_that_never_reads_does_not_stop_the_other_and_learns_what_it_missed(host_desk: Desk) -> None:
    for _ in range(ATTEMPTS):
        reader = await look_beside_a_deaf_viewer(host_desk)
        if not reader.bytes_lost:
            break
    assert reader.bytes_lost == 0


async def look_beside_a_deaf_viewer(host_desk: Desk) -> View:
    """One that has seen a program to its end, while the other did not read."""
    terminal = await host_desk.open("sh", "-c", "stty -opost; read go; head -c 8000000 /dev/zero; exit 3")
    async with host_desk.view(terminal) as deaf, host_desk.view(terminal) as reader:
        await deaf.until_event(TerminalReady)
        await reader.until_event(TerminalReady)
        await reader.type(b"\n")
        assert (await reader.until_end()).exit_code == 3
        assert reader.seen.count(0) + reader.bytes_lost == 8_000_000
        assert (await deaf.until_end()).exit_code == 3
        assert deaf.bytes_lost > 0
        assert deaf.seen.count(0) + deaf.bytes_lost == 8_000_000
        assert deaf.seen.count(0) >= REPLAY_BYTES
        return reader


async def test_a_slow_viewer_misses_nothing_while_it_keeps_reading(host_desk: Desk) -> None:
    wanted = b"".join(b"%d\n" % number for number in range(1, 500_001))
    for _ in range(ATTEMPTS):
        views = await look_slowly_and_quickly(host_desk)
        if not any(view.bytes_lost for view in views):
            break
    for view in views:
        assert view.bytes_lost == 0
        seen = view.seen.removeprefix(b"\r\n").removeprefix(b"\n")
        assert hashlib.sha256(seen).digest() == hashlib.sha256(wanted).digest()


async def look_slowly_and_quickly(host_desk: Desk) -> tuple[View, View]:
    terminal = await host_desk.open("sh", "-c", "stty -opost; read go; seq 500000")
    async with host_desk.view(terminal) as slow, host_desk.view(terminal) as quick:
        await slow.until_event(TerminalReady)
        await quick.until_event(TerminalReady)
        await quick.type(b"\n")
        reading = asyncio.create_task(quick.until_end())
        while await slow.step():
            await asyncio.sleep(0.001)
        await reading
    return slow, quick


async def test_the_program_does_not_wait_where_nobody_looks(desk: Desk) -> None:
    terminal = await desk.open("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last; exit 5")
    ended = await desk.ask(WaitTerminal(terminal_id=terminal.id))
    assert ended.exit_code == 5
    async with desk.view(terminal) as late:
        assert (await late.until_end()).exit_code == 5
        assert len(late.seen) == REPLAY_BYTES
        assert late.seen.endswith(b"xxx\r\nlast\r\n")
        assert isinstance(late.events[0], TerminalReady)
        assert late.bytes_lost == 0  # it came late; it was not slow


async def test_a_new_viewer_sees_what_was_shown_and_then_what_comes(desk: Desk) -> None:
    terminal = await desk.open("sh", "-c", "stty -echo; echo before; read line; echo got $line")
    async with desk.view(terminal) as first:
        await first.until(b"before\r\n")
    async with desk.view(terminal) as second:
        assert await second.until(b"before\r\n") == b"before\r\n"
        await second.until_event(TerminalReady)
        await second.type(b"something\n")
        await second.until(b"got something\r\n")
        assert (await second.until_end()).exit_code == 0


async def test_a_terminal_lives_on_without_viewers_until_it_is_closed(desk: Desk) -> None:
    terminal = await desk.open("cat")
    async with desk.view(terminal) as view:
        await view.type(b"here\n")
        await view.until(b"here\r\nhere\r\n")
        assert [one.viewers for one in await desk.list()] == [1]
    while (await desk.list())[0].viewers:
        await asyncio.sleep(0.01)
    assert (await desk.list())[0].exit_code is None
    assert (await desk.close(terminal)).exit_code == 129  # SIGHUP
    assert (await desk.close(terminal)).exit_code == 129
    assert [one.exit_code for one in await desk.list()] == [129]


async def test_closing_ends_all_that_was_started(box: Box) -> None:
    desk = Desk(box.link)
    terminal = await desk.open("sh", "-c", "trap '' HUP TERM; setsid sleep 4321 & sleep 4322 & echo up; wait; wait")
    async with desk.view(terminal) as view:
        await view.until(b"up\r\n")
        assert (await desk.close(terminal)).exit_code == 137  # it does not listen, so SIGKILL
        assert (await view.until_end()).exit_code == 137
    while "432" in await box.text("cat /proc/[0-9]*/cmdline | tr '\\0' ' '"):
        await asyncio.sleep(0.01)


async def test_a_program_that_opens_its_terminal_again_is_still_seen(host_desk: Desk) -> None:
    terminal = await host_desk.open("sh", "-c", "exec <&- >&- 2>&-; sleep 0.3; echo again > /dev/tty; sleep 4321")
    async with host_desk.view(terminal) as view:
        await view.until(b"again")
    await host_desk.close(terminal)


async def test_input_for_a_terminal_that_nobody_has_open_does_not_keep_the_agent_busy(box: Box) -> None:
    desk = Desk(box.link)
    await box.text("mkfifo /tmp/go")
    script = "exec </dev/null >/dev/null 2>&1; echo >/tmp/go; read line </tmp/go; exec </dev/tty >/dev/tty"
    reading = 'while read line; do [ "$line" = end ] && echo over; done'
    terminal = await desk.open("sh", "-c", f"{script}; {reading}")
    await box.text("cat /tmp/go")
    await desk.ask(WriteTerminal(terminal_id=terminal.id, data=b"x\n" * 30_000))
    before = await cpu_ticks_of_agent(box)
    await asyncio.sleep(0.5)
    assert await cpu_ticks_of_agent(box) - before < 20, "the agent is busy waiting"
    await box.text("echo >/tmp/go")
    async with desk.view(terminal) as view:
        await view.type(b"end\n")
        await view.until(b"over")
    await desk.close(terminal)


async def test_input_waits_for_a_program_that_does_not_read_and_then_arrives_in_order(box: Box) -> None:
    desk = Desk(box.link)
    await box.text("mkfifo /tmp/go")
    script = "stty raw -echo; echo ready; read line < /tmp/go; head -c 8000000 | md5sum; exit 4"
    terminal = await desk.open("sh", "-c", script)
    data = b"".join(b"%07d\n" % number for number in range(1_000_000))
    async with desk.view(terminal) as view:
        await view.until(b"ready")
        typing = asyncio.create_task(type_all(view, data))
        with pytest.raises(asyncio.TimeoutError):
            # Long enough for everything to arrive, if anybody took it; and more than sockets hold.
            await asyncio.wait_for(asyncio.shield(typing), 0.3)
        before = await cpu_ticks_of_agent(box)
        await asyncio.sleep(0.5)
        assert await cpu_ticks_of_agent(box) - before < 20, "the agent is busy waiting"
        await box.text("echo > /tmp/go")
        await view.until(hashlib.md5(data).hexdigest().encode())
        await typing
        assert (await view.until_end()).exit_code == 4


async def type_all(view: View, data: bytes) -> None:
    for start in range(0, len(data), 50_000):
        await view.type(data[start : start + 50_000])


async def cpu_ticks_of_agent(box: Box) -> int:
    fields = (await box.text("cat /proc/1/stat")).rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def test_a_write_is_answered_when_there_is_room(box: Box) -> None:
    desk = Desk(box.link)
    await box.text("mkfifo /tmp/go")
    terminal = await desk.open("sh", "-c", "stty raw -echo; echo ready; read line < /tmp/go; head -c 300000 | md5sum")
    async with desk.view(terminal) as view:
        await view.until(b"ready")
        await desk.ask(WriteTerminal(terminal_id=terminal.id, data=b"a" * 10_000))
        rest = [WriteTerminal(terminal_id=terminal.id, data=b"a" * 58_000) for _ in range(5)]
        writing = [asyncio.create_task(desk.ask(call)) for call in rest]
        done, _ = await asyncio.wait(writing, timeout=0.3)
        assert len(done) < 5
        await box.text("echo > /tmp/go")
        await asyncio.gather(*writing)
        await view.until(hashlib.md5(b"a" * 300_000).hexdigest().encode())
        await view.until_end()
    with pytest.raises(ValueError):
        await desk.ask(WriteTerminal(terminal_id=terminal.id, data=b"a" * (MAX_WRITE + 1)))


async def test_a_viewer_that_sends_without_end_to_a_program_that_does_not_read_can_leave(box: Box) -> None:
    desk = Desk(box.link)
    terminal = await desk.open("sh", "-c", "stty raw -echo; echo ready; exec sleep 4321")
    async with desk.view(terminal) as view:
        await view.until(b"ready")
    reader, writer = await connect(box)
    writer.write(encode_frame(FrameKind.CALL, encode_message(AttachTerminal(terminal_id=terminal.id))))
    for _ in range(100):
        writer.write(encode_frame(FrameKind.INPUT, b"x" * 60_000))
    await reader.readexactly(5)
    writer.transport.abort()
    while (await desk.list())[0].viewers:
        await asyncio.sleep(0.01)
    assert (await desk.close(terminal)).exit_code == 129


@pytest.mark.parametrize(
    ("shell", "cwd", "code"),
    [
        (["no-such-program"], None, ErrorCode.COMMAND_NOT_FOUND),
        (["/no/such/program"], None, ErrorCode.COMMAND_NOT_FOUND),
        (["/etc"], None, ErrorCode.PERMISSION_DENIED),
        (["/tmp/fifo"], None, ErrorCode.PERMISSION_DENIED),
        (["/tmp/noise"], None, ErrorCode.PERMISSION_DENIED),
        ([""], None, ErrorCode.INVALID_COMMAND),
        (["a\0b"], None, ErrorCode.INVALID_COMMAND),
        (["sh", "x" * 200_000], None, ErrorCode.INVALID_COMMAND),
        (None, "/no/such/place", ErrorCode.FILE_NOT_FOUND),
        (None, "/proc/version", ErrorCode.NOT_DIRECTORY),
    ],
)
async def test_what_cannot_be_started_is_a_typed_error_and_leaves_no_terminal(
    box: Box, shell: list[str] | None, cwd: str | None, code: ErrorCode
) -> None:
    await box.text("mkfifo -m 777 /tmp/fifo; mkdir -p /etc; echo '#!/no/such/shell' > /tmp/noise; chmod 644 /tmp/noise")
    desk = Desk(box.link)
    with pytest.raises(AtollError) as caught:
        await desk.ask(CreateTerminal(shell=shell, cwd=cwd))
    assert caught.value.code == code
    assert await desk.list() == []


@pytest.mark.parametrize("deed", ["mkfifo /dev/ptmx", "echo > /dev/ptmx", "ln -s /dev/null /dev/ptmx", "true"])
async def test_a_replaced_ptmx_fools_nobody(box: Box, deed: str) -> None:
    await box.sh(f"rm -f /dev/ptmx; {deed}")  # where /dev is writable
    desk = Desk(box.link)
    terminal = await desk.open("tty")
    async with desk.view(terminal) as view:
        await view.until(b"/dev/pts/0\r\n")


async def test_the_devpts_itself_cannot_be_replaced(box: Box) -> None:
    for deed in (
        "rm -f /dev/pts/ptmx",
        "mv /dev/pts /dev/gone",
        "mv /dev /gone",
        "umount -l /dev/pts",
        "rmdir /dev/pts",
    ):
        await box.sh(deed)
    await box.sh("chmod 0 /dev/pts/ptmx")
    desk = Desk(box.link)
    async with desk.view(await desk.open("tty")) as view:
        await view.until(b"/dev/pts/0\r\n")


HOG = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
try:
    while True:
        os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
except OSError as failure:
    print("stopped by", failure.errno, flush=True)
input()
"""


async def test_a_sandbox_that_has_used_up_its_ptys_is_told_so_and_has_none_of_its_neighbours(
    neighbours: tuple[Box, Box],
) -> None:
    desk, other = Desk(neighbours[0].link), Desk(neighbours[1].link)
    terminal = await desk.open("python3", "-c", HOG)
    async with desk.view(terminal) as view:
        await view.until(b"stopped by %d\r\n" % errno.ENOSPC)
        with pytest.raises(AtollError, match="no further terminal") as caught:
            await desk.open()
        assert caught.value.code == ErrorCode.PROCESS_LIMIT_REACHED
        await other.close(await other.open("cat"))
    await desk.close(terminal)
    await desk.close(await desk.open("cat"))


async def test_terminals_are_limited_in_number_and_old_ends_are_forgotten(host_desk: Desk) -> None:
    terminals = [await host_desk.open("cat") for _ in range(32)]
    with pytest.raises(AtollError) as caught:
        await host_desk.open("cat")
    assert caught.value.code == ErrorCode.TOO_MANY_TERMINALS
    for terminal in terminals:
        await host_desk.close(terminal)
    assert [one.id for one in await host_desk.list()] == [one.id for one in terminals[-8:]]
    with pytest.raises(LookupError):
        await host_desk.close(terminals[0])
    await host_desk.close(await host_desk.open("cat"))


async def test_a_terminal_starts_in_the_directory_of_the_session(box: Box) -> None:
    desk = Desk(box.link)
    await box.shell("mkdir -p /tmp/deep/down; cd /tmp/deep")
    for options, where in (
        ({"session_id": "default"}, b"/tmp/deep\r\n"),
        ({"session_id": "default", "cwd": "down"}, b"/tmp/deep/down\r\n"),
        ({}, b"/tmp/deep\r\n"),
        (
            {"cwd": "/usr"} if box.image == "host" else {"cwd": "/bin"},
            b"/usr\r\n" if box.image == "host" else b"/bin\r\n",
        ),
    ):
        async with desk.view(await desk.open("pwd", **options)) as view:
            await view.until_end()
            assert bytes(view.seen) == where
    with pytest.raises(LookupError):
        await desk.open(session_id="none")


async def test_a_program_has_no_descriptor_of_the_agents(box: Box) -> None:
    desk = Desk(box.link)
    async with desk.view(await desk.open("sh", "-c", "ls -l /proc/self/fd")) as view:
        await view.until_end()
    targets = dict(re.findall(rb"(\d+) -> (\S+)", view.seen))
    targets.pop(b"3", None)  # the directory that ls itself has open
    assert targets == dict.fromkeys((b"0", b"1", b"2"), b"/dev/pts/0")


async def test_a_viewer_that_takes_nothing_is_not_sent_a_thousand_resizes(host_box: Box) -> None:
    desk = Desk(host_box.link)
    terminal = await desk.open("sh", "-c", "stty -opost; read go; head -c 3M /dev/zero; touch /tmp/done; exec cat")
    async with desk.view(terminal) as deaf:
        await deaf.until_event(TerminalReady)
        await deaf.type(b"\n")
        await host_box.text("until [ -e /tmp/done ]; do sleep 0.05; done")  # by then it has been left behind
        for number in range(200):
            await desk.ask(ResizeTerminal(terminal_id=terminal.id, cols=100 + number, rows=24))
        await deaf.until_event(TerminalResized)
        assert [type(event) for event in deaf.events] == [TerminalReady, TerminalLost, TerminalResized]
        assert deaf.events[-1] == TerminalResized(cols=299, rows=24)
    await desk.close(terminal)


async def test_a_program_stopped_before_it_is_execd_holds_nobody_up(host_box: Box) -> None:
    """Root inside guesses the next pid, and stops it as soon as it is there."""
    desk = Desk(host_box.link)
    stopper = "import os, signal, sys\nprint('set', flush=True)\nme = os.getpid()\nwhile True:\n"
    stopper += " for pid in range(me + 1, me + 40):\n  try: os.kill(pid, signal.SIGSTOP)\n  except OSError: pass\n"
    hostile = await desk.open("python3", "-c", stopper)
    async with desk.view(hostile) as view:
        await view.until(b"set")
        calls = [asyncio.create_task(desk.open("cat")) for _ in range(8)]
        assert (await desk.list())[0].id == hostile.id  # the agent answers, whatever became of those
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await desk.close(hostile)
    for terminal in await desk.list():
        await desk.close(terminal)


async def test_a_terminal_of_a_user_who_is_not_root_works(host_desk: Desk) -> None:
    terminal = await host_desk.open("su", "nobody", "-s", "/bin/bash")
    async with host_desk.view(terminal) as view:
        await view.until(b"$ ")
        await view.type(b"whoami; echo hi > /dev/tty; exit\n")
        assert b"nobody\r\nhi\r\n" in await view.until(b"hi\r\n")
        await view.until_end()


async def test_sixteen_programs_that_print_without_end_leave_the_agent_responsive(host_desk: Desk) -> None:
    terminals = [await host_desk.open("yes") for _ in range(16)]
    for _ in range(5):
        assert len(await host_desk.list()) == 16
    await asyncio.gather(*(host_desk.close(terminal) for terminal in terminals))


def test_what_is_kept_is_bounded_and_counts_from_the_first_byte() -> None:
    history, fed = History(), bytearray()
    for size in (1, 4095, 65_536, 100, 65_536, 65_536, 65_536, 3, 65_536, 65_536, 65_536):
        data = bytes(range(256)) * (size // 256 + 1)
        history.add(data[:size])
        fed += data[:size]
        assert history.end == len(fed)
        assert history.end - history.start <= REPLAY_BYTES + 2 * 65_536
        assert history.end - history.start >= min(len(fed), REPLAY_BYTES)
        assert history.read(history.start, 10**6) == fed[history.start :]
