"""Limits hold, the agent lives, and the neighbour does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.engine.native.engine import NativeEngine
from atoll.protocol.commands import Exec
from atoll.protocol.errors import ErrorCode, LimitReachedError
from atoll.protocol.limits import Limits
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked, native

CAP_SYS_RESOURCE = 24
SMALL = Limits(cpus=0.5, memory="64MiB", pids=32)


@pytest.fixture
async def small(workshop: Workshop) -> AsyncIterator[Box]:
    live = await create(workshop, "small", image="host", limits=SMALL)
    async with linked(live) as link:
        yield Box(live, link, "host")
    await workshop.destroy(live)


async def test_a_memory_hog_is_killed_and_counted(small: Box, workshop: Workshop) -> None:
    output = await small.run("python3", "-c", "x = bytearray(200 * 2**20)")
    assert output.done.exit_code == 137
    usage = await workshop.engine.usage(small.live)
    assert usage.oom_kills >= 1
    assert usage.memory < SMALL.memory


FILL = """
import os, time
try:
    while os.fork():
        pass
    time.sleep(60)
except OSError:
    print("full", flush=True)
    time.sleep(60)
"""


async def test_processes_run_out_with_a_typed_error_and_come_back(small: Box, workshop: Workshop) -> None:
    async with small.link.operation(Exec(argv=["python3", "-c", FILL])) as connection:
        assert (await connection.next_frame()).payload == b"full\n"
        assert (await workshop.engine.usage(small.live)).processes == SMALL.pids
        with pytest.raises(LimitReachedError, match="no room") as caught:
            await small.run("true")
        assert caught.value.code == ErrorCode.PROCESS_LIMIT_REACHED
    while True:  # leaving the block ended them, which takes a moment
        try:
            assert await small.text("echo back") == "back"
            break
        except LimitReachedError:
            await asyncio.sleep(0.01)


async def test_freezing_stops_time_and_thawing_goes_on(host_box: Box, workshop: Workshop) -> None:
    await host_box.text("(i=0; while :; do i=$((i+1)); echo $i >/tmp/i.new; mv /tmp/i.new /tmp/i; sleep 0.01; done) &")
    await host_box.text("until [ -e /tmp/i ]; do sleep 0.01; done")
    for _ in range(2):
        await workshop.engine.freeze(host_box.live)
        await workshop.engine.freeze(host_box.live)
        before = (await workshop.engine.usage(host_box.live)).cpu_seconds
        ping = asyncio.create_task(host_box.link.ping())
        await asyncio.sleep(0.2)
        assert not ping.done()
        assert (await workshop.engine.usage(host_box.live)).cpu_seconds - before < 0.05
        await workshop.engine.thaw(host_box.live)
        await ping
        count = int(await host_box.text("cat /tmp/i"))
        while int(await host_box.text("cat /tmp/i")) == count:
            await asyncio.sleep(0.01)


async def test_a_frozen_sandbox_can_be_destroyed(workshop: Workshop) -> None:
    live = await create(workshop, "ice", image="busybox")
    await workshop.engine.freeze(live)
    await workshop.destroy(live)


async def test_inside_shows_nothing_of_the_hosts_groups(host_box: Box) -> None:
    lines = (await host_box.text("cat /proc/self/cgroup /proc/1/cgroup")).splitlines()
    assert {line.rpartition(":")[2] for line in lines} == {"/", "/commands"}  # of the sandbox's own


async def test_when_the_machine_runs_out_of_memory_its_own_processes_are_not_the_first(
    host_box: Box, workshop: Workshop
) -> None:
    assert isinstance(workshop.engine, NativeEngine) and workshop.engine.nursery_pid
    nursery = workshop.engine.nursery_pid
    zygote = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()[0]
    scores = {
        name: int(Path(f"/proc/{pid}/oom_score_adj").read_text())
        for name, pid in (
            ("self", "self"),
            ("nursery", nursery),
            ("zygote", zygote),
            ("agent", native(host_box.live).process.pid),
        )
    }
    await host_box.text("until [ $(cat /proc/$$/oom_score_adj) -ge 600 ]; do :; done")
    assert scores["self"] == scores["nursery"] == scores["zygote"] < scores["agent"] < 600
    lowered = await host_box.run(
        "sh", "-c", f"echo {scores['agent']} >/proc/self/oom_score_adj && cat /proc/self/oom_score_adj"
    )
    assert int(lowered.stdout) == scores["agent"]
    lowest = await host_box.run("sh", "-c", f"echo {scores['agent'] - 1} >/proc/self/oom_score_adj")
    # Root gives the agent a score that is the least for all inside, unless this machine's root is without the right to.
    assert (b"Permission denied" in lowest.stderr) is has_capability(CAP_SYS_RESOURCE)


def has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective >> number & 1)
