"""One workshop per state directory; what a damaged or a full one means, and that nothing is lost with it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from atoll.engine.base import LiveSandbox
from atoll.engine.native import engine as engine_module
from atoll.engine.native.engine import NativeEngine
from atoll.images.catalog import ImageCatalog
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import MAX_BYTES, MAX_CPUS, MAX_PIDS, SIZES, Limits
from atoll.storage.directory import DirectoryStorage
from atoll.storage.pool import PoolStorage
from atoll.store.sqlite import reserve
from atoll.store.sqlite.database import NAME
from atoll.supervisor.actor import Caller
from atoll.supervisor.estate import Inherited
from atoll.supervisor.plans import Plan, Upkeep
from atoll.supervisor.roster import Roster
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.kept import leftovers
from tests.making import create
from tests.native import run

ONE = SandboxId("one")
MIB = 2**20
HANG_SECONDS = 60.0


def open_workshop(directory: Path) -> Workshop:
    return Workshop(directory / "state", directory / "run")


async def test_a_second_workshop_is_told_who_has_the_directory(tmp_path: Path) -> None:
    async with open_workshop(tmp_path):
        with pytest.raises(AtollError) as caught:
            open_workshop(tmp_path)
        assert caught.value.code == ErrorCode.STATE_DIRECTORY_IN_USE
        assert caught.value.context == {"path": str(tmp_path / "state"), "pid": os.getpid()}
        assert caught.value.remedy
    async with open_workshop(tmp_path):
        pass


async def test_a_killed_workshop_has_the_directory_no_longer(tmp_path: Path) -> None:
    code = "import sys, time; from tests.contract.test_state_directory import *; w = open_workshop(Path(sys.argv[1]))"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print('open', flush=True); time.sleep(600)", tmp_path],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert holder.stdout
    with holder.stdout:
        assert holder.stdout.readline() == b"open\n"
    with pytest.raises(AtollError, match=f"process {holder.pid}"):
        open_workshop(tmp_path)
    holder.kill()
    holder.wait()
    async with open_workshop(tmp_path):
        pass


def take_record_off(workshop: Workshop, sandbox: str) -> None:
    """As it is on a disk that an earlier version made."""
    assert isinstance(workshop.storage, PoolStorage)
    os.removexattr(workshop.storage.find(SandboxId(sandbox)), "user.atoll.record")


async def test_a_damaged_record_is_made_anew_from_the_disk(tmp_path: Path, busybox_root: Path) -> None:
    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        await workshop.engine.release(await create(workshop, "one", image="busybox", env={"A": "b" * 100_000}))
    content = kept.content(tmp_path / "state", "one")
    kept.put(tmp_path / "state", "one", "created", content[:40])
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(running=(ONE,), restored=(ONE,))
        assert kept.content(tmp_path / "state", "one") == content
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(running=(ONE,))
        await workshop.remove("one")
        assert not leftovers(tmp_path)


async def test_a_record_damaged_everywhere_keeps_its_disk_and_lets_the_workshop_open(
    tmp_path: Path, busybox_root: Path
) -> None:
    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox")
        await run(live, "sh", "-c", "echo kept >/f")
        await workshop.engine.release(live)
        take_record_off(workshop, "one")
    content = kept.content(tmp_path / "state", "one")
    kept.put(tmp_path / "state", "one", "created", content[:40])
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(damaged=(ONE,))
        for attempt in (workshop.adopt, workshop.remove):
            with pytest.raises(AtollError) as caught:
                await attempt("one")
            assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE
    kept.put(tmp_path / "state", "one", "created", content)
    async with open_workshop(tmp_path) as workshop:
        live = await workshop.adopt("one")
        assert await run(live, "cat", "/f") == b"kept\n"
        await workshop.destroy(live)
        assert not leftovers(tmp_path)


async def test_a_sandbox_that_ended_keeps_its_files(tmp_path: Path, busybox_root: Path) -> None:
    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox")
        await run(live, "sh", "-c", "echo kept >/f")
        await workshop.engine.stop(live)
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(ended=(ONE,))
        assert (tmp_path / "state/disks/one/root/f").read_text() == "kept\n"
        with pytest.raises(FileExistsError):
            await create(workshop, "one", image="busybox")
        await workshop.remove("one")
        assert not leftovers(tmp_path)


def lose(database: Path) -> None:
    database.unlink()


def lose_and_make_a_key(database: Path) -> None:
    """Which makes a database, with no sandbox in it."""
    database.unlink()
    kept.make_key(database.parent)


def empty(database: Path) -> None:
    database.write_bytes(b"")


def truncate(database: Path) -> None:
    os.truncate(database, database.stat().st_size - 4096)


def scribble(database: Path) -> None:
    database.write_bytes(b"not a database at all" * 1000)


def drop_rows(database: Path) -> None:
    """As if a page of the table had been written when it held nothing."""
    with closing(sqlite3.connect(database)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sandboxes'").fetchone()
    with database.open("r+b") as file:
        file.seek((page - 1) * 4096 + 3)  # of a page's header: how many cells it has
        file.write(b"\0\0")


@pytest.mark.parametrize("damage", [lose, lose_and_make_a_key, empty])
async def test_a_lost_database_is_made_anew_from_the_disks(
    tmp_path: Path, busybox_root: Path, damage: Callable[[Path], None]
) -> None:
    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        for name in ("one", "two"):
            live = await create(workshop, name, image="busybox")
            await run(live, "sh", "-c", f"echo {name} >/f")
            await workshop.engine.release(live)
        await workshop.engine.stop(await workshop.adopt("two"))
        await workshop.update(workshop.record(ONE), upkeep=Upkeep(labels={"a": "b"}))
        before = workshop.records()
    damage(tmp_path / "state" / NAME)
    async with open_workshop(tmp_path) as workshop:
        two = SandboxId("two")
        assert workshop.inherited == Inherited(running=(ONE,), ended=(two,), restored=(ONE, two))
        assert workshop.records() == before
        live = await workshop.adopt("one")
        assert await run(live, "cat", "/f") == b"one\n"
        assert (tmp_path / "state/disks/two/root/f").read_text() == "two\n"
        await workshop.engine.release(live)
        for name in ("one", "two"):
            await workshop.remove(name)
        assert not leftovers(tmp_path)


@pytest.mark.parametrize("damage", [lose, truncate, scribble, drop_rows])
async def test_a_lost_or_damaged_database_does_not_cost_disks_that_carry_nothing(
    tmp_path: Path, busybox_root: Path, damage: Callable[[Path], None]
) -> None:
    database, backup = tmp_path / "state" / NAME, tmp_path / "backup"
    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox")
        await run(live, "sh", "-c", "echo kept >/f")
        await workshop.engine.release(live)
        take_record_off(workshop, "one")
    shutil.copy(database, backup)
    damage(database)
    for _ in range(2):
        with pytest.raises(AtollError) as caught:
            async with open_workshop(tmp_path):
                pass
        assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE
        assert str(database) in caught.value.message and caught.value.remedy
    shutil.copy(backup, database)
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(running=(ONE,))
        live = await workshop.adopt("one")
        assert await run(live, "cat", "/f") == b"kept\n"
        await workshop.destroy(live)


async def test_a_disk_that_is_not_on_record_goes_if_nothing_was_ever_on_it(tmp_path: Path) -> None:
    async with open_workshop(tmp_path) as workshop:
        workshop.storage.create(ONE, 20 * MIB)
        (workshop.storage.create(SandboxId("two"), 20 * MIB) / "f").write_text("x")
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(removed=(ONE,), set_aside=("two",))
        assert (workshop.storage.lost.path("two") / "f").read_text() == "x"


async def test_records_that_an_earlier_version_kept_in_files_are_taken_over(tmp_path: Path, busybox_root: Path) -> None:
    state = tmp_path / "state"
    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        for name in ("one", "half-made", "half-removed", "damaged"):
            live = await create(workshop, name, image="busybox", limits="lite")
            await run(live, "sh", "-c", "echo kept >/f")
            await workshop.engine.release(live)
            take_record_off(workshop, name)
        workshop.storage.create(SandboxId("half-written"), 20 * MIB)
    (state / "records").mkdir()
    files = {"one": "json", "half-made": "making", "half-removed": "removing", "damaged": "json"}
    for name, ending in files.items():
        (state / f"records/{name}.{ending}").write_bytes(kept.content(state, name))
    whole = (state / "records/damaged.json").read_bytes()
    (state / "records/damaged.json").write_bytes(whole[:40])
    (state / "records/half-written.making").write_bytes(whole[:40])
    (state / NAME).unlink()
    async with open_workshop(tmp_path) as workshop:
        removed = tuple(map(SandboxId, ("half-made", "half-removed", "half-written")))
        assert workshop.inherited == Inherited(running=(ONE,), damaged=(SandboxId("damaged"),), removed=removed)
        assert await run((await adopted(workshop, "one")), "cat", "/f") == b"kept\n"
        assert sorted(leftovers(tmp_path)) == ["damaged", "damaged", "one", "one"]
    assert not list(state.glob("records*"))
    kept.put(state, "damaged", "created", whole)
    async with open_workshop(tmp_path) as workshop:
        assert await run((await adopted(workshop, "damaged")), "cat", "/f") == b"kept\n"
        for name in ("one", "damaged"):
            await workshop.remove(name)
        assert not leftovers(tmp_path)


async def adopted(workshop: Workshop, name: str) -> LiveSandbox:
    """Running, and held by nobody."""
    live = await workshop.adopt(name)
    await workshop.engine.release(live)
    return live


async def test_plain_directories_are_looked_at_too(tmp_path: Path) -> None:
    async with Workshop(tmp_path / "state", tmp_path / "run", storage=DirectoryStorage(tmp_path / "state/disks")):
        pass
    storage = DirectoryStorage(tmp_path / "state/disks")
    storage.create(ONE, 0)
    (storage.create(SandboxId("two"), 0) / "f").write_text("x")
    (tmp_path / "state/disks/Not a sandbox").mkdir()
    async with Workshop(tmp_path / "state", tmp_path / "run", storage=storage) as workshop:
        assert workshop.inherited == Inherited(removed=(ONE,), set_aside=("two",))
        assert (storage.lost.path("two") / "f").read_text() == "x"
    assert storage.names() == {"Not a sandbox"}


async def test_a_removal_that_takes_its_time_holds_up_nobody(
    tmp_path: Path, busybox_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DirectoryStorage(tmp_path / "state/disks")
    has_begun, may_end = threading.Event(), threading.Event()
    remove = storage.remove

    def take_time(sandbox: SandboxId) -> None:
        has_begun.set()
        assert may_end.wait(HANG_SECONDS)
        remove(sandbox)

    async with Workshop(tmp_path / "state", tmp_path / "run", storage=storage) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox")
        monkeypatch.setattr(storage, "remove", take_time)
        removals = [asyncio.create_task(workshop.destroy(live)) for _ in range(2)]
        await asyncio.to_thread(has_begun.wait, HANG_SECONDS)
        removals[0].cancel()  # which waits for the thread
        with pytest.raises(AtollError, match="SANDBOX_EXISTS"):
            await create(workshop, "one", image="busybox")
        may_end.set()
        await asyncio.gather(*removals, return_exceptions=True)
        await workshop.destroy(await create(workshop, "one", image="busybox"))
        assert storage.names() == set()


async def test_a_removal_that_fails_is_finished_by_the_next_try(
    tmp_path: Path, busybox_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SandboxId) -> None:
        raise OSError("cannot")

    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox")
        with monkeypatch.context() as patch:
            patch.setattr(workshop.storage, "remove", fail)
            with pytest.raises(OSError):
                await workshop.destroy(live)
        with pytest.raises(LookupError):
            await workshop.adopt("one")
        await workshop.destroy(live)
        assert not leftovers(tmp_path)


async def test_a_handle_from_before_does_not_harm_the_next_of_that_name(tmp_path: Path, busybox_root: Path) -> None:
    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox")
        old = await workshop.adopt("one")
        await workshop.destroy(live)
        new = await create(workshop, "one", image="busybox")
        await workshop.destroy(old)
        assert await run(new, "echo", "x") == b"x\n"
        assert workshop.record(ONE).generation == new.generation
        await workshop.destroy(new)


# Full disks and limits.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 500 MiB."""
    yield from disk_of("500m", tmp_path)


@pytest.fixture
def larger_disk(tmp_path: Path) -> Iterator[Path]:
    """One of which a pool does not take all ahead of its writers."""
    yield from disk_of("2g", tmp_path)


def disk_of(size: str, directory: Path) -> Iterator[Path]:
    disk = directory / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", disk], check=True)
    yield disk
    while subprocess.run(["umount", disk], capture_output=True).returncode:  # the kernel lets go of the pool's file
        os.sched_yield()


def fill(disk: Path, leave: int) -> Path:
    """Take all but `leave` bytes of a file system."""
    file = disk / "filler"
    with file.open("wb") as filler:
        while (left := shutil.disk_usage(disk).free - leave) > 0:
            with suppress(OSError):  # a pool may take some of it at the same moment
                os.posix_fallocate(filler.fileno(), 0, os.fstat(filler.fileno()).st_size + left)
    return file


async def test_a_full_disk_makes_no_half_sandbox_and_goes_on_when_it_has_space(
    larger_disk: Path, busybox_root: Path
) -> None:
    async with open_workshop(larger_disk) as workshop:
        workshop.images.add("busybox", busybox_root)
        filler = fill(larger_disk, 0)
        made = [await create(workshop, "first", image="busybox", limits={"disk": "300MiB"})]
        with pytest.raises(OSError) as caught:
            for number in range(100):
                made.append(await create(workshop, f"more-{number}", image="busybox", limits={"disk": "300MiB"}))
        assert isinstance(caught.value, AtollError) and caught.value.code == ErrorCode.NO_SPACE
        assert "free space on that disk" in caught.value.remedy
        assert len(leftovers(larger_disk)) == 2 * len(made)
        assert await run(made[0], "sh", "-c", "echo x >/f; sync /f; cat /f") == b"x\n"
        filler.unlink()
        await workshop.destroy(await create(workshop, "one", image="busybox", limits={"disk": "20MiB"}))
        for live in made:
            await workshop.destroy(live)


@pytest.fixture
def no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what a database has for itself were used up."""
    monkeypatch.setattr(reserve, "LOG_BYTES", 0)
    monkeypatch.setattr(reserve, "TABLE_BYTES", 0)


@pytest.fixture
async def crowded(small_disk: Path, tmp_path: Path, busybox_root: Path) -> AsyncIterator[Workshop]:
    """A workshop with nothing but its database on the small disk."""
    images = ImageCatalog(tmp_path / "images")
    images.add("busybox", busybox_root)
    engine, storage = NativeEngine(tmp_path, tmp_path / "run"), PoolStorage(tmp_path / "pool")
    state = small_disk / "state"
    async with Workshop(state, tmp_path / "run", images=images, engine=engine, storage=storage) as workshop:
        await workshop.destroy(await create(workshop, "one", image="busybox", limits="lite"))
        yield workshop


@pytest.mark.usefixtures("no_reserve")
async def test_a_record_that_finds_no_space_ends_the_sandbox(crowded: Workshop, small_disk: Path) -> None:
    filler = fill(small_disk, 0)
    with pytest.raises(AtollError) as caught:
        await create(crowded, "one", image="busybox", limits="lite")
    assert caught.value.code == ErrorCode.NO_SPACE
    assert not crowded.storage.names() and not kept.stages(small_disk / "state")
    filler.unlink()
    await crowded.destroy(await create(crowded, "one", image="busybox", limits="lite"))


async def test_on_a_full_disk_sandboxes_are_put_on_record_and_taken_off_it(crowded: Workshop, small_disk: Path) -> None:
    filler = fill(small_disk, 0)
    for _ in range(3):
        live = await create(crowded, "one", image="busybox", limits="lite")
        assert kept.stages(small_disk / "state") == {"one": "created"}
        await crowded.destroy(live)
        assert not kept.stages(small_disk / "state") and not crowded.storage.names()
    filler.unlink()


@pytest.mark.usefixtures("no_reserve")
async def test_without_space_for_its_record_a_sandbox_is_ended_and_forgotten_later(
    crowded: Workshop, small_disk: Path
) -> None:
    live = await create(crowded, "one", image="busybox", limits="lite")
    filler = fill(small_disk, 0)
    with pytest.raises(AtollError) as caught:
        await crowded.destroy(live)
    assert caught.value.code == ErrorCode.NO_SPACE
    assert not crowded.exists(ONE) and not crowded.storage.names()
    assert not await crowded.engine.is_running(live)
    filler.unlink()
    await crowded.remove("one")
    assert not kept.stages(small_disk / "state")
    await crowded.destroy(await create(crowded, "one", image="busybox", limits="lite"))


@pytest.mark.usefixtures("no_reserve")
async def test_a_removal_that_found_no_space_is_finished_by_asking_again(crowded: Workshop, small_disk: Path) -> None:
    async with Roster(crowded, crowded.store.timeline) as roster:
        actor = roster.actor("one")
        await actor.ensure(Plan(image="busybox", limits=SIZES["lite"]), Caller("me"))
        filler = fill(small_disk, 0)
        with pytest.raises(AtollError) as caught:
            await actor.destroy(Caller("me"))
        assert caught.value.code == ErrorCode.NO_SPACE
        filler.unlink()
        await actor.destroy(Caller("me"))
        assert not kept.stages(small_disk / "state")
        assert (await actor.events(0))[-1].what == "destroyed"


async def test_a_state_directory_without_space_for_a_pool_says_so(small_disk: Path) -> None:
    filler = fill(small_disk, 0)
    with pytest.raises(AtollError) as caught:
        open_workshop(small_disk)
    assert caught.value.code == ErrorCode.NO_SPACE
    filler.unlink()
    async with open_workshop(small_disk):
        pass


async def test_a_pool_whose_host_disk_is_full_takes_less_and_lives_on(larger_disk: Path, busybox_root: Path) -> None:
    """A sandbox would fill the host's disk through its own."""
    async with open_workshop(larger_disk) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox", limits={"disk": "1500MiB"})
        filler = fill(larger_disk, 0)
        said = await run(live, "sh", "-c", "dd if=/dev/zero of=/f bs=1M count=1490 2>&1; sync; echo x >/g")
        assert b"space" in said or b"uota" in said
        assert await run(live, "sh", "-c", "rm /f; until echo x >/g; do sync; done; cat /g") == b"x\n"
        filler.unlink()
        await workshop.destroy(live)
        await workshop.destroy(await create(workshop, "two", image="busybox", limits={"disk": "20MiB"}))


async def test_a_workshop_that_cannot_open_its_pool_lets_go_of_everything(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/pool.btrfs").write_bytes(b"x" * MIB)
    for _ in range(2):
        with pytest.raises(AtollError) as caught:
            open_workshop(tmp_path)
        assert caught.value.code == ErrorCode.POOL_DAMAGED


async def test_a_workshop_whose_engine_cannot_be_closed_lets_go_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = open_workshop(tmp_path)
    close = workshop.engine.close

    async def close_badly() -> None:
        await close()
        raise OSError("the nursery's channel is gone")

    monkeypatch.setattr(workshop.engine, "close", close_badly)
    with pytest.raises(OSError, match="channel is gone"):
        await workshop.close()
    assert not (tmp_path / "state/disks").is_mount()
    await open_workshop(tmp_path).close()


async def test_the_largest_limits_that_are_accepted_can_be_set(tmp_path: Path, busybox_root: Path) -> None:
    storage = PoolStorage(tmp_path / "state", overcommit=float(2**40))
    limits = Limits(cpus=float(MAX_CPUS), memory=MAX_BYTES, disk=MAX_BYTES, pids=MAX_PIDS)
    async with Workshop(tmp_path / "state", tmp_path / "run", storage=storage) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox", limits=limits)
        assert await run(live, "echo", "x") == b"x\n"
        await workshop.destroy(live)


async def test_a_disk_larger_than_can_be_promised_is_refused(tmp_path: Path, busybox_root: Path) -> None:
    async with open_workshop(tmp_path) as workshop:
        workshop.images.add("busybox", busybox_root)
        with pytest.raises(AtollError) as caught:
            await create(workshop, "one", image="busybox", limits={"disk": MAX_BYTES})
        assert caught.value.code == ErrorCode.DISK_COMMITTED
        assert caught.value.remedy
        assert not leftovers(tmp_path)


def test_a_workshop_without_control_groups_says_what_it_cannot_enforce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "open_cgroups", lambda: None)
    for make in (lambda: NativeEngine(tmp_path / "state", tmp_path / "run"), lambda: open_workshop(tmp_path)):
        with pytest.raises(AtollError) as caught:
            make()
        assert caught.value.code == ErrorCode.LIMITS_NOT_ENFORCEABLE
        assert "cgroup2" in caught.value.remedy
