"""How many sandboxes fit: memory of an idle one, how fast they are made, and whether hundreds at once all answer.

    .venv/bin/python benches/density.py [--alive 500]

Memory is anonymous pages (a shared one in equal parts), page tables and kernel stacks of our processes, by difference
over a hundred: what else is at work on the machine does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from atoll.engine.base import LiveSandbox
from atoll.protocol.commands import Exec
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.supervisor.agent_link import link_to
from atoll.supervisor.plans import Plan
from atoll.supervisor.workshop import Workshop

KERNEL_STACK = 16 * 1024  # of every thread
SAMPLE = 100
IN_FLIGHT = 4  # creates under way at a time; two cores have no use for more
PLAN = Plan(limits=Limits(cpus=2, memory="2GiB", disk="64MiB", pids=1024), has_usual_disk=False)
TRUE = Exec(argv=["true"])


def memory() -> int:
    """Bytes in use by this process and all that descend from it."""
    return sum(memory_of(pid) for pid in descendants(os.getpid()))


def descendants(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))


def memory_of(pid: int) -> int:
    try:
        pages = amounts(Path(f"/proc/{pid}/smaps_rollup"))["Pss_Anon"]
        status = amounts(Path(f"/proc/{pid}/status"))
    except (OSError, KeyError):  # it is about to end, or has no memory any more
        return 0
    return (pages + status["VmPTE"]) * 1024 + status["Threads"] * KERNEL_STACK


def amounts(table: Path) -> dict[str, int]:
    """Of a table of the kernel's with a name and a number in each line."""
    lines = (line.split() for line in table.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


async def settled_memory() -> int:
    """The smallest of a few looks: embryos come and go."""
    looks = []
    for _ in range(5):
        await asyncio.sleep(0.2)
        looks.append(memory())
    return min(looks)


async def create(workshop: Workshop, prefix: str, count: int) -> list[LiveSandbox]:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int) -> LiveSandbox:
        async with room:
            return await workshop.make(SandboxId(f"{prefix}-{number}"), PLAN)

    return await asyncio.gather(*(one(number) for number in range(count)))


async def answer(workshop: Workshop, sandboxes: list[LiveSandbox]) -> int:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(sandbox: LiveSandbox) -> int:
        async with room, link_to(workshop.engine, sandbox) as link:
            return (await link.run(TRUE)).done.exit_code

    return sum(code == 0 for code in await asyncio.gather(*(one(sandbox) for sandbox in sandboxes)))


async def destroy(workshop: Workshop, sandboxes: list[LiveSandbox]) -> None:
    await asyncio.gather(*(workshop.destroy(sandbox) for sandbox in sandboxes))


async def measure(workshop: Workshop, alive: int) -> None:
    await destroy(workshop, await create(workshop, "warm-up", 10))
    empty = await settled_memory()
    start = time.perf_counter()
    sample = await create(workshop, "sample", SAMPLE)
    taken = time.perf_counter() - start
    unused = await settled_memory()
    await answer(workshop, sample)
    used = await settled_memory()
    print(f"memory, never used      {(unused - empty) / SAMPLE / 1e6:6.2f} MB each (target ≤ 3)")
    print(f"memory, after a command {(used - empty) / SAMPLE / 1e6:6.2f} MB each (target ≤ 4.5)")
    print(f"created                 {SAMPLE / taken:6.0f} per second (target ≥ 150)")
    rest = await create(workshop, "rest", max(0, alive - SAMPLE))
    start = time.perf_counter()
    answered = await answer(workshop, sample + rest)
    print(
        f"alive at once           {len(sample + rest):6d}, {answered} answered in {time.perf_counter() - start:.1f} s"
    )
    start = time.perf_counter()
    await destroy(workshop, sample + rest)
    print(f"destroyed               {(len(sample + rest)) / (time.perf_counter() - start):6.0f} per second")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alive", type=int, default=500)
    alive = parser.parse_args().alive
    with (
        tempfile.TemporaryDirectory(prefix="atoll-bench-") as state,
        tempfile.TemporaryDirectory(prefix="atoll-bench-", dir="/run") as run,
    ):
        async with Workshop(Path(state, "state"), Path(run, "run")) as workshop:
            await measure(workshop, alive)


if __name__ == "__main__":
    asyncio.run(main())
