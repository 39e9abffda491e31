"""A soak: users at work for a while, mishaps all the time, and then a reckoning. `make soak`.

It ends with 0 if nothing acknowledged was lost, nothing was done twice, nobody hung, no error was untyped, and nothing
is left on the machine. The same seed gives the same plan, though not the same moments.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.leaks import Surroundings, adopt_orphans, look, wait_until_nothing_leaks
from tests.soak.mishaps import Mishaps
from tests.soak.users import User
from tests.system.clocks import WallClock
from tests.system.serving import RunningServer

KINDS = ("lost", "twice", "hung", "untyped")
WORST_SHOWN = 20


async def soak(seconds: float, users: int, seed: int) -> bool:
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    around = Surroundings(directory)
    before = look(around)
    counts, answers, broken = await _run(directory, seconds, users, random.Random(seed))
    left = await wait_until_nothing_leaks(before, around)
    verdict = Counter(line.split(":")[0] for line in broken)
    _print_table("operations", answers)
    _print_table("mishaps", counts)
    for line in broken[:WORST_SHOWN]:
        print(f"  {line}")
    for trace in sorted(left)[:WORST_SHOWN]:
        print(f"  leaked: {trace.kind} {trace.what}")
    figures = ", ".join(f"{verdict[kind]} {kind}" for kind in KINDS)
    print(f"{answers.total()} operations, {counts.total()} mishaps: {figures}, {len(left)} leaked (seed {seed})")
    if not broken and not left:
        shutil.rmtree(directory)
    else:
        print(f"what there was to see is in {directory}")
    return not broken and not left


async def _run(
    directory: Path, seconds: float, number: int, luck: random.Random
) -> tuple[Counter[str], Counter[str], list[str]]:
    clock = WallClock(directory)
    server = RunningServer(directory, environment=clock.environment)
    await server.start()
    users = [User(server.sandbox(f"user-{n}"), random.Random(luck.random()), directory) for n in range(number)]
    mishaps = Mishaps(server, clock, random.Random(luck.random()))
    give_up = time.monotonic() + seconds
    at_work = [asyncio.create_task(_until(give_up, user)) for user in users]
    happening = asyncio.create_task(mishaps.happen())
    try:
        await asyncio.gather(*at_work)
    finally:
        happening.cancel()
        (ended,) = await asyncio.gather(happening, return_exceptions=True)
    if server.process.poll() is not None:
        await server.start()
    for user in users:
        await user.check()
    for user in users:
        await user.leave()
    await server.close()
    broken = [line for user in users for line in user.broken]
    if not isinstance(ended, asyncio.CancelledError):
        broken.append(f"untyped: mishaps ended: {ended!r}")
    return mishaps.counts, sum((user.answers for user in users), Counter()), broken


async def _until(give_up: float, user: User) -> None:
    while time.monotonic() < give_up:
        await user.use_once()


def _print_table(title: str, counts: Counter[str]) -> None:
    print(f"{title}:")
    for name, count in sorted(counts.items()):
        print(f"  {count:7,} {name}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=600)
    arguments.add_argument("--users", type=int, default=6)
    arguments.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = arguments.parse_args()
    adopt_orphans()
    sys.exit(0 if asyncio.run(soak(given.seconds, given.users, given.seed)) else 1)


if __name__ == "__main__":
    main()
