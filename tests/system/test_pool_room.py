"""A disk that is full under the pool: it costs whoever writes an error, and nobody anything else."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from atoll.engine.base import LiveSandbox
from atoll.protocol.commands import CommandOutput, Exec
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.storage import growth, headroom
from atoll.storage.examination import check_pool
from atoll.storage.failures import is_read_only
from atoll.storage.mounting import MIN_POOL
from atoll.storage.pool import PoolStorage
from atoll.store.sqlite.database import open_database
from atoll.supervisor.actor import Caller
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.plans import Plan
from atoll.supervisor.roster import Roster
from atoll.supervisor.workshop import Workshop
from tests.kept import database_of
from tests.making import create
from tests.native import linked
from tests.system.failing_pool import fill, host_disk_of

MIB = 2**20
HANG_SECONDS = 120.0
WRITER = (
    "i=0; while [ $i -lt {rounds} ]; do dd if=/dev/zero of=/f$i bs=1M count=8 conv=fsync 2>/dev/null; i=$((i+1)); done"
)


@pytest.fixture
def host_disk(tmp_path: Path) -> Iterator[Path]:
    with host_disk_of(640 * MIB, tmp_path) as disk:
        yield disk


@pytest.fixture
async def workshop_on(host_disk: Path, busybox_root: Path) -> AsyncIterator[Workshop]:
    async with Workshop(host_disk / "state", host_disk / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
        yield workshop
        for record in workshop.records():  # of a test that failed
            await workshop.remove(record.id)


async def sh(live: LiveSandbox, script: str) -> CommandOutput:
    async with linked(live) as link:
        return await link.run(Exec(argv=["sh", "-c", script], timeout=HANG_SECONDS))


async def eventually(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + HANG_SECONDS
    while not holds():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.05)


async def try_short_life(workshop: Workshop) -> None:
    """A sandbox made, used and destroyed; or NO_SPACE, with nothing left of it."""
    try:
        live = await create(workshop, "room-short", image="busybox", limits={"disk": "300MiB"})
    except AtollError as problem:
        assert problem.code is ErrorCode.NO_SPACE and "free" in problem.message and problem.remedy, problem
    else:
        await sh(live, "echo x >/f && sync /f")
        await workshop.destroy(live)
    assert "room-short" not in workshop.storage.names()


async def test_a_host_disk_that_somebody_fills_stops_writers_and_nothing_else(
    workshop_on: Workshop, host_disk: Path
) -> None:
    workshop, limits = workshop_on, {"disk": "300MiB"}
    kept, *writers = [
        await create(workshop, name, image="busybox", limits=limits) for name in ("room-kept", "room-one", "room-two")
    ]
    await sh(kept, "echo kept >/kept; sync")
    writing = [asyncio.create_task(sh(writer, WRITER.format(rounds=40))) for writer in writers]
    other = await asyncio.to_thread(fill, host_disk)
    while not all(writer.done() for writer in writing):
        await try_short_life(workshop)
        await asyncio.sleep(0.02)
    assert os.statvfs(host_disk).f_bavail == 0
    assert not is_read_only(host_disk / "state/disks")
    assert (await sh(kept, "echo more >>/kept && sync /kept && cat /kept")).stdout == b"kept\nmore\n"
    await workshop.destroy(writers[0])
    other.unlink()
    assert (await sh(writers[1], "rm -f /f*; dd if=/dev/zero of=/f bs=1M count=8 conv=fsync")).done.exit_code == 0
    await workshop.destroy(await create(workshop, "room-next", image="busybox", limits=limits))
    for live in (kept, writers[1]):
        await workshop.destroy(live)


LARGE = "for i in $(seq 40); do dd if=/dev/zero bs=1M count=16 >>/f; done; sync"
TINY = """
    dd if=/dev/zero of=/f bs=1M count=250; mkdir /d; i=0
    while [ $i -lt 1000 ]; do head -c 1900 /dev/zero >/d/$i; i=$((i+1)); done
    n=0; while [ $n -lt 100 ] && cp -r /d /d$n; do n=$((n+1)); done; sync
"""
IN_SMALL = "dd if=/dev/zero of=/f bs=1M count=8 conv=fsync && echo x >/g && sync /g"


HOGS = [LARGE, TINY] if os.environ.get("ATOLL_SOAK") else [LARGE]  # the tiny ones take half a minute


@pytest.mark.parametrize("hogging", HOGS)
async def test_who_writes_all_there_is_leaves_others_theirs(
    workshop_on: Workshop, host_disk: Path, hogging: str
) -> None:
    """Those that are there, and those that come. The hog's own disk is larger than what there is."""
    workshop = workshop_on
    hog, neighbour = [await create(workshop, name, image="busybox") for name in ("room-hog", "room-small")]
    assert b"uota" in (await sh(hog, hogging)).stderr
    assert (await sh(neighbour, IN_SMALL)).done.exit_code == 0
    late = await create(workshop, "room-late", image="busybox")
    assert (await sh(late, IN_SMALL)).done.exit_code == 0
    before = workshop.storage.used(SandboxId("room-hog"))
    await workshop.destroy(hog)
    freed = workshop.storage._headroom.freed  # type: ignore[attr-defined]
    assert freed >= before - MIB  # at once, whatever the kernel has done until now
    await eventually(lambda: shutil.disk_usage(host_disk / "state/disks").used < 60 * MIB)
    quota = workshop.storage._quotas  # type: ignore[attr-defined]
    await eventually(lambda: quota.find(neighbour.id).limit > 120 * MIB)
    assert (await sh(neighbour, "dd if=/dev/zero of=/f bs=1M count=100 conv=fsync")).done.exit_code == 0
    for live in (neighbour, late):
        await workshop.destroy(live)


async def test_most_of_what_there_is_can_be_written(workshop_on: Workshop) -> None:
    """Quotas follow a writer from look to look, and do not stop it as long as there is room."""
    live = await create(workshop_on, "room-hog", image="busybox")
    said = (await sh(live, "while dd if=/dev/zero bs=1M count=4 >>/f; do sync; done; du -m /f")).stdout
    assert int(said.split()[0]) > workshop_on.storage.largest_disk // MIB * 2 // 3
    await workshop_on.destroy(live)


async def test_where_a_disk_of_the_usual_size_cannot_be_there_are_smaller_ones(workshop_on: Workshop) -> None:
    most = workshop_on.storage.largest_disk
    for number, limits in enumerate((None, {"cpus": 1})):
        live = await create(workshop_on, f"room-{number}", image="busybox", limits=limits)
        assert workshop_on.record(live.id).limits.disk == most < Limits().disk
        await workshop_on.destroy(live)
    with pytest.raises(AtollError) as caught:
        await create(workshop_on, "room-large", image="busybox", limits={"disk": Limits().disk})
    assert caught.value.code is ErrorCode.DISK_COMMITTED


async def test_what_lies_idle_goes_back_to_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "SHRINK_AFTER_SECONDS", 0.2)
    monkeypatch.setattr(growth, "AHEAD", 64 * MIB)
    monkeypatch.setattr(growth, "SHARE_AHEAD", 8)
    pool = PoolStorage(tmp_path, size=3072 * MIB)
    file = tmp_path / "pool.btrfs"
    pool.create(SandboxId("one"), 1024 * MIB)
    await eventually(lambda: file.stat().st_size > 1024 * MIB)  # so that its owner may have it all at once
    subprocess.run(["fallocate", "--length", str(700 * MIB), tmp_path / "disks/one/f"], check=True)
    await eventually(lambda: file.stat().st_size > 1700 * MIB)
    pool.remove(SandboxId("one"))
    (pool.create(SandboxId("one"), 100 * MIB) / "kept").write_bytes(b"kept" * MIB)
    await eventually(lambda: file.stat().st_size < 512 * MIB)
    assert (tmp_path / "disks/one/kept").read_bytes() == b"kept" * MIB
    assert taken(file) >= file.stat().st_size
    pool.close()


async def test_holes_that_somebody_makes_are_filled_again(tmp_path: Path) -> None:
    pool = PoolStorage(tmp_path, size=MIN_POOL)
    file = tmp_path / "pool.btrfs"
    assert taken(file) >= file.stat().st_size
    subprocess.run(["fstrim", tmp_path / "disks"], check=True)
    await eventually(lambda: taken(file) >= file.stat().st_size)
    pool.close()


async def test_a_pool_of_an_earlier_version_gets_its_blocks_and_no_more_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "AHEAD", 64 * MIB)
    file = tmp_path / "pool.btrfs"
    with file.open("wb") as new:
        new.truncate(4096 * MIB)
    subprocess.run(["mkfs.btrfs", "-q", file], check=True)
    pool = PoolStorage(tmp_path)
    assert pool.size == 4096 * MIB
    (pool.create(SandboxId("one"), 100 * MIB) / "f").write_text("x")
    await eventually(lambda: taken(file) >= file.stat().st_size)
    assert file.stat().st_size < 2048 * MIB
    pool.close()
    again = PoolStorage(tmp_path)
    assert (again.size, (tmp_path / "disks/one/f").read_text()) == (4096 * MIB, "x")
    again.close()


def test_where_every_byte_is_certain_all_of_it_is_allocated_at_once(tmp_path: Path) -> None:
    pool = PoolStorage(tmp_path, size=500 * MIB, overcommit=1)
    assert taken(tmp_path / "pool.btrfs") >= 500 * MIB
    disk = pool.create(SandboxId("one"), 500 * MIB)
    # Less what its own files take that nobody sees, all of it can be written.
    subprocess.run(["dd", "if=/dev/urandom", f"of={disk}/f", "bs=1M", "count=495", "conv=fsync"], check=True, stderr=-3)
    pool.close()


def taken(file: Path) -> int:
    return file.stat().st_blocks * 512


# Words.


async def said_by(work: Awaitable[object]) -> AtollError:
    with pytest.raises(AtollError) as caught:
        await work
    assert caught.value.remedy
    return caught.value


async def test_a_pool_that_takes_nothing_more_is_named_by_every_operation(
    workshop_on: Workshop, host_disk: Path
) -> None:
    workshop, disks = workshop_on, host_disk / "state/disks"
    await create(workshop, "room-one", image="busybox", limits={"disk": "100MiB"})
    ended = await create(workshop, "room-two", image="busybox", limits={"disk": "100MiB"})
    await workshop.engine.stop(ended)
    async with Roster(workshop, workshop.store.timeline) as roster:
        subprocess.run(["mount", "-o", "remount,ro", disks], check=True)
        actor, caller = roster.actor("room-one"), Caller("me")

        async def refused(link: AgentLink) -> None:
            raise error(ErrorCode.COMMAND_NOT_FOUND, "the sandbox has no shell that could be started", command="sh")

        attempts = (
            roster.actor("room-three").ensure(Plan(image="busybox", limits=Limits(disk="100MiB")), caller),
            roster.actor("room-two").wake(caller),
            actor.do(caller, refused),
        )
        for attempt in attempts:
            problem = await said_by(attempt)
            assert problem.code is ErrorCode.POOL_READ_ONLY and "dmesg" in problem.remedy, problem
            assert problem.context["path"] == str(host_disk / "state/pool.btrfs")
        assert "read-only" in check_pool(host_disk / "state").found
        subprocess.run(["mount", "-o", "remount,rw", disks], check=True)
        for name in ("room-one", "room-two"):
            await roster.actor(name).destroy(caller)
        assert (
            await roster.actor("room-four").ensure(Plan(image="busybox", limits=Limits(disk="100MiB")), caller)
        ) is True
        await roster.actor("room-four").destroy(caller)


async def test_a_pool_that_was_read_only_when_the_nursery_began_is_written_to_afterwards(
    workshop_on: Workshop, host_disk: Path
) -> None:
    workshop, disks = workshop_on, host_disk / "state/disks"
    await workshop.engine.stop(await create(workshop, "room-one", image="busybox", limits={"disk": "100MiB"}))
    async with workshop.engine.at_rest():  # the next to start something makes another nursery
        pass
    subprocess.run(["mount", "-o", "remount,ro", disks], check=True)
    problem = await said_by(workshop.start(SandboxId("room-one")))
    assert problem.code is ErrorCode.POOL_READ_ONLY, problem
    subprocess.run(["mount", "-o", "remount,rw", disks], check=True)
    for live in (
        await workshop.start(SandboxId("room-one")),
        await create(workshop, "room-two", image="busybox", limits={"disk": "100MiB"}),
    ):
        assert (await sh(live, "echo x >/f && cat /f")).stdout == b"x\n"
        await workshop.destroy(live)


async def test_while_the_state_is_away_nothing_is_made_where_it_was(workshop_on: Workshop, host_disk: Path) -> None:
    workshop, database = workshop_on, database_of(workshop_on).path
    ended = await create(workshop, "room-one", image="busybox", limits={"disk": "100MiB"})
    await workshop.engine.stop(ended)
    away = database.rename(database.with_name("away"))
    for attempt in (create(workshop, "room-two", image="host"), workshop.start(ended.id)):
        problem = await said_by(attempt)
        assert problem.code is ErrorCode.STATE_DIRECTORY_UNUSABLE and "not there any more" in problem.message, problem
    assert not list(host_disk.glob("state/images/host/*"))
    away.rename(database)
    await workshop.destroy(await workshop.start(ended.id))


async def test_a_full_pool_is_named_with_what_is_left(workshop_on: Workshop, host_disk: Path) -> None:
    with_image = await create(workshop_on, "room-first", image="busybox", limits={"disk": "300MiB"})
    filler = fill(host_disk)
    made = [with_image]
    with pytest.raises(AtollError) as caught:
        for number in range(100):
            made.append(await create(workshop_on, f"room-{number}", image="busybox", limits={"disk": "300MiB"}))
    problem = caught.value
    assert problem.code is ErrorCode.NO_SPACE and "namespaces" not in problem.remedy, problem
    assert problem.context["host_free"] == 0 and problem.context["disks"] == len(made)
    for live in made:
        await workshop_on.destroy(live)
    filler.unlink()


async def test_a_sandbox_whose_own_disk_is_full_starts_or_says_so(workshop_on: Workshop) -> None:
    live = await create(workshop_on, "room-own", image="busybox", limits={"disk": "1MiB"})
    await sh(live, "dd if=/dev/zero of=/f bs=4k count=1000; i=0; while echo x >/g$i; do i=$((i+1)); done; sync")
    await workshop_on.engine.stop(live)
    try:
        again = await workshop_on.start(live.id)
    except AtollError as problem:
        assert problem.code is ErrorCode.NO_SPACE and problem.context["sandbox"] == "room-own", problem
        assert "larger disk" in problem.remedy
        await workshop_on.remove("room-own")
    else:
        await workshop_on.destroy(again)


def test_a_disk_without_inodes_is_named(tmp_path: Path) -> None:
    image, disk = tmp_path / "disk.img", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-N", "16", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    try:
        with pytest.raises(OSError) as full:
            for number in range(100):
                (disk / f"{number}").touch()
        assert full.value.errno == errno.ENOSPC
        (disk / "0").unlink()
        (disk / "state").mkdir()
        for make in (lambda: open_database(disk / "state"), lambda: PoolStorage(disk / "state", MIN_POOL)):
            with pytest.raises(AtollError) as caught:
                make()
            assert caught.value.code is ErrorCode.NO_SPACE, caught.value
            assert "df -i" in caught.value.remedy
    finally:
        subprocess.run(["umount", disk], check=True)
