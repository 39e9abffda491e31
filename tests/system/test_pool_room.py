"""A disk that is full under the pool: it costs whoever writes an error, and nobody anything else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.messages import Exec
from atoll.storage.failures import is_read_only
from atoll.supervisor.agent_link import AgentLink, CommandOutput
from atoll.supervisor.machine import Machine

MIB = 2**20
HANG_SECONDS = 120.0
WRITER = (
    "i=0; while [ $i -lt {rounds} ]; do dd if=/dev/zero of=/f$i bs=1M count=8 conv=fsync 2>/dev/null; i=$((i+1)); done"
)


@pytest.fixture
def host_disk(tmp_path: Path) -> Iterator[Path]:
    """The disk that holds the state directory: a file system of its own, of 640 MiB."""
    image, disk = tmp_path / "disk.img", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(640 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    yield disk
    while subprocess.run(["umount", disk], capture_output=True).returncode:  # the kernel lets go of the pool's file
        os.sched_yield()


@pytest.fixture
async def machine_on(host_disk: Path, busybox_root: Path) -> AsyncIterator[Machine]:
    async with Machine(host_disk / "state", host_disk / "run") as machine:
        machine.images.add("busybox", busybox_root)
        yield machine
        for record in machine.records():  # of a test that failed
            await machine.remove(record.id)


def fill(disk: Path) -> Path:
    """By somebody else, root, to the last block."""
    path = disk / "somebody-else"
    with path.open("ab", buffering=0) as file:
        for size in (16 * MIB, 4096):  # there are blocks that only a write finds
            try:
                while True:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
            except OSError:
                continue
    return path


async def sh(live: object, script: str) -> CommandOutput:
    async with AgentLink(live.agent_socket) as link:  # type: ignore[attr-defined]
        return await link.run(Exec(argv=["sh", "-c", script], timeout=HANG_SECONDS))


async def eventually(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + HANG_SECONDS
    while not holds():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.05)


async def try_short_life(machine: Machine) -> None:
    """A sandbox made, used and destroyed; or NO_SPACE, with nothing left of it."""
    try:
        live = await machine.create("room-short", image="busybox", limits={"disk": "300MiB"})
    except AtollError as problem:
        assert problem.code is ErrorCode.NO_SPACE and "free" in problem.message and problem.remedy, problem
    else:
        await sh(live, "echo x >/f && sync /f")
        await machine.destroy(live)
    assert "room-short" not in machine.storage.names()


async def test_a_host_disk_that_somebody_fills_stops_writers_and_nothing_else(
    machine_on: Machine, host_disk: Path
) -> None:
    machine, limits = machine_on, {"disk": "300MiB"}
    kept, *writers = [
        await machine.create(name, image="busybox", limits=limits) for name in ("room-kept", "room-one", "room-two")
    ]
    await sh(kept, "echo kept >/kept; sync")
    writing = [asyncio.create_task(sh(writer, WRITER.format(rounds=40))) for writer in writers]
    other = await asyncio.to_thread(fill, host_disk)
    while not all(writer.done() for writer in writing):
        await try_short_life(machine)
        await asyncio.sleep(0.02)
    assert os.statvfs(host_disk).f_bavail == 0
    assert not is_read_only(host_disk / "state/disks")
    assert (await sh(kept, "echo more >>/kept && sync /kept && cat /kept")).stdout == b"kept\nmore\n"
    await machine.destroy(writers[0])
    other.unlink()
    assert (await sh(writers[1], "rm -f /f*; dd if=/dev/zero of=/f bs=1M count=8 conv=fsync")).done.exit_code == 0
    await machine.destroy(await machine.create("room-next", image="busybox", limits=limits))
    for live in (kept, writers[1]):
        await machine.destroy(live)
