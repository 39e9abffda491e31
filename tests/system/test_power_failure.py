"""What is left when the power fails: a copy of the file system's device, taken while everything runs, is the platter.

The kernel writes behind in its own time, up to half a minute later. With ATOLL_SOAK set that is waited for; else what
it would have written by then is written when the test says so.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from atoll.storage.pool import PoolStorage
from atoll.store.moments import boot_id
from atoll.store.sqlite.database import NAME
from atoll.supervisor.reconcile import Decision, Ground, Restore, Undo, decide, look_at_disks
from atoll.supervisor.records import Row, Stage
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.contract import maker
from tests.making import create

SIZE = 3 * 2**30  # sparse
HANG_SECONDS = 60.0
UNMOUNT_ATTEMPTS = 1_000
SECONDS = (0, 1, 3, 10, 40) if os.environ.get("ATOLL_SOAK") else (0, 1)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
OTHER_BOOT = "6e6f7420-7468-4973-8062-6f6f74212121"
ROOT = Path(__file__).parents[2]
WITH_POOL, WITHOUT_POOL = os.environ["PATH"], "/usr/bin:/bin"  # where mkfs.btrfs is not


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        yield place
    finally:
        for _ in range(UNMOUNT_ATTEMPTS):  # the pool's device goes a moment after its mount
            if not subprocess.run(["umount", place], capture_output=True).returncode:
                break
        else:
            raise TimeoutError(f"{place} is in use")


@contextmanager
def new_disk(image: Path, place: Path) -> Iterator[Path]:
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", image], check=True)
    with mounted(image, place) as disk:
        yield disk


def copy(image: Path, name: str) -> Path:
    """What the platter would hold now."""
    target = image.with_name(f"{name}.img")
    subprocess.run(["cp", "--sparse=always", image, target], check=True)
    return target


class Maker:
    """A process that has a workshop, in this boot or as if after another."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, *words: str) -> str:
        """Its last word on this."""
        assert self._process.stdin
        self._process.stdin.write(f"{' '.join(words)}\n".encode())
        last = {"create": "wrote", "remove": "removed", "sync": "synced", "read": "holds"}[words[0]]
        return (await self.lines_until(f"{last} {words[1]}"))[-1]

    async def lines_until(self, beginning: str) -> list[str]:
        assert self._process.stdout
        lines: list[str] = []
        async with asyncio.timeout(HANG_SECONDS):
            while not lines or not lines[-1].startswith(beginning):
                line = (await self._process.stdout.readline()).decode()
                assert line.endswith("\n") and not line.startswith("failed"), (line, lines)
                lines.append(line.strip())
        return lines


@asynccontextmanager
async def running(directory: Path, boot: Path | None = None) -> AsyncIterator[tuple[Maker, list[str]]]:
    """A maker, and what it found; at the end it is told to quit, or killed if the test has failed."""
    command = [sys.executable, maker.__file__, str(directory)]
    if boot:
        as_if = f'mount --bind {boot} {BOOT_ID} && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", as_if, "sh", *command]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=-1, stdout=-1, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        one = Maker(process)
        yield one, await one.lines_until("ready")
        assert process.stdin
        process.stdin.write(b"quit\n")
        async with asyncio.timeout(HANG_SECONDS):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def cleared(directory: Path) -> AsyncIterator[Path]:
    """A state directory whose sandboxes end with this."""
    try:
        yield directory
    finally:
        async with Workshop(directory / "state", directory / "run") as workshop:
            for record in workshop.records():
                await workshop.remove(record.id)


def sync_pool(state: Path) -> None:
    subprocess.run(["sync", "--file-system", state / "disks"], check=True)


def sync_database(state: Path) -> None:
    subprocess.run(["sync", state / f"{NAME}-wal", state / NAME], check=True)


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    file = tmp_path / "boot_id"
    file.write_text(f"{OTHER_BOOT}\n")
    return file


@pytest.mark.parametrize(("path", "seconds"), [(WITH_POOL, SECONDS), (WITHOUT_POOL, (0,))], ids=["pool", "plain"])
async def test_what_was_synced_inside_is_there_after_a_power_failure(
    tmp_path: Path,
    busybox_root: Path,
    boot: Path,
    path: str,
    seconds: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", path)
    image, platters = tmp_path / "disk.img", []
    with new_disk(image, tmp_path / "disk") as disk:
        await prepare(disk, busybox_root)
        async with cleared(disk), running(disk) as (one, _):
            for name in ("dirty", "gone"):
                await one.ask("create", name)
            await one.ask("sync", "gone")
            sync_database(disk / "state")
            await one.ask("remove", "gone")
            await one.ask("create", "synced")
            await one.ask("sync", "synced")
            for before, now in pairwise((0, *seconds)):
                await asyncio.sleep(now - before)
                platters.append(copy(image, f"after-{now}"))
            assert (disk / "state/pool.btrfs").exists() == (path == WITH_POOL)
            sync_pool(disk / "state")
            platters.append(copy(image, "with-pool"))
            sync_database(disk / "state")
            platters.append(copy(image, "with-both"))
    for platter in platters:
        with mounted(platter, tmp_path / platter.stem) as disk:
            async with running(disk, boot) as (one, found):
                there = {line.split()[1] for line in found if line.startswith("ended")}
                assert not [line for line in found if line.startswith("running")], platter
                assert not [line for line in found if line.startswith("swept") and line != "swept gone"], platter
                assert "synced" in there, (platter, found)
                for name in there - {"dirty"}:  # "gone" is there whole, or not at all
                    assert await one.ask("read", name) == f"holds {name} {name}", platter
                if platter.stem.startswith("with"):
                    assert there == {"synced", "dirty"}
                for name in there:
                    await one.ask("remove", name)
            async with running(disk, boot) as (_, found):
                assert not [line for line in found if line.startswith(("running", "ended"))]


async def prepare(disk: Path, busybox_root: Path) -> None:
    """A state directory that was there for long."""
    async with Workshop(disk / "state", disk / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
    subprocess.run(["sync", "--file-system", disk], check=True)


async def test_a_disk_whose_making_was_committed_before_it_was_reported_says_so_as_soon_as_something_is_synced(
    tmp_path: Path,
) -> None:
    """Then no sync of a file takes the record along."""
    image = tmp_path / "disk.img"
    with ExitStack() as stack:
        disk = stack.enter_context(new_disk(image, tmp_path / "disk"))
        pool = PoolStorage(disk / "state", size=300 * 2**20)
        for name in ("one", "two"):
            path = pool.create(name, 20 * 2**20, b"making")  # type: ignore[arg-type]
            assert pool.is_covered(name)  # type: ignore[arg-type]
            if name == "two":
                sync_pool(disk / "state")
            pool.replace_record(name, b"created")  # type: ignore[arg-type]
            assert pool.is_covered(name) == (name == "one")  # type: ignore[arg-type]
            pool.cover(name)  # type: ignore[arg-type]
            sync_file(path / "f")
        platter = copy(image, "platter")
        pool.close()
    with mounted(platter, tmp_path / "after") as disk:
        pool = PoolStorage(disk / "state")
        for name in ("one", "two"):
            assert pool.record(name) == b"created"
            assert (disk / "state/disks" / name / "f").read_bytes() == b"x"
        pool.close()


def sync_file(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())


WAL_HEADER, FRAME = 32, 24 + 4096


async def test_a_log_cut_at_any_frame_costs_no_sandbox(tmp_path: Path, busybox_root: Path) -> None:
    state, names = tmp_path / "state", [f"s{number}" for number in range(5)]
    async with Workshop(state, tmp_path / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
        for name in names:
            await workshop.engine.stop(await create(workshop, name, image="busybox", limits="lite"))
        await workshop.engine.release(await create(workshop, "destroyed", image="busybox", limits="lite"))
        await workshop.remove("destroyed")
        database, log = (state / NAME).read_bytes(), (state / f"{NAME}-wal").read_bytes()
        disks = look_at_disks(workshop.storage)
        ground = Ground(
            boot_id=boot_id(), destroyed_at=lambda _: None, was_removed=lambda record: record.id not in names
        )
    frames = (len(log) - WAL_HEADER) // FRAME
    had = set()
    for whole in range(frames + 1):
        rows = rows_with(tmp_path / f"cut-{whole}", database, log[: WAL_HEADER + whole * FRAME])
        restored, others = restored_and_others(decide(rows, disks, ground))
        created = {row.id for row in rows if row.stage is Stage.CREATED}
        assert (created | restored) - {other.id for other in others} == {*names}, whole
        assert not [other for other in others if isinstance(other, Undo) and other.has_disk], whole
        had.add(len(created))
    assert {0, *range(1, 6)} <= had, "the log was cut between any two of them"
    (state / NAME).write_bytes(database)
    (state / f"{NAME}-wal").write_bytes(log[: WAL_HEADER + frames // 2 * FRAME])
    async with Workshop(state, tmp_path / "run") as workshop:
        assert {record.id for record in workshop.records()} == {*names}
        assert workshop.inherited.restored and not workshop.inherited.removed
        for name in names:
            await workshop.remove(name)


def rows_with(state: Path, database: bytes, log: bytes) -> list[Row]:
    """What records say of a database with a log that was cut."""
    state.mkdir()
    (state / NAME).write_bytes(database)
    (state / f"{NAME}-wal").write_bytes(log)
    return kept.rows(state)


def restored_and_others(decisions: list[Decision]) -> tuple[set[str], list[Decision]]:
    restored = {decision.id for decision in decisions if isinstance(decision, Restore)}
    return {*restored}, [decision for decision in decisions if not isinstance(decision, Restore)]
