"""Limits of a sandbox that runs, changed: what they allow from then on, what is refused, and what is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.engine.native.engine import NativeEngine
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import MIB, Limits
from atoll.storage.pool import PoolStorage
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked
from tests.system.serving import RunningServer

SMALL = Limits(cpus=0.5, memory="64MiB", pids=32, disk="64MiB")
HOLD = "import time; held = bytearray(b'x' * ({} * 2**20)); print('held', flush=True); time.sleep(60)"
FORTY = """
import os, time
if all(os.fork() for _ in range(40)):
    print("forty", flush=True)
time.sleep(60)
"""
ONE, TWO = SandboxId("one"), SandboxId("two")
PATH = "/v1/sandboxes/grown"


@pytest.fixture
async def small(workshop: Workshop) -> AsyncIterator[Box]:
    live = await create(workshop, "small", image="host", limits=SMALL)
    async with linked(live) as link:
        yield Box(live, link, "host")
    await workshop.remove("small")


async def change(workshop: Workshop, box: Box, **changes: Any) -> Limits:
    record = workshop.record(box.live.id)
    limits = Limits(
        **{name: changes.get(name, getattr(record.limits, name)) for name in ("cpus", "memory", "disk", "pids")}
    )
    await workshop.set_limits(record, limits, box.live)
    return limits


def cpu_quota(workshop: Workshop, box: Box) -> str:
    assert isinstance(workshop.engine, NativeEngine)
    group = workshop.engine._known(box.live).group
    return Path(f"/sys/fs/cgroup/cpu/atoll/{group}/cpu.cfs_quota_us").read_text().strip()


async def test_with_more_memory_it_may_hold_more_and_with_less_not_any_more(small: Box, workshop: Workshop) -> None:
    async def exit_code() -> int:
        return (await small.run("python3", "-c", "held = bytearray(b'x' * (100 * 2**20))")).done.exit_code

    assert await exit_code() == 137
    await change(workshop, small, memory="256MiB")
    assert await exit_code() == 0
    await change(workshop, small, memory="64MiB")
    assert await exit_code() == 137


async def test_a_limit_of_memory_below_what_is_in_use_is_refused_and_nobody_is_killed(
    small: Box, workshop: Workshop
) -> None:
    has = await change(workshop, small, memory="256MiB")
    async with small.link.operation(Exec(argv=["python3", "-c", HOLD.format(100)])) as held:
        assert (await held.next_frame()).payload == b"held\n"
        with pytest.raises(AtollError, match="of memory, and cannot") as caught:
            await change(workshop, small, memory="64MiB", pids=16, disk="32MiB", cpus=1)
        assert caught.value.code is ErrorCode.LIMIT_IN_USE
        assert caught.value.context["asked"] == 64 * MIB
        assert workshop.record(small.live.id).limits == has
        assert (await small.run("python3", "-c", "held = bytearray(b'x' * (50 * 2**20))")).done.exit_code == 0
        assert (await workshop.engine.usage(small.live)).oom_kills == 0
        assert cpu_quota(workshop, small) == "50000"


async def test_what_is_only_cached_is_taken_back_for_a_lower_limit(small: Box, workshop: Workshop) -> None:
    await change(workshop, small, memory="256MiB", disk="256MiB")
    await small.text(
        "dd if=/dev/zero of=/workspace/cached bs=1M count=150 2>/dev/null; sync; cat /workspace/cached >/dev/null"
    )
    assert (await workshop.engine.usage(small.live)).memory > 100 * MIB
    await change(workshop, small, memory="64MiB")
    assert (await workshop.engine.usage(small.live)).memory < 130 * MIB


async def test_processes_beyond_a_lower_limit_live_on_and_no_further_ones_begin(small: Box, workshop: Workshop) -> None:
    await change(workshop, small, pids=64)
    async with small.link.operation(Exec(argv=["python3", "-c", FORTY])) as running:
        assert (await running.next_frame()).payload == b"forty\n"
        await change(workshop, small, pids=16)
        assert (await workshop.engine.usage(small.live)).processes > 40
        with pytest.raises(AtollError) as caught:
            await small.run("true")
        assert caught.value.code is ErrorCode.PROCESS_LIMIT_REACHED


async def test_a_share_of_the_cpus_is_another_from_now_on(small: Box, workshop: Workshop) -> None:
    await change(workshop, small, cpus="1/4")
    assert cpu_quota(workshop, small) == "25000"


async def test_meminfo_inside_follows_the_limit(small: Box, workshop: Workshop) -> None:
    async def total() -> int:
        return int((await small.text("grep MemTotal /proc/meminfo")).split()[1]) * 1024

    for memory in ("128MiB", "48MiB"):
        limits = await change(workshop, small, memory=memory)
        async with asyncio.timeout(60):
            while await total() != limits.memory:
                await asyncio.sleep(0.05)


async def test_a_disk_takes_more_or_less_and_not_less_than_is_on_it(small: Box, workshop: Workshop) -> None:
    fill = "dd if=/dev/zero of=/workspace/f bs=1M count={} conv=fsync 2>/dev/null"
    assert (await small.sh(fill.format(100))).done.exit_code != 0
    await change(workshop, small, disk="256MiB")
    assert (await small.sh(fill.format(100))).done.exit_code == 0
    with pytest.raises(AtollError, match="of disk, and cannot") as caught:
        await change(workshop, small, disk="64MiB", memory="128MiB")
    assert caught.value.code is ErrorCode.LIMIT_IN_USE
    assert workshop.record(small.live.id).limits.memory == SMALL.memory
    await small.text("rm /workspace/f; sync /workspace")
    async with asyncio.timeout(60):
        while workshop.storage.used(small.live.id) > 32 * MIB:
            await asyncio.sleep(0.05)
    await change(workshop, small, disk="64MiB")
    assert (await small.sh(fill.format(100))).done.exit_code != 0


async def test_one_that_could_not_be_put_on_record_has_the_limits_it_had(
    small: Box, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="no room"):
        broken.setattr(workshop._records, "replace", fail)
        await change(workshop, small, memory="256MiB", disk="256MiB", cpus=1)
    assert cpu_quota(workshop, small) == "50000"
    assert (await small.run("python3", "-c", "held = bytearray(b'x' * (100 * 2**20))")).done.exit_code == 137
    assert (await small.sh("dd if=/dev/zero of=/workspace/f bs=1M count=100")).done.exit_code != 0


# The pool.


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolStorage]:
    storage = PoolStorage(tmp_path / "state", size=512 * MIB, overcommit=1)
    yield storage
    storage.close()


def test_a_disk_grows_only_as_far_as_may_be_promised(pool: PoolStorage) -> None:
    pool.create(ONE, 200 * MIB)
    pool.create(TWO, 200 * MIB)
    with pytest.raises(AtollError) as caught:
        pool.resize(ONE, 400 * MIB)
    assert caught.value.code is ErrorCode.DISK_COMMITTED
    pool.resize(TWO, 50 * MIB)
    pool.resize(ONE, 400 * MIB)
    with pytest.raises(AtollError):
        pool.resize(TWO, 200 * MIB)
    pool.resize(ONE, 100 * MIB)
    pool.resize(TWO, 400 * MIB)


def test_the_size_of_a_disk_is_the_last_it_was_given_also_for_the_next_to_open_the_pool(tmp_path: Path) -> None:
    first = PoolStorage(tmp_path, size=512 * MIB, overcommit=1)
    first.create(ONE, 100 * MIB)
    first.resize(ONE, 400 * MIB)
    first.close()
    second = PoolStorage(tmp_path, overcommit=1)
    with pytest.raises(AtollError):
        second.create(TWO, 200 * MIB)
    second.resize(ONE, 100 * MIB)
    second.create(TWO, 200 * MIB)
    second.close()


# Over HTTP.


async def test_limits_are_kept_when_it_stops_and_starts_and_the_server_does(own_server: RunningServer) -> None:
    server = own_server
    await server.ask("PUT", PATH, {"limits": {"memory": "128MiB", "pids": 64}, "env": {"ATOLL_PIDS": "mine"}})
    changed = await server.ask("PATCH", f"{PATH}/limits", {"memory": "256MiB", "pids": 128})
    assert (changed.status, changed.json()["limits"]["memory"]) == (200, 256 * MIB)
    box = server.sandbox("grown")
    assert (await box.exec("echo $ATOLL_MEMORY $ATOLL_PIDS $ATOLL_CPUS")).stdout == f"{256 * MIB} mine 2\n"
    await box.sleep(stop=True)
    await server.kill()
    await server.start()
    assert (await server.ask("GET", PATH)).json()["limits"]["pids"] == 128
    assert (await box.exec("grep MemTotal /proc/meminfo")).stdout.split()[1] == str(256 * 1024)
    said = [event for event in await box.events() if event.what == "limits_changed"]
    assert [event.cause for event in said] == [f"memory={256 * MIB} and pids=128 was asked for"]


async def test_those_of_one_that_is_stopped_hold_from_its_next_start(server: RunningServer) -> None:
    await server.ask("PUT", PATH, {"limits": "basic"})
    await server.ask("POST", f"{PATH}/sleep", {"stop": True})
    answer = await server.ask("PATCH", f"{PATH}/limits", {"size": "lite", "cpus": 1})
    assert (answer.json()["state"], answer.json()["limits"]["cpus"]) == ("stopped", 1.0)
    shown = await server.sandbox("grown").exec("grep MemTotal /proc/meminfo")
    assert shown.stdout.split()[1] == str(256 * 1024)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"memory": "1B"}, "INVALID_LIMITS"),
        ({"size": "huge"}, "INVALID_LIMITS"),
        ({"gpus": 1}, "INVALID_REQUEST"),
        ({"memory": "4096000TiB"}, "INVALID_LIMITS"),
        ("lite", "INVALID_REQUEST"),
    ],
    ids=json.dumps,
)
async def test_limits_that_make_no_sense_are_refused_and_make_no_sandbox(
    server: RunningServer, changes: object, code: str
) -> None:
    refused = await server.ask("PATCH", f"{PATH}/limits", changes)
    assert (refused.status, refused.json()["code"]) == (400, code)
    assert (await server.ask("GET", PATH)).status == 404
