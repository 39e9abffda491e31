"""Memory that is promised to running sandboxes, on a machine that may promise little."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.supervisor.promised_memory import PromisedMemory
from atoll.supervisor.workshop import Workshop
from tests.making import create

MIB = 2**20
MEMORY_OF_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_promise_is_taken_back_when_the_launch_fails() -> None:
    memory = PromisedMemory(overcommit=2, has=100 * MIB)
    with pytest.raises(RuntimeError), memory.launching(150 * MIB):
        raise RuntimeError
    assert memory.total == 0
    refused = pytest.raises(AtollError)
    with memory.launching(80 * MIB), memory.launching(70 * MIB), refused as caught, memory.launching(51 * MIB):
        pass
    assert caught.value.code is ErrorCode.MEMORY_COMMITTED
    assert caught.value.context == {"promised": 150 * MIB, "most": 200 * MIB, "asked": 51 * MIB}
    assert "--memory-overcommit" in caught.value.remedy


def test_one_that_runs_is_given_more_only_if_there_is_more_to_promise() -> None:
    memory = PromisedMemory(overcommit=2, has=100 * MIB)
    for name, promised in (("one", 50), ("two", 100), ("three", 40)):
        memory.note(name, promised * MIB)
    with pytest.raises(AtollError, match="MEMORY_COMMITTED"), memory.changing("one", 2**60):
        raise AssertionError
    assert memory.total == 190 * MIB
    with memory.changing("one", 60 * MIB):
        assert memory.total == 200 * MIB
    with pytest.raises(RuntimeError), memory.changing("one", 30 * MIB):
        raise RuntimeError
    assert memory.total == 200 * MIB
    with memory.changing("one", 30 * MIB):
        pass
    assert memory.total == 170 * MIB


def test_more_than_the_machine_has_is_promised_to_nobody() -> None:
    memory = PromisedMemory(overcommit=1, has=100 * MIB)
    with memory.launching(2**60):
        assert memory.total == 100 * MIB


async def test_what_runs_counts_and_what_is_stopped_does_not(tmp_path: Path, busybox_root: Path) -> None:
    room_for_two = 200 * MIB / MEMORY_OF_MACHINE
    limits = {"memory": 80 * MIB, "disk": 16 * MIB}

    def opened() -> Workshop:
        return Workshop(tmp_path / "state", tmp_path / "run", memory_overcommit=room_for_two)

    async with opened() as workshop:
        workshop.images.add("busybox", busybox_root)
        one = await create(workshop, "one", image="busybox", limits=limits)
        await workshop.engine.release(await create(workshop, "two", image="busybox", limits=limits))
        with pytest.raises(AtollError) as caught:
            await create(workshop, "three", image="busybox", limits=limits)
        assert caught.value.code is ErrorCode.MEMORY_COMMITTED
        assert "three" not in workshop.storage.names()
        await workshop.stop(one)
        await workshop.engine.release(await create(workshop, "three", image="busybox", limits=limits))
        with pytest.raises(AtollError, match="MEMORY_COMMITTED"):
            await workshop.start(one.id)

    async with opened() as workshop:
        for name in ("two", "three"):
            await workshop.engine.release(await workshop.adopt(name))
        with pytest.raises(AtollError, match="MEMORY_COMMITTED"):
            await workshop.start(one.id)
        await workshop.remove("two")
        await workshop.destroy(await workshop.start(one.id))
        await workshop.remove("three")
