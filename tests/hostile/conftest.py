"""Machines for hostile tests: the shipped one, and one for each set of defences that is switched off."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from atoll.attacks.record import Defence
from atoll.engine.native.engine import NativeEngine
from atoll.protocol.limits import Limits
from atoll.storage.directory import DirectoryStorage
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.machine import Machine
from tests.conftest import Box

WEAKENED_NURSERY = Path(__file__).parent / "weakened_nursery.py"
_numbers = itertools.count()


@asynccontextmanager
async def sandbox(machine: Machine, limits: Limits | None = None) -> AsyncIterator[Box]:
    live = await machine.create(f"hostile-{next(_numbers)}", limits=limits)
    try:
        async with AgentLink(live.agent_socket) as link:
            yield Box(live, link, "host")
    finally:
        await machine.destroy(live)


@pytest.fixture(scope="module")
async def neighbour(machine: Machine) -> AsyncIterator[Box]:
    """One sandbox that sees every attack on the shipped machine, and must not suffer."""
    async with sandbox(machine) as box:
        yield box


class WeakenedMachines:
    """One at a time, kept until other defences are to be off. They share images and disks with the shipped machine."""

    def __init__(self, shipped: Machine, state: Path, runtime: Path) -> None:
        self._shipped = shipped
        self._state = state
        self._runtime = runtime
        self._defences: tuple[Defence, ...] = ()
        self._current: Machine | None = None

    async def without(self, defences: tuple[Defence, ...]) -> Machine:
        if self._current is None or self._defences != defences:
            await self.close()
            self._defences, self._current = defences, self._make(defences)
        return self._current

    async def close(self) -> None:
        if self._current:
            await self._current.engine.close()

    def _make(self, defences: tuple[Defence, ...]) -> Machine:
        engine = NativeEngine(self._state, self._runtime, embryos=0, nursery=nursery_without(defences))
        # The quota is the host's to keep: plain directories have none.
        has_quota = Defence.DISK_QUOTA not in defences
        storage = self._shipped.storage if has_quota else DirectoryStorage(self._state / "without-quota")
        return Machine(self._state, self._runtime, images=self._shipped.images, engine=engine, storage=storage)


@pytest.fixture(scope="module")
async def weakened(machine: Machine, state: Path) -> AsyncIterator[WeakenedMachines]:
    machines = WeakenedMachines(machine, state, state.parent / "weakened")
    yield machines
    await machines.close()


def nursery_without(defences: tuple[Defence, ...]) -> tuple[str, ...]:
    inside = [defence for defence in defences if defence is not Defence.DISK_QUOTA]
    return (str(WEAKENED_NURSERY), "--without", ",".join(inside))
