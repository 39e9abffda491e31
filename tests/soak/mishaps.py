"""Mishaps: what befalls a server and its sandboxes in use. Only processes that we brought forth are hit."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from atoll.agent.commands.process_tree import ProcessStat, parse_stat
from atoll.engine.native.zygote import PROCESS_NAME as ZYGOTE
from tests.system.clocks import WallClock
from tests.system.serving import RunningServer

NURSERY, AGENT = b"atoll-nursery", b"atoll-agent"
SHELLS = (b"bash", b"sh")
LONGEST_STOP_SECONDS = 2.0
PAUSE_SECONDS = (0.05, 0.6)
HOUR, YEAR = 3600.0, 366 * 86400.0


class Mishaps:
    """Happens to `server` and what descends from us until it is cancelled; `counts` says what did."""

    def __init__(self, server: RunningServer, clock: WallClock, luck: random.Random) -> None:
        self._server, self._clock, self._luck = server, clock, luck
        self.counts: Counter[str] = Counter()

    async def happen(self) -> None:
        while True:
            await asyncio.sleep(self._luck.uniform(*PAUSE_SECONDS))
            await self._luck.choices(
                [self._kill_server, self._kill_somebody, self._stop_somebody, self._set_clock], [2, 5, 4, 1]
            )[0]()

    async def _kill_server(self) -> None:
        self.counts["kill -9 server"] += 1
        await self._server.kill()
        await asyncio.sleep(self._luck.choice([0, 0, 0.05, 0.5]))
        await self._server.start()

    async def _kill_somebody(self) -> None:
        name, pid = self._somebody()
        if pid:
            self.counts[f"kill -9 {name}"] += 1
            _signal(pid, signal.SIGKILL)

    async def _stop_somebody(self) -> None:
        name, pid = self._somebody() if self._luck.random() < 0.7 else ("server", self._server.process.pid)
        if pid:
            self.counts[f"SIGSTOP {name}"] += 1
            _signal(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(self._luck.uniform(0.01, LONGEST_STOP_SECONDS))
            finally:
                _signal(pid, signal.SIGCONT)

    async def _set_clock(self) -> None:
        self.counts["clock set"] += 1
        self._clock.set_forward(self._luck.choice([0.0, HOUR, -HOUR, YEAR, -YEAR / 12]))

    def _somebody(self) -> tuple[str, int]:
        """A process of a kind, of those that there are. The kinds are equally likely, however many are of each."""
        kind, is_one = self._luck.choice(list(KINDS.items()))
        processes = {process.pid: process for process in descendants(os.getpid())}
        found = [process.pid for process in processes.values() if is_one(process, processes)]
        return kind, self._luck.choice(sorted(found)) if found else 0


def _is_of_agent(process: ProcessStat, others: dict[int, ProcessStat]) -> bool:
    parent = others.get(process.parent)
    return parent is not None and parent.name == AGENT


Kind = Callable[[ProcessStat, dict[int, ProcessStat]], bool]
KINDS: dict[str, Kind] = {
    "nursery": lambda process, _: process.name == NURSERY,
    "zygote": lambda process, _: process.name == ZYGOTE,
    "agent": lambda process, others: process.name == AGENT and not _is_of_agent(process, others),
    "worker": lambda process, others: process.name == AGENT and _is_of_agent(process, others),
    "shell": lambda process, others: process.name in SHELLS and _is_of_agent(process, others),
    "command": lambda process, others: process.name not in (AGENT, *SHELLS) and _is_in_sandbox(process, others),
}


def _is_in_sandbox(process: ProcessStat, others: dict[int, ProcessStat]) -> bool:
    while parent := others.get(process.parent):
        if parent.name == AGENT:
            return True
        process = parent
    return False


def descendants(root: int) -> list[ProcessStat]:
    """The living ones."""
    children: dict[int, list[ProcessStat]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                process = parse_stat(Path(f"/proc/{name}/stat").read_bytes())
                children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, []))
    for process in found:  # grows while we go
        found += children.get(process.pid, [])
    return [process for process in found if not process.is_zombie]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
