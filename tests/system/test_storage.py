"""Where disks live: quotas that hold, a pool that is attached once, and what is said when it cannot be."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.engine.base import SandboxSpec
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.storage.directory import DirectoryStorage
from atoll.storage.loop_devices import LOCK, find_device
from atoll.storage.mounting import MIN_POOL
from atoll.storage.pool import PoolStorage, open_storage
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import agent_socket, linked, native

ONE, TWO = SandboxId("one"), SandboxId("two")
MIB = 2**20
CALLER = """
import sys
from atoll.storage.loop_devices import machine_lock, run
with machine_lock() as lock:
    run("sh", "-c", sys.argv[1], otherwise=RuntimeError, lock=lock)
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolStorage]:
    storage = PoolStorage(tmp_path / "state", size=512 * MIB, overcommit=1)
    yield storage
    storage.close()


async def test_a_full_disk_can_be_emptied_from_inside(workshop: Workshop) -> None:
    live = await create(workshop, "filler", image="busybox", limits=Limits(disk="20MiB"))
    async with linked(live) as link:
        box = Box(live, link, "busybox")
        output = await box.sh("dd if=/dev/zero of=/workspace/f bs=1M count=100")
        assert b"uota" in output.stderr or b"space" in output.stderr
        assert await box.text("rm /workspace/f; echo free >/workspace/g; cat /workspace/g") == "free"
    await workshop.destroy(live)


def test_a_process_without_descriptors_is_not_a_damaged_pool(pool: PoolStorage) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        with pytest.raises(AtollError) as caught:
            pool.create(ONE, MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.code is ErrorCode.TOO_MANY_OPEN_FILES
    pool.create(ONE, MIB)


async def test_a_full_disk_is_its_owners_problem_alone(workshop: Workshop) -> None:
    full = await create(workshop, "full", image="busybox", limits=Limits(disk="20MiB"))
    neighbour = await create(workshop, "neighbour", image="busybox", limits=Limits(disk="20MiB"))
    async with linked(full) as one, linked(neighbour) as other:
        await Box(full, one, "busybox").sh("dd if=/dev/zero of=/f bs=1M count=100")
        output = await other.run(Exec(argv=["sh", "-c", "dd if=/dev/zero of=/f bs=1M count=10 2>/dev/null; wc -c </f"]))
        assert output.stdout.strip() == b"10485760"
        assert await Box(full, one, "busybox").text("echo alive") == "alive"
    await workshop.destroy(full)
    await workshop.destroy(neighbour)


async def test_a_disk_starts_again_under_other_ids_with_the_same_owners(workshop: Workshop) -> None:
    live = await create(workshop, "again", image="busybox")
    async with linked(live) as link:
        await Box(live, link, "busybox").text(
            "echo kept >/workspace/f; chown 1000:2000 /workspace/f; chmod 640 /workspace/f"
        )
    await workshop.engine.stop(live)
    record = workshop.record(live.id)
    disk = agent_socket(live).parents[2] / "state/disks" / live.id
    rootfs = workshop.images.resolve("busybox")
    env = {"PATH": "/bin"}
    second = await workshop.engine.start(
        SandboxSpec(id=live.id, generation="second", rootfs=rootfs, disk=disk, limits=record.limits, env=env)
    )
    assert native(second).uid_base != native(live).uid_base
    async with linked(second) as link:
        box = Box(second, link, "busybox")
        assert await box.text("cat /workspace/f; stat -c %u:%g:%a /workspace/f") == "kept\n1000:2000:640"
        assert await box.text("echo more >>/workspace/f; cat /etc/hostname") == "again"
    await workshop.engine.stop(second)
    await workshop.remove(live.id)


def test_disks_are_promised_only_as_far_as_the_pool_reaches(pool: PoolStorage) -> None:
    pool.create(ONE, 400 * MIB)
    with pytest.raises(AtollError) as caught:
        pool.create(TWO, 200 * MIB)
    assert caught.value.code == ErrorCode.DISK_COMMITTED
    assert caught.value.context["committed"] == 400 * MIB
    pool.create(TWO, 100 * MIB)
    pool.remove(ONE)
    pool.remove(ONE)
    pool.create(ONE, 300 * MIB)


def test_the_same_disk_twice_counts_once(pool: PoolStorage) -> None:
    pool.create(ONE, 400 * MIB)
    with pytest.raises(AtollError):
        pool.create(ONE, 50 * MIB)
    pool.create(TWO, 100 * MIB)


def test_promises_are_remembered_and_a_pool_grows(tmp_path: Path) -> None:
    first = PoolStorage(tmp_path, size=300 * MIB)
    first.create(ONE, 200 * MIB)
    (tmp_path / "disks/one/file").write_text("kept")
    first.close()
    second = PoolStorage(tmp_path, overcommit=1)
    assert (second.size, (tmp_path / "disks/one/file").read_text()) == (300 * MIB, "kept")
    with pytest.raises(AtollError):
        second.create(TWO, 200 * MIB)
    second.close()
    third = PoolStorage(tmp_path, size=600 * MIB, overcommit=1)
    third.create(TWO, 200 * MIB)
    subprocess.run(["dd", "if=/dev/zero", f"of={tmp_path}/disks/two/f", "bs=1M", "count=150"], check=True, stderr=-3)
    third.close()


def test_a_pool_has_one_loop_device_however_often_it_is_opened(pool: PoolStorage, tmp_path: Path) -> None:
    disk = pool.create(ONE, 20 * MIB)
    (disk / "f").write_text("x")
    again = PoolStorage(tmp_path / "state")
    file = tmp_path / "state/pool.btrfs"
    devices = subprocess.run(
        ["losetup", "-n", "-O", "NAME", "-j", file], capture_output=True, check=True
    ).stdout.split()
    assert len(devices) == 1
    assert (disk / "f").read_text() == "x"
    again.close()


def test_a_closed_pool_takes_little_more_of_the_host_than_its_disks_hold(tmp_path: Path) -> None:
    file = tmp_path / "pool.btrfs"
    pool = PoolStorage(tmp_path, size=2048 * MIB)
    for name, size in (ONE, 10 * MIB), (TWO, 150 * MIB):
        (pool.create(name, size=256 * MIB) / "content").write_bytes(os.urandom(size))
    assert in_use_once_written(pool) > 160 * MIB
    assert taken(file) > 160 * MIB
    (pool.find(TWO) / "content").unlink()
    assert in_use_once_written(pool) < 100 * MIB
    pool.close()
    assert 10 * MIB < taken(file) < 100 * MIB


def in_use_once_written(pool: PoolStorage) -> int:
    disk = pool.find(ONE)
    subprocess.run(["sync", "--file-system", disk], check=True)
    return shutil.disk_usage(disk).used


def taken(file: Path) -> int:
    return file.stat().st_blocks * 512


def test_the_device_goes_with_the_last_mount(tmp_path: Path) -> None:
    storage = PoolStorage(tmp_path, size=MIN_POOL)
    assert find_device(tmp_path / "pool.btrfs")
    storage.close()
    while find_device(tmp_path / "pool.btrfs"):
        time.sleep(0.01)
    assert not (tmp_path / "disks").is_mount()


def test_use_is_counted(pool: PoolStorage) -> None:
    disk = pool.create(ONE, 50 * MIB)
    before = pool.used(ONE)
    (disk / "f").write_bytes(bytes(range(256)) * 4096 * 10)
    subprocess.run(["sync", "-f", disk], check=True)
    assert 10 * MIB <= pool.used(ONE) - before < 12 * MIB


def test_the_same_disk_twice_is_refused_and_the_first_is_kept(pool: PoolStorage) -> None:
    (pool.create(ONE, 20 * MIB) / "f").write_text("x")
    with pytest.raises(FileExistsError) as caught:
        pool.create(ONE, 20 * MIB)
    assert isinstance(caught.value, AtollError) and caught.value.code == ErrorCode.SANDBOX_EXISTS


def test_a_damaged_pool_is_named_and_not_overwritten(tmp_path: Path) -> None:
    PoolStorage(tmp_path, size=MIN_POOL).close()
    file = tmp_path / "pool.btrfs"
    while find_device(file):
        time.sleep(0.01)
    with file.open("r+b") as pool:
        pool.write(b"x" * 2 * MIB)
    damaged = file.read_bytes()[: 2 * MIB]
    with pytest.raises(AtollError) as caught:
        PoolStorage(tmp_path)
    assert caught.value.code == ErrorCode.POOL_DAMAGED
    assert "btrfs check" in caught.value.remedy
    assert file.read_bytes()[: 2 * MIB] == damaged
    while find_device(file):
        time.sleep(0.01)


def autoclears(file: Path) -> bool:
    """Whether the loop device of `file` goes with its last mount."""
    device = find_device(file)
    assert device
    return Path(f"/sys/block/{Path(device).name}/loop/autoclear").read_text().strip() == "1"


def test_a_pool_whose_opener_was_killed_right_after_the_mount_is_detached_in_the_end(tmp_path: Path) -> None:
    PoolStorage(tmp_path, size=MIN_POOL).close()
    file = tmp_path / "pool.btrfs"
    while find_device(file):
        time.sleep(0.01)
    device = subprocess.run(["losetup", "-f", "--show", file], check=True, stdout=-1, text=True).stdout.strip()
    subprocess.run(["mount", device, tmp_path / "disks"], check=True)
    assert not autoclears(file)
    storage = PoolStorage(tmp_path)
    assert autoclears(file)
    storage.close()


def test_a_pool_whose_opener_was_killed_right_after_the_attach_has_no_second_device(tmp_path: Path) -> None:
    PoolStorage(tmp_path, size=MIN_POOL).close()
    file = tmp_path / "pool.btrfs"
    while find_device(file):
        time.sleep(0.01)
    device = subprocess.run(["losetup", "-f", "--show", file], check=True, stdout=-1, text=True).stdout.strip()
    storage = PoolStorage(tmp_path)
    assert find_device(file) == device
    assert autoclears(file)
    storage.close()


def test_a_growth_that_was_killed_half_way_is_finished(tmp_path: Path) -> None:
    first = PoolStorage(tmp_path, size=300 * MIB)
    subprocess.run(["fallocate", "--length", str(600 * MIB), tmp_path / "pool.btrfs"], check=True)
    second = PoolStorage(tmp_path, size=600 * MIB, overcommit=1)
    assert shutil.disk_usage(tmp_path / "disks").total >= 600 * MIB
    second.create(ONE, 500 * MIB)
    first.close()
    second.close()


def test_a_pool_that_cannot_grow_says_so_and_is_let_go(tmp_path: Path) -> None:
    PoolStorage(tmp_path, size=MIN_POOL).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIN_POOL, hard))  # what a file system says to a file that is too large
    try:
        with pytest.raises(AtollError) as caught:
            PoolStorage(tmp_path, size=600 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == ErrorCode.NO_SPACE
    assert caught.value.remedy
    storage = PoolStorage(tmp_path)
    assert storage.size == MIN_POOL
    storage.close()


def test_programs_hold_the_lock_when_their_caller_is_killed(tmp_path: Path) -> None:
    """A mkfs, losetup or mount goes on without whoever started it, and the next must not come in its way."""
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "end")
    program = f"echo >{tmp_path}/begun; read _ <{tmp_path}/end"
    caller = subprocess.Popen([sys.executable, "-c", CALLER, program])
    (tmp_path / "begun").read_text()
    caller.kill()
    caller.wait()
    holder = os.open(LOCK, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (tmp_path / "end").write_text("\n")
    fcntl.flock(holder, fcntl.LOCK_EX)
    os.close(holder)


def test_a_pool_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "pool.new").write_bytes(b"half")
    storage = PoolStorage(tmp_path, size=MIN_POOL)
    storage.create(ONE, 20 * MIB)
    storage.close()
    assert not (tmp_path / "pool.new").exists()


def test_without_the_programs_there_are_plain_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        storage = open_storage(tmp_path / "state")
    assert isinstance(storage, DirectoryStorage)
    assert not storage.enforces_limits
    disk = storage.create(ONE, 20 * MIB)
    (disk / "f").write_bytes(b"x" * 10_000)
    assert storage.used(ONE) >= 10_000
    storage.remove(ONE)
    storage.remove(ONE)
    assert not disk.exists()
