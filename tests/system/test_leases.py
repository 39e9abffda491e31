"""Write leases, by which root inside makes everybody wait who opens a file. The agent waits for a moment at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from atoll.agent.commands.guard import LAST_PATIENCE, PATIENCE_WITH_SLEEPING, is_before_exec, patience_with
from atoll.agent.commands.process_tree import ProcessStat
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import FrameKind
from atoll.protocol.terminals import AttachTerminal, CreateTerminal, WaitTerminal
from tests.conftest import Box
from tests.system.file_calls import FileCalls

HOLD = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""
# Of fs.lease-break-time, which is 45 seconds: whoever waited for the lease to be broken has failed.
LEASE_SECONDS = 30


@asynccontextmanager
async def leased(box: Box, path: str) -> AsyncIterator[None]:
    async with box.link.operation(Exec(argv=["python3", "-c", HOLD, path], stdin=True)) as holder:
        assert (await holder.next_frame()).payload == b"held\n"
        async with asyncio.timeout(LEASE_SECONDS):
            yield


async def test_a_program_whose_interpreter_is_leased_is_killed_and_the_agent_goes_on(host_box: Box) -> None:
    await host_box.text("cp /bin/true own; printf '#!/workspace/own\n' >script; chmod +x script")
    async with leased(host_box, "/workspace/own"):
        assert (await host_box.run("./script")).done.exit_code == 137
        await host_box.link.ping()


async def test_a_terminal_whose_program_is_leased_ends(host_box: Box) -> None:
    await host_box.text("cp /bin/bash own")
    async with leased(host_box, "/workspace/own"):
        terminal = await host_box.link.ask(CreateTerminal(shell=["/workspace/own"]))
        ended = await host_box.link.ask(WaitTerminal(terminal_id=terminal.id))
        assert ended.exit_code == 137


async def test_the_first_command_is_guarded_too_if_a_terminal_came_before(host_box: Box) -> None:
    calls = FileCalls(host_box.link)
    await calls.write(b"/workspace/own", await calls.read(b"/bin/true"), mode=0o755)
    holder = CreateTerminal(shell=["python3", "-c", HOLD, "/workspace/own"])
    terminal = await host_box.link.ask(holder)
    async with host_box.link.operation(AttachTerminal(terminal_id=terminal.id)) as view:
        while (await view.next_frame()).kind is not FrameKind.DATA:
            pass
    async with asyncio.timeout(LEASE_SECONDS):
        assert (await host_box.run("./own")).done.exit_code == 137


async def test_a_session_whose_shell_is_leased_has_commands_that_time_out_and_goes_on_after(host_box: Box) -> None:
    async with leased(host_box, "/bin/bash"):
        assert (await host_box.shell("true", timeout=0.2)).done.timed_out
        assert (await host_box.run("echo", "on")).stdout == b"on\n"
    assert (await host_box.shell("echo on")).stdout == b"on\n"


async def test_a_file_that_is_leased_is_busy(host_box: Box) -> None:
    calls = FileCalls(host_box.link)
    await calls.write(b"/workspace/data", b"x")
    async with leased(host_box, "/workspace/data"):
        with pytest.raises(AtollError) as caught:
            await calls.read(b"/workspace/data")
        assert caught.value.code == ErrorCode.RESOURCE_BUSY and caught.value.remedy
        await calls.write(b"/workspace/data", b"new")  # which is another file
        assert await calls.read(b"/workspace/data") == b"new"


def test_who_is_only_slow_is_given_the_time_that_the_host_gives_the_agent() -> None:
    assert patience_with(b"T") < patience_with(b"S") == PATIENCE_WITH_SLEEPING
    assert patience_with(b"R") == patience_with(b"D") == LAST_PATIENCE


def test_who_has_only_the_name_is_none_that_was_just_spawned() -> None:
    us = ProcessStat(pid=1, parent=0, session=1, start_time=1, state=b"S", name=b"atoll-agent")
    child = us._replace(pid=9, parent=1, start_time=50)
    assert is_before_exec(child, us, since=50)
    for other in (child._replace(parent=7), child._replace(name=b"sh"), child._replace(start_time=49)):
        assert not is_before_exec(other, us, since=50)
