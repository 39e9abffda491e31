"""What the native engine promises besides what every engine does: its processes killed, ids, quotas, layers."""

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
from atoll.engine.native import engine, nursery_process, uid_ranges
from atoll.engine.native.cgroups import parse_mounts
from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.group_files import PARENT
from atoll.engine.native.group_limits import CPU_PERIOD_US
from atoll.engine.native.handles import ProcessIdentity
from atoll.images.catalog import ImageCatalog
from atoll.images.host import HostImage
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.supervisor.reconcile import Inherited
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.contract import dying_nursery
from tests.contract.dying_nursery import Trap
from tests.making import create
from tests.native import agent_socket, linked, native


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


async def run(live: LiveSandbox, *argv: str) -> bytes:
    async with linked(live) as link:
        return (await link.run(Exec(argv=list(argv)))).stdout


async def test_a_started_sandbox_answers_and_a_stopped_one_is_gone(own: Workshop) -> None:
    live = await create(own, "one", image="busybox")
    assert await run(live, "echo", "hello") == b"hello\n"
    assert Path(f"/proc/{native(live).process.pid}").exists()
    await own.engine.stop(live)
    await own.engine.stop(live)
    assert not agent_socket(live).exists()
    assert is_zombie(native(live).process.pid)


async def test_stopping_ends_everything_that_ran_inside(own: Workshop) -> None:
    live = await create(own, "one", image="busybox")
    await run(live, "sh", "-c", "setsid sleep 5555 & sleep 5555 & :")
    namespace = os.readlink(f"/proc/{native(live).process.pid}/ns/pid")
    assert len(processes_in(namespace)) == 3
    await own.destroy(live)
    while processes_in(namespace):
        await asyncio.sleep(0.01)


def processes_in(namespace: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    found.append(name)
            except OSError:
                continue
    return found


async def test_wait_returns_when_somebody_else_kills_it(own: Workshop) -> None:
    live = await create(own, "one", image="busybox")
    waiting = [asyncio.create_task(own.engine.wait(live)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    os.kill(native(live).process.pid, signal.SIGKILL)
    await asyncio.gather(*waiting)
    await own.destroy(live)


async def test_many_at_once(own: Workshop) -> None:
    lives = await asyncio.gather(*(create(own, f"many-{number}", image="busybox") for number in range(40)))
    answers = await asyncio.gather(*(run(live, "hostname") for live in lives))
    assert answers == [f"many-{number}\n".encode() for number in range(40)]
    assert len({native(live).uid_base for live in lives}) == 40
    await asyncio.gather(*(own.destroy(live) for live in lives))


async def test_destroying_leaves_no_file_behind(own: Workshop, tmp_path: Path) -> None:
    live = await create(own, "one", image="busybox")
    await run(live, "sh", "-c", "mkdir -p /a/b; echo x >/a/b/c; ln -s /etc/passwd /a/link; chmod 000 /a/b")
    await own.destroy(live)
    await own.destroy(live)
    assert not leftovers(tmp_path)
    assert Path("/etc/passwd").exists()
    live = await create(own, "one", image="busybox")
    assert await run(live, "ls", "/") and not await run(live, "ls", "/workspace")
    await own.destroy(live)


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
        assert not leftovers(tmp_path)
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
    assert not leftovers(tmp_path)
    while len(children_of(nursery)) > 2:
        await asyncio.sleep(0.01)


async def test_destroying_again_does_not_touch_the_next_of_that_name(own: Workshop) -> None:
    first = await create(own, "same", image="busybox")
    await own.destroy(first)
    second = await create(own, "same", image="busybox")
    await own.destroy(first)
    assert await run(second, "sh", "-c", "echo x >/f; cat /f") == b"x\n"
    assert own.record(second.id).generation == second.generation
    await own.destroy(second)


@pytest.mark.parametrize("stage", ["making", "created", "removing", "not a stage"])
async def test_a_damaged_record_is_named(tmp_path: Path, stage: str) -> None:
    async with Workshop(tmp_path / "state", tmp_path / "run"):
        pass
    kept.put(tmp_path / "state", "odd", stage, b"{}")
    async with Workshop(tmp_path / "state", tmp_path / "run") as own:
        assert own.inherited == Inherited(damaged=(SandboxId("odd"),))
        assert own.records() == []
        with pytest.raises(AtollError) as caught:
            await create(own, "odd", image="busybox")
        assert caught.value.code == ErrorCode.SANDBOX_EXISTS
        if stage not in ("making", "removing"):
            with pytest.raises(AtollError) as caught:
                own.record(SandboxId("odd"))
            assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE
            assert "'odd'" in caught.value.message and "DELETE FROM" in caught.value.remedy
    kept.remove(tmp_path / "state", "odd")


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


MAKER = """
import asyncio, sys
from pathlib import Path
from atoll.supervisor.workshop import Workshop
from tests.making import create
async def never_on_record(record):
    print("made", flush=True)
    sys.stdin.read()
async def main():
    workshop = Workshop(Path(sys.argv[1]) / "state", Path(sys.argv[1]) / "run")
    workshop.images.add("busybox", Path(sys.argv[3]))
    if sys.argv[2] == "unrecorded":
        workshop._records.begin = never_on_record
    await create(workshop, "left", image="busybox")
    print("made", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


async def left_behind(tmp_path: Path, how: str, busybox_root: Path) -> None:
    """A sandbox `left` made by a process that was then killed."""
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, tmp_path, how, busybox_root],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdout and maker.stdin
    assert maker.stdout.readline() == "made\n"
    maker.kill()
    maker.communicate()


async def test_a_sandbox_whose_maker_was_killed_is_adopted_with_its_state(tmp_path: Path, busybox_root: Path) -> None:
    await left_behind(tmp_path, "recorded", busybox_root)
    async with Workshop(tmp_path / "state", tmp_path / "run") as own:
        assert own.inherited == Inherited(running=(SandboxId("left"),))
        live = await own.adopt("left")
        assert await run(live, "sh", "-c", "echo kept >/f; hostname") == b"left\n"
        again = await own.adopt("left")
        assert await run(again, "cat", "/f") == b"kept\n"
        assert (await own.engine.usage(again)).processes >= 1
        await own.engine.stop(live)
        await own.engine.wait(again)
        with pytest.raises(AtollError) as caught:
            await own.adopt("left")
        assert caught.value.code == ErrorCode.SANDBOX_NOT_RUNNING
        await own.destroy(again)
        with pytest.raises(LookupError):
            await own.adopt("left")
        assert not leftovers(tmp_path)


async def test_a_sandbox_that_was_not_on_record_ends_with_its_maker(
    tmp_path: Path, busybox_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SETTLE_SECONDS", 60.0)
    await left_behind(tmp_path, "unrecorded", busybox_root)
    async with Workshop(tmp_path / "state", tmp_path / "run") as own:
        assert own.inherited == Inherited(removed=(SandboxId("left"),))
        assert not list((tmp_path / "run/agents").iterdir())
        with pytest.raises(LookupError):
            await own.adopt("left")
        await own.remove("left")
        await own.destroy(await create(own, "left", image="busybox"))


async def test_a_reused_pid_is_not_adopted(own: Workshop) -> None:
    live = await create(own, "one", image="busybox")
    handle = native(live)
    for process in (
        replace(handle.process, pid=os.getpid()),
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


# Bad input: typed, with a remedy, and nothing half-made.


def leftovers(directory: Path) -> list[str]:
    """Disks and records, by id."""
    return [*os.listdir(directory / "state/disks"), *kept.stages(directory / "state")]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"sandbox_id": "No Good"}, ErrorCode.INVALID_SANDBOX_ID),
        ({"image": "nowhere"}, ErrorCode.IMAGE_NOT_FOUND),
        ({"image": "../../etc"}, ErrorCode.INVALID_IMAGE_NAME),
        ({"limits": "gigantic"}, ErrorCode.INVALID_LIMITS),
        ({"limits": {"memory": "1KB"}}, ErrorCode.INVALID_LIMITS),
        ({"env": {"BIG": "x" * 300_000}}, ErrorCode.INVALID_ENVIRONMENT),
        ({"env": {"A=B": "x"}}, ErrorCode.INVALID_ENVIRONMENT),
        ({"env": {"A": "\0"}}, ErrorCode.INVALID_ENVIRONMENT),
        ({"env": {"A": 1}}, ErrorCode.INVALID_ENVIRONMENT),
        ({"env": {"A": "\udc80"}}, ErrorCode.INVALID_ENVIRONMENT),
    ],
)
async def test_bad_input_is_refused_before_anything_is_made(
    own: Workshop, tmp_path: Path, arguments: dict[str, object], code: ErrorCode
) -> None:
    with pytest.raises(AtollError) as caught:
        await create(own, **({"sandbox_id": "fine", "image": "busybox"} | arguments))  # type: ignore[arg-type]
    assert caught.value.code == code
    assert caught.value.remedy
    assert not leftovers(tmp_path)


async def test_an_unknown_image_lists_the_known(own: Workshop) -> None:
    with pytest.raises(LookupError, match="host, busybox"):
        await create(own, "x", image="nowhere")


async def test_an_id_that_is_taken_is_refused_and_the_first_is_not_harmed(own: Workshop) -> None:
    live = await create(own, "one", image="busybox")
    with pytest.raises(FileExistsError):
        await create(own, "one", image="busybox")
    assert await run(live, "echo", "x") == b"x\n"
    await own.destroy(live)


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
            assert not leftovers(tmp_path)
            images.add("busybox", busybox_root)
            await workshop.destroy(await create(workshop, "one", image="busybox"))
    finally:
        subprocess.run(["umount", overlay], check=True)


async def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AtollError) as caught:
        Workshop(tmp_path / "file/state", tmp_path / "run")
    assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE


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
        assert not leftovers(tmp_path)
