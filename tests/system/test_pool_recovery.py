"""A pool that the kernel gave up, mounted anew while the server runs: what was synced is there, and nothing is left."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.protocol.commands import CommandOutput, Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.protocol.sandboxes import SandboxState
from atoll.storage.examination import check_pool
from atoll.storage.failures import is_given_up, is_read_only
from atoll.storage.loop_devices import find_device
from atoll.storage.mounting import MIN_POOL
from atoll.storage.pool import PoolStorage
from atoll.supervisor.actor import WHEN_RECOVERED, Caller
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.info import describe
from atoll.supervisor.plans import Plan, Upkeep
from atoll.supervisor.roster import Roster
from atoll.supervisor.workshop import Workshop
from tests.system.failing_pool import FILLER, MIB, break_device, fill_below_holes, held_elsewhere, host_disk_of
from tests.system.serving import RunningServer

HANG_SECONDS = 120.0
SMALL = Plan(image="busybox", limits=Limits(disk="100MiB"))
ME = Caller("me")
TRY_TO_WRITE = "dd if=/dev/zero of=/f bs=1M count=8 conv=fsync; echo $RANDOM >/g; sync"


@pytest.fixture
def host_disk(tmp_path: Path) -> Iterator[Path]:
    with host_disk_of(900 * MIB, tmp_path) as disk:
        yield disk


@pytest.fixture
async def workshop_on(host_disk: Path, busybox_root: Path) -> AsyncIterator[Workshop]:
    async with Workshop(host_disk / "state", host_disk / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
        yield workshop


@pytest.fixture
async def roster(workshop_on: Workshop, host_disk: Path) -> AsyncIterator[Roster]:
    async with Roster(workshop_on, workshop_on.store.timeline) as roster:
        yield roster
        for filler in host_disk.glob(FILLER):  # of a test that failed
            filler.unlink()
        await recovered(workshop_on)
        for record in workshop_on.records():
            await roster.actor(record.id).destroy(ME)


async def sh(roster: Roster, name: str, script: str) -> CommandOutput:
    async def run(link: AgentLink) -> CommandOutput:
        return await link.run(Exec(argv=["sh", "-c", script], timeout=HANG_SECONDS))

    return await roster.actor(name).do(ME, run)


async def text(roster: Roster, name: str, script: str) -> str:
    output = await sh(roster, name, script)
    assert output.done.exit_code == 0, output
    return output.stdout.decode().strip()


async def said_by(work: Awaitable[object]) -> AtollError:
    with pytest.raises(AtollError) as caught:
        await work
    return caught.value


async def eventually(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + HANG_SECONDS
    while not holds():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.01)


async def stopped(roster: Roster, name: str) -> str:
    """Waits until it is; why."""
    async with asyncio.timeout(HANG_SECONDS):
        async for event in roster.actor(name).follow(0):
            if event.what == "stopped":
                return event.cause
    raise AssertionError("it was destroyed")


async def recovered(workshop: Workshop) -> None:
    await eventually(lambda: can_use_disks(workshop))


def can_use_disks(workshop: Workshop) -> bool:
    with suppress(AtollError), workshop.using_disks():
        return True
    return False


async def make(roster: Roster, *names: str) -> None:
    for name in names:
        await roster.actor(name).ensure(SMALL, ME)


async def destroy(roster: Roster, *names: str) -> None:
    for name in names:
        await roster.actor(name).destroy(ME)


def devices_of(pool: Path) -> list[str]:
    command = ["losetup", "--noheadings", "--output", "NAME", "--associated", str(pool)]
    return subprocess.check_output(command, text=True).split()


def mounts_below(directory: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{directory}/" in line]


async def try_to_write(roster: Roster, name: str) -> None:
    with suppress(AtollError):  # it may be ended meanwhile
        await sh(roster, name, TRY_TO_WRITE)


async def test_after_an_error_that_is_gone_every_sandbox_goes_on_with_what_it_synced(
    workshop_on: Workshop, roster: Roster, host_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = host_disk / "state/pool.btrfs"
    await make(roster, "kept", "writer", "frozen")
    await text(roster, "kept", "echo kept >/kept; mkdir /d; echo more >/d/more; sync /kept /d/more")
    await text(roster, "frozen", "echo cold >/cold; sync /cold")
    await roster.actor("frozen").sleep(ME)
    assert describe(roster.actor("frozen")).state is SandboxState.FROZEN
    before, device = mounts_below(host_disk), devices_of(pool)
    break_device(pool)
    await try_to_write(roster, "writer")
    for name in ("kept", "writer", "frozen"):
        assert await stopped(roster, name) == WHEN_RECOVERED
    await recovered(workshop_on)
    assert await text(roster, "kept", "cat /kept /d/more") == "kept\nmore"
    assert await text(roster, "frozen", "cat /cold") == "cold"
    assert await text(roster, "writer", "echo new >/new && sync /new && cat /new") == "new"
    await make(roster, "late")
    assert len(mounts_below(host_disk)) == len(before) and len(devices_of(pool)) == len(device) == 1
    assert "being recovered" not in str(workshop_on.storage.problem())
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([line for line in said if "gave it up" in line]) == 1
    assert len([line for line in said if "take what is written again" in line]) == 1
    await destroy(roster, "kept", "writer", "frozen", "late")


async def test_while_the_disk_below_is_full_nothing_is_ended_and_all_is_said(
    workshop_on: Workshop, roster: Roster, host_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool, state = host_disk / "state/pool.btrfs", host_disk / "state"
    await make(roster, "kept", "writer", "unwanted")
    await text(roster, "kept", "echo kept >/kept; sync /kept")
    filler = await asyncio.to_thread(fill_below_holes, state, host_disk)
    while not workshop_on.storage.problem():
        await sh(roster, "writer", TRY_TO_WRITE)
    obstacle = "the disk below it is full"
    await eventually(lambda: obstacle in caplog.text)
    assert await text(roster, "kept", "cat /kept") == "kept"
    for _ in range(2):  # it is done as far as whoever asks is concerned, and twice is fine
        await roster.actor("unwanted").destroy(ME)
    assert "unwanted" not in {record.id for record in workshop_on.records()}
    assert workshop_on.is_on_record(SandboxId("unwanted"))
    *_, later, destroyed = await roster.actor("unwanted").events(0)
    assert (later.what, destroyed.what, destroyed.by) == ("removed_later", "destroyed", "me")
    assert obstacle in later.cause
    assert "unwanted is gone, and its disk goes when disks can be written again" in caplog.text
    for attempt in (
        roster.actor("new").ensure(SMALL, ME),
        roster.actor("unwanted").ensure(SMALL, ME),
    ):
        problem = await said_by(attempt)
        assert problem.code is ErrorCode.POOL_READ_ONLY and problem.context["path"] == str(pool), problem
        assert "is being recovered" in problem.message and obstacle in problem.message, problem
        assert "ask again" in problem.remedy and "dmesg" in problem.remedy
    found = check_pool(state)
    assert "read-only" in found.found and "recovers" in found.remedy
    filler.unlink()
    assert await stopped(roster, "kept") == WHEN_RECOVERED
    await recovered(workshop_on)
    assert await text(roster, "kept", "cat /kept; echo more >/more; sync /more") == "kept"
    assert caplog.text.count(obstacle) == 1
    await eventually(lambda: not workshop_on.is_on_record(SandboxId("unwanted")))
    assert (await roster.actor("unwanted").events(0))[-1] == destroyed
    assert await roster.actor("unwanted").ensure(SMALL, ME) is True
    await destroy(roster, "kept", "writer", "unwanted")


async def test_a_pool_that_somebody_else_holds_is_tried_again_until_they_let_go(
    workshop_on: Workshop, roster: Roster, host_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = host_disk / "state/pool.btrfs"
    await make(roster, "kept", "writer")
    await text(roster, "kept", "echo kept >/kept; sync /kept")
    with held_elsewhere() as holder:
        break_device(pool)
        await try_to_write(roster, "writer")
        await stopped(roster, "kept")
        named = re.compile(rf"in use by process [\d, ]*\b{holder}\b")
        await eventually(lambda: named.search(caplog.text) is not None)
        for attempt in (roster.actor("kept").wake(ME), roster.actor("new").ensure(SMALL, ME)):
            problem = await said_by(attempt)
            assert problem.code is ErrorCode.POOL_READ_ONLY and "is being recovered" in problem.message
        assert workshop_on.disk_use(SandboxId("kept")) is None
        assert len(devices_of(pool)) == 1, "a second device on one file would destroy it"
    await recovered(workshop_on)
    assert await text(roster, "kept", "cat /kept") == "kept"
    await destroy(roster, "kept", "writer")


async def test_what_was_not_on_the_platter_yet_is_as_it_was_reported(
    workshop_on: Workshop, roster: Roster, host_disk: Path
) -> None:
    """A sandbox that was created is there, and one that was destroyed does not come back."""
    state = host_disk / "state"
    await make(roster, "gone", "again")
    subprocess.run(["sync", "--file-system", state / "disks"], check=True)
    await destroy(roster, "gone", "again")
    labelled = Plan(image="busybox", limits=SMALL.limits, upkeep=Upkeep(labels={"a": "b"}))
    await roster.actor("again").ensure(labelled, ME)
    await make(roster, "new")
    break_device(state / "pool.btrfs")
    await try_to_write(roster, "new")
    await stopped(roster, "new")
    await recovered(workshop_on)
    await eventually(lambda: workshop_on.storage.names() == {"again", "new"})
    assert not workshop_on.lost.all()
    for name in ("again", "new"):
        assert await text(roster, name, "echo x >/x; sync /x; cat /x") == "x"
    assert describe(roster.actor("again")).labels == {"a": "b"}
    await destroy(roster, "again", "new")


# The pool by itself.


async def test_a_pool_that_somebody_mounts_read_only_was_not_given_up(host_disk: Path) -> None:
    pool, disks = PoolStorage(host_disk, size=MIN_POOL), host_disk / "disks"
    subprocess.run(["mount", "-o", "remount,ro", disks], check=True)
    assert is_read_only(disks) and not is_given_up(disks) and pool.problem() is None
    assert "remount,rw" in check_pool(host_disk).remedy
    problem = await said_by(asyncio.to_thread(pool.create, SandboxId("one"), MIB))
    assert problem.code is ErrorCode.POOL_READ_ONLY and "remount,rw" in problem.remedy
    subprocess.run(["mount", "-o", "remount,rw", disks], check=True)
    pool.create(SandboxId("one"), MIB)
    pool.close()


async def test_while_a_pool_is_away_every_call_says_so_and_none_finds_an_empty_directory(host_disk: Path) -> None:
    pool, one = PoolStorage(host_disk, size=MIN_POOL), SandboxId("one")
    pool.create(one, 20 * MIB, b"record")
    subprocess.run(["sync", "--file-system", host_disk / "disks"], check=True)
    with held_elsewhere():
        break_device(host_disk / "pool.btrfs")
        with suppress(AtollError):
            pool.create(SandboxId("two"), 20 * MIB)
        subprocess.run(["sync", "--file-system", host_disk / "disks"], capture_output=True)
        await eventually(lambda: pool.problem() is not None)
        assert "in use" in (await said_by(asyncio.to_thread(pool.recover))).message
        calls: list[Callable[[], object]] = [
            pool.names,
            lambda: pool.lost,
            lambda: pool.epitaphs,
            lambda: pool.find(one),
            lambda: pool.record(one),
            lambda: pool.remove(one),
            lambda: pool.create(one, MIB),
            lambda: pool.largest_disk,
        ]
        for call in calls:
            with pytest.raises(AtollError) as caught:
                call()
            assert caught.value.code is ErrorCode.POOL_READ_ONLY and "in use" in caught.value.message
        second = PoolStorage(host_disk)  # as of a server that is started now
        assert second.problem() is not None and not second.obstacle()
        second.close()
    await eventually(lambda: can_recover(pool))
    assert pool.names() == {one} and pool.record(one) == b"record"
    pool.create(SandboxId("two"), MIB)
    pool.close()


def can_recover(pool: PoolStorage) -> bool:
    """Others may have copies of its mount: whoever makes a mount namespace of their own."""
    with suppress(AtollError):
        pool.recover()
    return pool.problem() is None


# Killed.


async def served(host_disk: Path) -> RunningServer:
    server = RunningServer(host_disk)
    await server.start()
    for name in ("kept", "writer"):
        await server.sandbox(name).exec(f"echo {name} >/root/f; sync /root/f")
    return server


@pytest.mark.parametrize("is_unmounted", [True, False], ids=["in the middle", "before"])
async def test_a_server_killed_while_it_recovers_is_started_again_and_recovers(
    host_disk: Path, *, is_unmounted: bool
) -> None:
    server = await served(host_disk)
    pool, disks = server.state / "pool.btrfs", server.state / "disks"
    with held_elsewhere():
        break_device(pool)
        if not is_unmounted:
            server.process.send_signal(signal.SIGSTOP)  # so that it does not get to it
        subprocess.run(["sync", "--file-system", disks], capture_output=True)
        with suppress(OSError):
            (disks / "more").mkdir()
        if is_unmounted:
            await eventually(lambda: "cannot be recovered yet" in server.log.read_text())
        await server.kill()
        assert disks.is_mount() is not is_unmounted
        await server.start()
        await eventually(lambda: "in use by process" in server.log.read_text())
        assert (await server.ask("GET", "/v1/sandboxes?use=true")).status == 200
    for name in ("kept", "writer"):
        await wait_until_it_works(server, name)
        assert (await server.sandbox(name).exec("cat /root/f")).stdout.strip() == name
    assert find_device(pool) and len(devices_of(pool)) == 1
    await server.close()


async def wait_until_it_works(server: RunningServer, name: str) -> None:
    give_up = time.monotonic() + HANG_SECONDS
    command = {"command": "echo new >/root/new && sync /root/new"}
    while (answer := await server.ask("POST", f"/v1/sandboxes/{name}/exec", command)).status != 200 or answer.json()[
        "exit_code"
    ]:
        assert time.monotonic() < give_up
        await asyncio.sleep(0.05)
