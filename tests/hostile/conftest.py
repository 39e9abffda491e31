"""Machines for hostile tests: the shipped one, and one for each set of defences that is switched off."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from atoll.attacks.record import Defence
from atoll.attacks.resources import FILES
from atoll.engine.base import LiveSandbox
from atoll.engine.native.engine import NativeEngine
from atoll.protocol.limits import Limits
from atoll.storage.directory import DirectoryStorage
from atoll.store.choose import open_store
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.conftest import Box
from tests.leaks import Surroundings
from tests.making import create
from tests.native import linked, native

OF_THE_HOST = (Defence.DISK_QUOTA, Defence.FILE_MAX, Defence.HOARD_WATCH)  # the nursery has no part in them
FILE_MAX = Path("/proc/sys/fs/file-max")
WEAKENED_NURSERY = Path(__file__).parent / "weakened_nursery.py"
_numbers = itertools.count()


@asynccontextmanager
async def sandbox(workshop: Workshop, limits: Limits | None = None) -> AsyncIterator[Box]:
    live = await create(workshop, f"hostile-{next(_numbers)}", limits=limits)
    try:
        async with linked(live) as link:
            yield Box(live, link, "host")
    finally:
        await workshop.destroy(live)


@pytest.fixture(scope="module")
async def next_door(workshop: Workshop, surroundings: Surroundings) -> AsyncIterator[LiveSandbox]:
    """One sandbox that sees every attack on the shipped workshop, and must not suffer."""
    async with sandbox(workshop) as box:
        surroundings.processes.add(native(box.live).process.pid)
        yield box.live
        surroundings.processes.discard(native(box.live).process.pid)


@pytest.fixture
async def neighbour(next_door: LiveSandbox) -> AsyncIterator[Box]:
    async with linked(next_door) as link:
        yield Box(next_door, link, "host")


class WeakenedWorkshops:
    """One at a time, kept until other defences are to be off. They share images and disks with the shipped workshop."""

    def __init__(self, shipped: Workshop, state: Path, surroundings: Surroundings) -> None:
        self._shipped = shipped
        self._shipped_state = state
        self._state = state.parent / "weakened"
        self._state.mkdir()
        with closing(open_store(self._state)) as store:
            kept.at_once(store.custody.take())  # of disks that are none of its own
        self._surroundings = surroundings
        self._defences: tuple[Defence, ...] = ()
        self._closing = AsyncExitStack()

    async def without(self, defences: tuple[Defence, ...]) -> Workshop:
        if self._defences != defences:
            await self.close()
            before = open_descriptors()
            self._defences, self._current = defences, self._make(defences)
            self._closing.push_async_callback(self._current.engine.close)
            await self._settle(self._current, before)
        return self._current

    async def close(self) -> None:
        await self._closing.aclose()
        self._closing = AsyncExitStack()
        self._defences = ()

    def _make(self, defences: tuple[Defence, ...]) -> Workshop:
        engine = NativeEngine(self._shipped_state, self._state / "run", embryos=0, nursery=nursery_without(defences))
        if Defence.HOARD_WATCH in defences:
            engine._hoards.close()
        # The quota is the host's to keep: plain directories have none.
        has_quota = Defence.DISK_QUOTA not in defences
        storage = self._shipped.storage if has_quota else DirectoryStorage(self._shipped_state / "without-quota")
        workshop = Workshop(
            self._state, self._state / "run", images=self._shipped.images, engine=engine, storage=storage
        )
        self._closing.callback(workshop.store.close)
        self._closing.callback(workshop._lock.release)  # its storage is the shipped workshop's, and stays open
        if Defence.FILE_MAX in defences:
            self._closing.enter_context(few_more_files())
        return workshop

    async def _settle(self, workshop: Workshop, before: set[int]) -> None:
        """What the workshop keeps for its life is not left behind by the test at hand."""
        async with sandbox(workshop):
            pass
        assert isinstance(workshop.engine, NativeEngine) and workshop.engine.nursery_pid
        kept = open_descriptors() - before
        self._surroundings.processes.add(workshop.engine.nursery_pid)
        self._surroundings.descriptors |= kept
        self._closing.callback(self._surroundings.processes.discard, workshop.engine.nursery_pid)
        self._closing.callback(self._surroundings.descriptors.difference_update, kept)


@pytest.fixture(scope="module")
async def weakened(workshop: Workshop, state: Path, surroundings: Surroundings) -> AsyncIterator[WeakenedWorkshops]:
    workshops = WeakenedWorkshops(workshop, state, surroundings)
    yield workshops
    await workshops.close()


@contextmanager
def few_more_files() -> Iterator[None]:
    """A workshop whose limit of open files is within reach of one sandbox, as it is of a large one by default."""
    before = FILE_MAX.read_text()
    in_use = int(Path("/proc/sys/fs/file-nr").read_text().split()[0])
    FILE_MAX.write_text(str(in_use + FILES // 2))
    try:
        yield
    finally:
        FILE_MAX.write_text(before)


def open_descriptors() -> set[int]:
    """Without the one that lists them, which is closed when it is looked for."""
    return {int(fd) for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}


def nursery_without(defences: tuple[Defence, ...]) -> tuple[str, ...]:
    inside = [defence for defence in defences if defence not in OF_THE_HOST]
    return (str(WEAKENED_NURSERY), "--without", ",".join(inside))
