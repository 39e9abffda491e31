"""What /proc and /sys show inside: what programs need, of the sandbox itself, and in step with what goes on there."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from atoll.agent.figures import SECONDS_AHEAD
from atoll.engine.native.clocks import BOOT_SECONDS
from atoll.protocol.commands import Exec
from atoll.protocol.limits import Limits
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.making import create
from tests.native import linked, native

MIB = 2**20
YOUNG = 600  # seconds; longer than any of these tests takes on the slowest machine

NODE = """
const os = require("os");
console.log(JSON.stringify([os.totalmem(), os.freemem(), os.uptime(), os.cpus().length]));
"""

# Each program, and what is to be found in what it prints.
PROGRAMS = {
    "free -b": r"Mem: +2147483648 +\d+ +\d{10}.*\nSwap: +0 +0 +0",
    "uptime": r"up [01] min, .*load average: \d\.\d\d, \d\.\d\d, \d\.\d\d",
    "w": r"up [01] min",
    "top -b -n 1": r"(?s)%Cpu.* id.*MiB Mem : +2048\.0 total.*\n +1 root .*atoll-a",
    "vmstat": r"(?s)swpd +free.*\n +\d+ +\d+ +0 +\d{7}",
    "ps -eo pid,etime,args": r" +1 +00:\d\d atoll-agent\n",
    "nproc": rf"^{os.cpu_count()}\n",
    "lscpu": rf"(?s)CPU\(s\): +{os.cpu_count()}\n.*Model name.*Vulnerability",
    "lsblk": r"^$",
    "python3 -c 'import os; print(os.cpu_count())'": rf"^{os.cpu_count()}\n",
    "getconf _NPROCESSORS_CONF": r"^\d+\n",
    "cat /sys/kernel/mm/transparent_hugepage/enabled": r"\[\w+\]",
    "cat /sys/class/net/lo/mtu": r"^65536\n",
    "cat /proc/sys/fs/inotify/max_user_watches": r"^\d+\n",
    "java -version 2>&1": r"Runtime Environment",
}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_finds_what_it_looks_for(program: str, host_box: Box) -> None:
    output = await host_box.sh(program)
    assert output.done.exit_code == 0, output.stderr
    assert re.search(PROGRAMS[program], output.stdout.decode()), output.stdout.decode()
    assert output.stderr == b""


async def test_node_sees_the_sandbox(host_box: Box) -> None:
    total, free, uptime, cpus = json.loads(await host_box.text(f"node -e '{NODE}'"))
    assert (total, cpus) == (2048 * MIB, os.cpu_count())
    assert 1024 * MIB < free <= total
    assert uptime < YOUNG


async def test_free_memory_follows_what_is_used(workshop: Workshop) -> None:
    live = await create(workshop, "eater", limits=Limits(memory=256 * MIB))
    async with linked(live) as link:
        box = Box(live, link, "host")
        assert await meminfo(box, "MemTotal") == 256 * MIB
        before = await meminfo(box, "MemFree")
        eater = Exec(argv=["python3", "-c", f"x = b'x' * {64 * MIB}; print('eaten', flush=True); input()"], stdin=True)
        async with link.operation(eater) as connection:
            await connection.next_frame()
            while await meminfo(box, "MemFree") > before - 64 * MIB:
                await asyncio.sleep(0.1)
    await workshop.destroy(live)


async def test_cpu_time_and_load_are_the_sandboxs_own(host_box: Box) -> None:
    assert float((await host_box.text("cat /proc/loadavg")).split()[0]) < 0.1
    async with host_box.link.operation(Exec(argv=["sh", "-c", "while :; do :; done"])):
        while float((await host_box.text("cat /proc/loadavg")).split()[0]) == 0.0:
            await asyncio.sleep(0.1)
    user, _, system, idle = map(int, (await host_box.text("head -1 /proc/stat")).split()[1:5])
    assert 0 < user + system < idle


async def test_a_new_sandbox_is_young_by_every_clock(host_box: Box) -> None:
    script = """
import time
with open("/proc/uptime") as file:
    uptime = float(file.read().split()[0])
with open("/proc/stat") as file:
    boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
with open("/proc/self/stat") as file:
    start = int(file.read().rpartition(")")[2].split()[19]) / 100
print(uptime, time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time() - boot, start)
"""
    times = [float(word) for word in (await host_box.run("python3", "-c", script)).stdout.split()]
    assert all(0 < seconds < BOOT_SECONDS + YOUNG for seconds in times)
    uptime, _, clock, since_boot, start = times
    assert start <= uptime < clock + SECONDS_AHEAD + 0.01
    assert abs(since_boot - clock) < 2


async def test_two_sandboxes_and_the_host_do_not_know_of_having_booted_together(neighbours: tuple[Box, Box]) -> None:
    path = Path("/proc/sys/kernel/random/boot_id")
    ids = {path.read_text().strip(), *[await box.text(f"cat {path}") for box in neighbours]}
    assert len(ids) == 3
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", one) for one in ids)


async def test_nobody_inside_may_write_figures(host_box: Box) -> None:
    for path in ("/proc/meminfo", "/proc/uptime", "/sys/devices/system/cpu/online", "/proc/sys/fs/file-max"):
        output = await host_box.sh(f"echo 1 >{path} || rm {path} || chmod 666 {path}")
        assert output.done.exit_code != 0, path


async def test_no_file_that_sandboxes_see_is_the_same_for_two(neighbours: tuple[Box, Box]) -> None:
    """Or one could lock the other out."""
    lock = "import fcntl; file = open({!r}); fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB); print(1, flush=True); {}"
    for path in ("/sys/devices/system/cpu/online", "/proc/swaps", "/proc/meminfo", "/proc/misc"):
        holder = Exec(argv=["python3", "-c", lock.format(path, "input()")], stdin=True)
        async with neighbours[0].link.operation(holder) as connection:
            assert (await connection.next_frame()).payload == b"1\n"
            assert (await neighbours[1].run("python3", "-c", lock.format(path, ""))).stdout == b"1\n"


async def test_a_sandbox_in_which_nothing_happens_writes_nothing(host_box: Box) -> None:
    await host_box.text("true")
    process = Path(f"/proc/{native(host_box.live).process.pid}")

    def switches() -> int:
        return sum(map(int, re.findall(r"switches:\s+(\d+)", (process / "status").read_text())))

    last = -1
    while last != (last := switches()):  # the first second after a command still counts
        await asyncio.sleep(1.5)
    await asyncio.sleep(3)
    assert switches() == last


async def test_a_sandbox_knows_its_limits(workshop: Workshop) -> None:
    limits = Limits(cpus=0.25, memory=64 * MIB, disk=20 * MIB, pids=50)
    live = await create(workshop, "modest", limits=limits)
    async with linked(live) as link:
        told = await Box(live, link, "host").text('echo "$ATOLL_CPUS $ATOLL_MEMORY $ATOLL_DISK $ATOLL_PIDS"')
    await workshop.destroy(live)
    assert told == f"0.25 {64 * MIB} {20 * MIB} 50"


async def meminfo(box: Box, name: str) -> int:
    return int((await box.text(f"grep ^{name}: /proc/meminfo")).split()[1]) * 1024
