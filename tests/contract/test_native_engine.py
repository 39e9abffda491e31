"""The native engine, in what it promises besides what every engine does: its processes killed, ids, quotas, layers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from atoll.engine.base import LiveSandbox
from atoll.engine.native import nursery_process, uid_ranges
from atoll.engine.native.cgroups import parse_mounts
from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.group_files import PARENT
from atoll.engine.native.group_limits import CPU_PERIOD_US
from atoll.engine.native.handles import ProcessIdentity
from atoll.images.catalog import ImageCatalog
from atoll.images.host import HostImage
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.contract import dying_nursery
from tests.contract.dying_nursery import Trap
from tests.making import create
from tests.native import agent_socket, native, run


@pytest.fixture
async def own(tmp_path: Path, busybox_root: Path) -> AsyncIterator[Workshop]:
    """A workshop of the test's own, whose nursery it may kill."""
    async with Workshop(tmp_path / "state", tmp_path / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
        yield workshop


@pytest.fixture
async def crashing(tmp_path: Path, busybox_root: Path) -> AsyncIterator[Workshop]:
    """The same, followed by the next start, which cleans up what a killed nursery left."""
    async with Workshop(tmp_path / "state", tmp_path / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
        yield workshop
    async with Workshop(tmp_path / "state", tmp_path / "run") as workshop:
        await workshop.destroy(await create(workshop, "next", image="busybox"))


def children_of(pid: int) -> set[int]:
    """The embryos and sandboxes of a nursery."""
    children = {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return {child for child in children if name_of(child) != "atoll-zygote"}


def name_of(pid: int) -> str:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def zygote_of(nursery: int) -> int:
    children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()
    return next(pid for pid in map(int, children) if name_of(pid) == "atoll-zygote")


def nursery_of(workshop: Workshop) -> int:
    assert isinstance(workshop.engine, NativeEngine)
    assert workshop.engine.nursery_pid
    return workshop.engine.nursery_pid


async def test_a_stopped_sandbox_leaves_neither_a_process_nor_a_socket(own: Workshop) -> None:
    live = await create(own, "one", image="busybox")
    assert Path(f"/proc/{native(live).process.pid}").exists()
    await own.engine.stop(live)
    assert not agent_socket(live).exists()
    assert is_zombie(native(live).process.pid)


async def test_forty_at_once_have_user_ids_and_host_names_of_their_own(own: Workshop) -> None:
    lives = await asyncio.gather(*(create(own, f"many-{number}", image="busybox") for number in range(40)))
    answers = await asyncio.gather(*(run(live, "hostname") for live in lives))
    assert answers == [f"many-{number}\n".encode() for number in range(40)]
    assert len({native(live).uid_base for live in lives}) == 40
    await asyncio.gather(*(own.destroy(live) for live in lives))


async def test_sandboxes_outlive_the_nursery_and_the_next_start_makes_a_new_one(crashing: Workshop) -> None:
    first = await create(crashing, "first", image="busybox")
    nursery = nursery_of(crashing)
    os.kill(nursery, signal.SIGKILL)
    assert await run(first, "echo", "alive") == b"alive\n"
    second = await retry(lambda: create(crashing, "second", image="busybox"))
    assert await run(second, "echo", "new") == b"new\n"
    assert nursery_of(crashing) != nursery
    assert native(first).uid_base != native(second).uid_base
    await asyncio.gather(crashing.destroy(first), crashing.destroy(second))


async def retry(create: Callable[[], Awaitable[LiveSandbox]]) -> LiveSandbox:
    """A start that met the dying nursery is a typed error, and the next one works."""
    try:
        return await create()
    except AtollError as error:
        assert error.code == ErrorCode.NURSERY_FAILED
        return await create()


async def test_embryos_end_with_their_nursery(crashing: Workshop) -> None:
    live = await create(crashing, "one", image="busybox")
    nursery = nursery_of(crashing)
    while len(embryos := children_of(nursery) - {native(live).process.pid}) < 2:
        await asyncio.sleep(0.01)
    os.kill(nursery, signal.SIGKILL)
    while any(Path(f"/proc/{pid}/comm").exists() and not is_zombie(pid) for pid in embryos):
        await asyncio.sleep(0.01)
    assert await run(live, "echo", "alive") == b"alive\n"
    await crashing.destroy(live)


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_at_rest_nothing_of_the_engine_sees_the_disks_and_who_starts_waits(own: Workshop, tmp_path: Path) -> None:
    one = await create(own, "one", image="busybox")
    nursery = nursery_of(own)
    async with own.engine.at_rest():
        assert not Path(f"/proc/{nursery}").exists()
        starting = asyncio.create_task(create(own, "two", image="busybox"))
        assert await run(one, "echo", "hello") == b"hello\n"
        assert not starting.done() and list((tmp_path / "run/agents").iterdir()) == [agent_socket(one)]
    two = await starting
    assert nursery_of(own) != nursery
    for live in (one, two):
        await own.destroy(live)


async def test_an_embryo_that_was_killed_costs_nobody_a_sandbox(own: Workshop) -> None:
    await own.destroy(await create(own, "zero", image="busybox"))
    nursery = nursery_of(own)
    while len(embryos := [pid for pid in children_of(nursery) if not is_zombie(pid)]) < 2:
        await asyncio.sleep(0.01)
    for pid in embryos:
        os.kill(pid, signal.SIGKILL)
    lives = await asyncio.gather(*(create(own, f"after-{number}", image="busybox") for number in range(4)))
    assert [await run(live, "echo", "x") for live in lives] == [b"x\n"] * 4
    await asyncio.gather(*(own.destroy(live) for live in lives))


async def test_without_embryos_sandboxes_are_made_on_demand(tmp_path: Path, busybox_root: Path) -> None:
    engine = NativeEngine(tmp_path / "state", tmp_path / "run", embryos=0)
    async with Workshop(tmp_path / "state", tmp_path / "run", engine=engine) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox")
        assert await run(live, "hostname") == b"one\n"
        await workshop.destroy(live)


async def test_a_cancelled_start_leaves_no_sandbox(own: Workshop) -> None:
    await own.destroy(await create(own, "zero", image="busybox"))
    nursery = nursery_of(own)
    task = asyncio.create_task(create(own, "never", image="busybox"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    live = await create(own, "never", image="busybox")
    while len(children_of(nursery)) > 3:  # this one and two embryos
        await asyncio.sleep(0.01)
    await own.destroy(live)


async def test_starts_cancelled_at_any_moment_leave_nothing(own: Workshop, tmp_path: Path) -> None:
    await own.destroy(await create(own, "zero", image="busybox"))
    nursery = nursery_of(own)
    for number in range(40):
        task = asyncio.create_task(create(own, "never", image="busybox"))
        await asyncio.sleep(number * 0.0004)
        if task.done():
            await own.destroy(task.result())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if task.done() and not task.cancelled() and not task.exception():
            await own.destroy(task.result())
        assert not kept.leftovers(tmp_path)
    while len(children_of(nursery)) > 2:  # embryos
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("part", ["nursery", "zygote"])
async def test_a_nursery_that_is_stopped_is_ended_and_a_new_one_makes_what_was_asked_for(
    own: Workshop, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    first = await create(own, "first", image="busybox")
    nursery = nursery_of(own)
    os.kill(nursery if part == "nursery" else zygote_of(nursery), signal.SIGSTOP)
    lives = await asyncio.gather(*(create(own, f"one-{number}", image="busybox") for number in range(4)))
    assert [await run(live, "echo", "x") for live in (first, *lives)] == [b"x\n"] * 5
    assert nursery_of(own) != nursery
    assert [record for record in caplog.records if "was stopped" in record.getMessage()]
    await asyncio.gather(*(own.destroy(live) for live in (first, *lives)))


async def test_a_cancelled_create_does_not_wait_for_a_stopped_nursery(own: Workshop) -> None:
    await own.destroy(await create(own, "zero", image="busybox"))
    os.kill(nursery_of(own), signal.SIGSTOP)
    task = asyncio.create_task(create(own, "one", image="busybox"))
    await asyncio.sleep(0.1)  # by now it waits for its answer
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await own.destroy(await create(own, "one", image="busybox"))


async def test_a_nursery_that_hangs_is_given_up(
    tmp_path: Path, busybox_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = Trap(tmp_path / "trap")
    program = (dying_nursery.__file__, str(tmp_path / "trap"))
    engine = NativeEngine(tmp_path / "state", tmp_path / "run", embryos=0, nursery=program)
    async with Workshop(tmp_path / "state", tmp_path / "run", engine=engine) as workshop:
        workshop.images.add("busybox", busybox_root)
        await workshop.destroy(await create(workshop, "zero", image="busybox"))
        trap.set("announce")
        monkeypatch.setattr(nursery_process, "ANSWER_SECONDS", 0.2)  # a constant of ours; a minute would prove no more
        with pytest.raises(AtollError) as caught:
            await create(workshop, "one", image="busybox")
        assert caught.value.code == ErrorCode.NURSERY_FAILED
        monkeypatch.undo()
        trap.open()
        await workshop.destroy(await create(workshop, "one", image="busybox"))
    trap.close()


@pytest.fixture
def parents_of_groups() -> Iterator[list[Path]]:
    """Files that hold the cpu quota of all groups of ours together, put back afterwards."""
    found = parse_mounts(Path("/proc/mounts").read_text())
    files = [Path(found.v1["cpu"], PARENT, "cpu.cfs_quota_us")] if "cpu" in found.v1 else []
    files += [Path(found.v2, PARENT, "cpu.max")] if found.v2 else []
    before = [(file, file.read_text()) for file in files if file.exists()]
    yield [file for file, _ in before]
    for file, text in before:
        file.write_text(text)


async def test_a_cpu_quota_that_the_kernel_refuses_fails_one_creation_and_no_other(
    own: Workshop, parents_of_groups: list[Path]
) -> None:
    """Version 1 refuses a group more than its parent has; 32 cpus are more than anybody else here wants."""
    await own.destroy(await create(own, "zero", image="busybox"))
    nursery = nursery_of(own)
    for file in parents_of_groups:
        file.write_text(str(32 * CPU_PERIOD_US))
    results = await asyncio.gather(
        create(own, "one", image="busybox", limits={"cpus": 33}),
        create(own, "two", image="busybox", limits={"cpus": 31}),
        return_exceptions=True,
    )
    refused, made = results
    assert isinstance(made, LiveSandbox)
    if isinstance(refused, LiveSandbox):  # version 2 takes it, and holds to what the parent has
        await own.destroy(refused)
    else:
        assert isinstance(refused, AtollError) and refused.code == ErrorCode.LIMITS_NOT_ENFORCEABLE
        assert refused.remedy
    assert nursery_of(own) == nursery
    await own.destroy(made)


async def test_a_sandbox_whose_record_cannot_be_written_is_ended(own: Workshop, tmp_path: Path) -> None:
    await own.destroy(await create(own, "zero", image="busybox"))
    nursery = nursery_of(own)
    kept.database_of(own).execute("PRAGMA query_only=1")
    with pytest.raises(AtollError) as caught:
        await create(own, "one", image="busybox")
    assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE
    kept.database_of(own).execute("PRAGMA query_only=0")
    assert not kept.leftovers(tmp_path)
    while len(children_of(nursery)) > 2:
        await asyncio.sleep(0.01)


async def test_a_private_umask_does_not_matter(tmp_path: Path, busybox_root: Path) -> None:
    before = os.umask(0o077)
    try:
        async with Workshop(tmp_path / "state", tmp_path / "run") as workshop:
            workshop.images.add("busybox", busybox_root)
            live = await create(workshop, "one", image="busybox")
            assert await run(live, "stat", "-c", "%a", "/", "/etc", "/etc/hosts", "/tmp") == (b"755\n755\n644\n1777\n")
            await workshop.destroy(live)
    finally:
        os.umask(before)


async def test_a_process_of_another_boot_and_one_that_is_none_are_not_adopted(own: Workshop) -> None:
    live = await create(own, "one", image="busybox")
    handle = native(live)
    for process in (
        replace(handle.process, boot_id="another"),
        ProcessIdentity(pid=2**22 - 1, start_time=1, boot_id=handle.process.boot_id),
    ):
        other = replace(live, handle=replace(handle, process=process).encode())
        assert not await own.engine.is_running(other)
        assert await own.engine.adopt(other) is None
    await own.destroy(live)


async def test_uid_ranges_are_unique_on_the_machine_and_given_back_by_death(tmp_path: Path) -> None:
    path = str(tmp_path / "locks/uid-ranges")
    one, other = uid_ranges.UidRanges(path), uid_ranges.UidRanges(path)
    taken = [ranges.take() for ranges in (one, other) for _ in range(50)]
    assert len({base for base, _ in taken}) == 100
    holder = subprocess.Popen(["sleep", "60"], pass_fds=[taken[0][1]])
    for _, fd in taken:
        os.close(fd)
    everything = [one.take() for _ in range(uid_ranges.RANGES - 1)]
    with pytest.raises(AtollError) as caught:
        one.take()
    assert caught.value.code == ErrorCode.UID_RANGES_EXHAUSTED
    holder.kill()
    holder.wait()
    base, fd = one.take()
    assert base == taken[0][0]
    for held in [*(fd for _, fd in everything), fd]:
        os.close(held)
    one.close()
    other.close()


# What is missing: typed, with a remedy, and nothing half-made.


async def test_an_image_that_cannot_be_idmapped_is_named(tmp_path: Path, busybox_root: Path) -> None:
    """An overlay is such a file system: what /usr is when Atoll itself runs in a container."""
    overlay = tmp_path / "usr"
    for name in ("usr", "upper", "work"):
        (tmp_path / name).mkdir()
    options = f"lowerdir=/usr/share/doc,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, overlay], check=True)
    try:
        engine = NativeEngine(tmp_path / "state", tmp_path / "run", exposed=(overlay,))
        images = ImageCatalog(tmp_path / "state/images", HostImage(tmp_path / "state/images", usr=overlay))
        async with Workshop(tmp_path / "state", tmp_path / "run", engine=engine, images=images) as workshop:
            with pytest.raises(AtollError) as caught:
                await create(workshop, "one")
            assert caught.value.code == ErrorCode.LAYER_NOT_IDMAPPABLE
            assert "ext4" in caught.value.remedy
            assert not kept.leftovers(tmp_path)
            images.add("busybox", busybox_root)
            await workshop.destroy(await create(workshop, "one", image="busybox"))
    finally:
        subprocess.run(["umount", overlay], check=True)


def test_without_root_it_says_so(tmp_path: Path) -> None:
    code = """
import os, sys
from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.handles import ProcessIdentity
from atoll.protocol.errors import AtollError
from pathlib import Path
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    NativeEngine(Path(sys.argv[1]), Path(sys.argv[1]))
except PermissionError as error:
    print(error.code, "|", error.remedy)
"""
    shown = subprocess.run([sys.executable, "-c", code, tmp_path / "s"], capture_output=True, text=True)
    assert shown.stdout.startswith("NOT_ROOT | "), shown.stderr
    assert "sudo" in shown.stdout
    assert not (tmp_path / "s").exists()


async def test_a_nursery_that_cannot_open_says_why(tmp_path: Path) -> None:
    engine = NativeEngine(tmp_path / "state", tmp_path / "run", exposed=(Path("/no/such/usr"),))
    async with Workshop(tmp_path / "state", tmp_path / "run", engine=engine) as workshop:
        with pytest.raises(AtollError) as caught:
            await create(workshop, "one")
        assert caught.value.code == ErrorCode.NURSERY_FAILED
        assert "No such file" in caught.value.message
        assert not kept.leftovers(tmp_path)
