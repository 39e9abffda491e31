"""A sandbox whose agent comes to need more descriptors than a process usually may have."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.files import WriteFile
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.processes import StartProcess, WaitForExit
from atoll.protocol.sessions import CreateSession
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked, native
from tests.system.test_terminals import Desk

SOFT = 256  # a shell needs one above 200
TIMEOUT, TOO_LONG = 10.0, "60"  # in which all that a test sets up is there, also on a busy machine


@asynccontextmanager
async def limited_box(tmp_path: Path, busybox: Path, soft: int, hard: int) -> AsyncIterator[Box]:
    """A sandbox of a machine that was started with these limits."""
    with pytest.MonkeyPatch.context() as patch:  # ours stay: a hard limit cannot be raised again
        patch.setattr(resource, "getrlimit", lambda what: (soft, hard))
        workshop = Workshop(tmp_path / "state", tmp_path / "run")
    async with workshop:
        workshop.images.add("busybox", busybox)
        live = await create(workshop, "limited", image="busybox")
        async with linked(live) as link:
            yield Box(live, link, "busybox")
        await workshop.destroy(live)


@asynccontextmanager
async def waiting(box: Box, count: int) -> AsyncIterator[None]:
    """So many connections, each waiting for a process that does not end."""
    endless = f"endless-{count}"
    await box.link.ask(StartProcess(command=["sleep", "1000"], process_id=endless))
    async with AsyncExitStack() as stack:
        for _ in range(count):
            connection = await stack.enter_async_context(box.link.operation(WaitForExit(process_id=endless)))
            stack.callback(connection.abort)
        yield


def soft_limit_of_agent(box: Box) -> int:
    lines = Path(f"/proc/{native(box.live).process.pid}/limits").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Max open files")).split()[3])


async def timed_out(box: Box) -> bool:
    return (await box.link.run(Exec(argv=["sleep", TOO_LONG], timeout=TIMEOUT))).done.timed_out


async def test_time_outs_are_kept_with_more_descriptors_than_the_soft_limit(tmp_path: Path, busybox_root: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with limited_box(tmp_path, busybox_root, SOFT, hard) as box:
        running = [asyncio.create_task(timed_out(box)) for _ in range(30)]
        while (await box.link.ping()).commands_running < len(running) and not any(task.done() for task in running):
            await asyncio.sleep(0.01)
        async with waiting(box, SOFT):
            assert all(await asyncio.gather(*running))


async def test_files_are_written_with_more_descriptors_than_the_soft_limit(tmp_path: Path, busybox_root: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with limited_box(tmp_path, busybox_root, SOFT, hard) as box, AsyncExitStack() as stack:
        calls = [WriteFile(path=b"/tmp/%d" % number) for number in range(SOFT)]
        writes = [await stack.enter_async_context(box.link.operation(call)) for call in calls]
        for write in writes:
            await write.send_frame(Frame(FrameKind.INPUT, b""))
        for write in writes:
            assert (await write.next_frame()).kind is FrameKind.DONE


async def test_a_command_has_the_limits_it_always_had(tmp_path: Path, busybox_root: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ask, limits = "ulimit -n; ulimit -Hn", f"{SOFT}\n{hard}"
    async with limited_box(tmp_path, busybox_root, SOFT, hard) as box:
        for others in (0, SOFT):
            async with waiting(box, others):
                await box.link.ask(CreateSession(session_id=f"with-{others}"))
                assert soft_limit_of_agent(box) == (hard if others else SOFT)
                assert await box.text(ask) == limits
                assert (await box.shell(ask, session=f"with-{others}")).stdout.decode().strip() == limits
                await box.link.ask(StartProcess(command=f"({ask}) >/tmp/limits", process_id="asks"))
                async with box.link.operation(WaitForExit(process_id="asks")) as wait:
                    await wait.next_frame()
                assert await box.text("cat /tmp/limits") == limits
                async with Desk(box.link).view(await Desk(box.link).open("sh", "-c", ask)) as view:
                    await view.until_end()
                assert view.seen.decode().split() == limits.split()


async def test_an_agent_with_few_descriptors_left_takes_no_more_and_keeps_its_time_outs(
    tmp_path: Path, busybox_root: Path
) -> None:
    async with limited_box(tmp_path, busybox_root, SOFT, SOFT) as box:
        running = [asyncio.create_task(timed_out(box)) for _ in range(10)]
        while (await box.link.ping()).commands_running < len(running) and not any(task.done() for task in running):
            await asyncio.sleep(0.01)
        async with waiting(box, SOFT):
            with pytest.raises(AtollError) as caught:
                await box.link.ping()
            assert caught.value.code is ErrorCode.AGENT_BUSY
            assert all(await asyncio.gather(*running))
        while True:
            try:
                assert await box.text("echo free again") == "free again"
                break
            except AtollError as problem:
                assert problem.code in (ErrorCode.AGENT_BUSY, ErrorCode.PROCESS_LIMIT_REACHED)
