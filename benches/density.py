"""How many sandboxes fit: memory of an idle one, how fast they are made, and whether hundreds at once all answer.

    .venv/bin/python benches/density.py [--alive 500]

Memory is what the kernel counts as anonymous pages, page tables and kernel stacks, by difference over a hundred.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from atoll.engine.base import LiveSandbox
from atoll.protocol.limits import Limits
from atoll.protocol.messages import Exec
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.machine import Machine

COUNTED = ("AnonPages", "PageTables", "KernelStack")
SAMPLE = 100
IN_FLIGHT = 4  # creates under way at a time; two cores have no use for more
LIMITS = Limits(cpus=2, memory="2GiB", disk="64MiB", pids=1024)
TRUE = Exec(argv=["true"])


def memory() -> int:
    """Bytes in use by what COUNTED names, on the whole machine."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0].rstrip(":") in COUNTED)


async def settled_memory() -> int:
    """The smallest of a few looks: others on the machine only ever add."""
    looks = []
    for _ in range(5):
        await asyncio.sleep(0.2)
        looks.append(memory())
    return min(looks)


async def create(machine: Machine, prefix: str, count: int) -> list[LiveSandbox]:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int) -> LiveSandbox:
        async with room:
            return await machine.create(f"{prefix}-{number}", limits=LIMITS)

    return await asyncio.gather(*(one(number) for number in range(count)))


async def answer(sandboxes: list[LiveSandbox]) -> int:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(sandbox: LiveSandbox) -> int:
        async with room, AgentLink(sandbox.agent_socket) as link:
            return (await link.run(TRUE)).done.exit_code

    return sum(code == 0 for code in await asyncio.gather(*(one(sandbox) for sandbox in sandboxes)))


async def destroy(machine: Machine, sandboxes: list[LiveSandbox]) -> None:
    await asyncio.gather(*(machine.destroy(sandbox) for sandbox in sandboxes))


async def measure(machine: Machine, alive: int) -> None:
    await destroy(machine, await create(machine, "warm-up", 10))
    empty = await settled_memory()
    start = time.perf_counter()
    sample = await create(machine, "sample", SAMPLE)
    taken = time.perf_counter() - start
    unused = await settled_memory()
    await answer(sample)
    used = await settled_memory()
    print(f"memory, never used      {(unused - empty) / SAMPLE / 1e6:6.2f} MB each (target ≤ 3)")
    print(f"memory, after a command {(used - empty) / SAMPLE / 1e6:6.2f} MB each (target ≤ 4.5)")
    print(f"created                 {SAMPLE / taken:6.0f} per second (target ≥ 150)")
    rest = await create(machine, "rest", max(0, alive - SAMPLE))
    start = time.perf_counter()
    answered = await answer(sample + rest)
    print(
        f"alive at once           {len(sample + rest):6d}, {answered} answered in {time.perf_counter() - start:.1f} s"
    )
    start = time.perf_counter()
    await destroy(machine, sample + rest)
    print(f"destroyed               {(len(sample + rest)) / (time.perf_counter() - start):6.0f} per second")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alive", type=int, default=500)
    alive = parser.parse_args().alive
    with (
        tempfile.TemporaryDirectory(prefix="atoll-bench-") as state,
        tempfile.TemporaryDirectory(prefix="atoll-bench-", dir="/run") as run,
    ):
        async with Machine(Path(state, "state"), Path(run, "run")) as machine:
            await measure(machine, alive)


if __name__ == "__main__":
    asyncio.run(main())
