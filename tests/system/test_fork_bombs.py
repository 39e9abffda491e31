"""What multiplies as fast as it can, at the default limit of processes: it ends with its command, and for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from atoll.protocol.commands import Exec, ExecShell
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.processes import StartProcess, WaitForExit
from atoll.protocol.terminals import CloseTerminal, CreateTerminal, WaitTerminal
from atoll.supervisor.actor import Caller
from atoll.supervisor.roster import Roster
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box

TIMEOUT, HANG_SECONDS = 1.0, 60.0
ME = Caller("me")
SHELL_BOMB = ":(){ :|:& };: 2>/dev/null; sleep 60"
# Each goes on in both; or in a child that has left its session and lost its parent, so that none lives for long.
FORKS = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
DOUBLE_FORKS = """
import os, time
os.write(1, b"!")
if os.fork():
    time.sleep(60)
while True:
    try:
        os.setsid()
    except OSError:
        pass
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
"""


@asynccontextmanager
async def quiet_afterwards(box: Box, workshop: Workshop) -> AsyncIterator[None]:
    """What the block starts is gone after it, and nobody else is. The next command need not wait for that."""

    async def processes() -> int:
        return (await workshop.engine.usage(box.live)).processes

    async with asyncio.timeout(HANG_SECONDS), box.link.operation(Exec(argv=["cat"], stdin=True)) as bystander:
        await bystander.send_frame(Frame(FrameKind.INPUT, b"x"))
        assert (await bystander.next_frame()).payload == b"x"
        await box.shell("true")
        await box.run("true")
        before = await processes()
        yield
        assert (await box.run("echo", "answers")).stdout == b"answers\n"
        while await processes() > before:  # what was killed takes a moment to die; what forks is there for ever
            await asyncio.sleep(0.01)
        await bystander.send_frame(Frame(FrameKind.INPUT, b"y"))
        frame = await bystander.next_frame()
        assert frame.payload == b"y", frame


@pytest.mark.parametrize(
    "bomb", [["python3", "-c", FORKS], ["python3", "-c", DOUBLE_FORKS], ["bash", "-c", SHELL_BOMB]]
)
async def test_one_in_a_program(bomb: list[str], host_box: Box, workshop: Workshop) -> None:
    async with quiet_afterwards(host_box, workshop):
        output = await host_box.run(*bomb, timeout=TIMEOUT)
        assert output.done.timed_out


@pytest.mark.parametrize("bomb", [SHELL_BOMB, f"python3 -c '{FORKS}'", f"python3 -c '{DOUBLE_FORKS}'"])
async def test_one_in_a_session(bomb: str, host_box: Box, workshop: Workshop) -> None:
    async with quiet_afterwards(host_box, workshop):
        await host_box.link.run(ExecShell(command="kept=1"))
        output = await host_box.link.run(ExecShell(command=bomb, timeout=TIMEOUT))
        assert output.done.timed_out
        assert (await host_box.link.run(ExecShell(command="echo $kept"))).stdout == b"1\n"


@pytest.mark.parametrize("bomb", [["python3", "-c", FORKS], ["python3", "-c", DOUBLE_FORKS], SHELL_BOMB])
async def test_one_in_the_background(bomb: str | list[str], host_box: Box, workshop: Workshop) -> None:
    async with quiet_afterwards(host_box, workshop):
        await host_box.link.ask(StartProcess(command=bomb, process_id="bomb", timeout=TIMEOUT))
        await host_box.link.ask(WaitForExit(process_id="bomb"))


@pytest.mark.parametrize("bomb", [["python3", "-c", FORKS], ["python3", "-c", DOUBLE_FORKS]])
async def test_one_in_a_terminal(bomb: list[str], host_box: Box, workshop: Workshop) -> None:
    async with quiet_afterwards(host_box, workshop):
        terminal = await host_box.link.ask(CreateTerminal(shell=bomb))
        await asyncio.sleep(TIMEOUT)  # in which it fills the sandbox
        await host_box.link.ask(CloseTerminal(terminal_id=terminal.id))
        await host_box.link.ask(WaitTerminal(terminal_id=terminal.id))


async def test_one_that_its_command_left_behind_is_told_to_the_next_and_ends_with_the_sandbox(
    workshop: Workshop,
) -> None:
    """A job in the background outlives its command, whatever it is, and nobody inside has room to end this one."""
    async with Roster(workshop, workshop.store.timeline) as roster:
        actor = roster.actor("bombed")
        await actor.do(ME, lambda link: link.run(Exec(argv=["sh", "-c", f"echo kept >f; python3 -c '{FORKS}' &"])))
        with pytest.raises(AtollError) as caught:
            async with asyncio.timeout(HANG_SECONDS):
                while True:
                    await actor.do(ME, lambda link: link.run(Exec(argv=["true"])))
        assert caught.value.code is ErrorCode.PROCESS_LIMIT_REACHED and "sleep(stop=True)" in caught.value.remedy
        await actor.sleep(ME, stop=True)
        assert (await actor.do(ME, lambda link: link.run(Exec(argv=["cat", "f"])))).stdout == b"kept\n"
        await actor.destroy(ME)
