"""A nursery of a killed server that does not end, as somebody stopped it or part of it: the next to open ends it."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.engine.native import engine as engine_module
from atoll.engine.native.engine import NURSERY, NativeEngine
from atoll.engine.native.leftovers import leftovers
from atoll.engine.native.nursery_process import is_in_use
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.supervisor.workshop import Workshop
from tests.contract import dying_nursery
from tests.contract.test_crashes import HANG_SECONDS, Site, children_of, is_alive
from tests.leaks import Surroundings
from tests.making import create
from tests.native import run

PATIENCE_SECONDS = 0.3


@pytest.fixture
async def site(tmp_path: Path, busybox_root: Path, surroundings: Surroundings) -> AsyncIterator[Site]:
    """With one sandbox, `first`, and a nursery that can be made to stand still."""
    async with Workshop(tmp_path / "state", tmp_path / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
    site = Site(tmp_path, surroundings, has_trap=True)
    await site.start()
    await site.create("first")
    yield site
    await site.hang_up()
    site.trap.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "LEAVE_SECONDS", PATIENCE_SECONDS)


def program(directory: Path) -> tuple[str, ...]:
    return (dying_nursery.__file__, str(directory / "trap"))


def open_workshop(directory: Path) -> Workshop:
    state, runtime = directory / "state", directory / "run"
    engine = NativeEngine(state, runtime, embryos=0, nursery=program(directory))
    return Workshop(state, runtime, engine=engine)


async def check_that_first_lives_on(directory: Path) -> None:
    async with open_workshop(directory) as workshop:
        assert workshop.inherited.running == (SandboxId("first"),)
        live = await workshop.adopt("first")
        assert await run(live, "cat", "/kept") == b"first\n"
        await workshop.destroy(live)
        await workshop.destroy(await create(workshop, "next", image="busybox"))


@pytest.mark.parametrize("stopped", [("nursery",), ("zygote",), ("nursery", "zygote")])
@pytest.mark.usefixtures("impatient")
async def test_one_that_was_stopped_is_ended_and_sandboxes_live_on(
    site: Site, stopped: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    (nursery,) = [int(pid) for pid in children_of(site.process.pid)]
    pids = {"nursery": nursery, "zygote": site.trap.zygote}
    for name in stopped:
        os.kill(pids[name], signal.SIGSTOP)
    await site.kill()
    with caplog.at_level(logging.WARNING, "atoll.engine"):
        await check_that_first_lives_on(site.directory)
    for name in stopped:
        assert f"process {pids[name]} " in caplog.text and "earlier nursery" in caplog.text
    assert not [pid for pid in pids.values() if is_alive(pid)]


@pytest.mark.usefixtures("impatient")
async def test_a_child_that_is_too_young_to_have_a_name_is_ended_too(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.trap.set("join the cgroup")
    site.order("create", "second")
    await site.sprung()
    async with asyncio.timeout(HANG_SECONDS):
        while not (child := site.trap.child):
            await asyncio.sleep(0.001)
    os.kill(child, signal.SIGSTOP)
    await site.kill()
    site.trap.open()
    await check_that_first_lives_on(site.directory)
    assert f"process {child} " in caplog.text
    assert not is_alive(child)


@pytest.mark.usefixtures("impatient")
async def test_somebody_elses_process_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever holds the lock, or only reads the log; and the nursery of a server that runs."""
    monkeypatch.setattr(engine_module, "ANSWER_SECONDS", PATIENCE_SECONDS)
    log = tmp_path / "run/nursery.log"
    log.parent.mkdir()
    with log.open("wb") as output:
        fcntl.flock(output, fcntl.LOCK_SH)
        wait = [sys.executable, "-c", "import time; time.sleep(600)"]
        others = [
            subprocess.Popen(wait, stdout=output),  # the lock, and another command
            subprocess.Popen([*wait, *NURSERY], stdout=output, start_new_session=True),  # its server, we, lives
        ]
    with log.open("rb") as reader:
        others.append(subprocess.Popen([*wait, *NURSERY], stdout=reader))  # no lock
    try:
        assert is_in_use(log) and leftovers(log, NURSERY) == []
        engine = NativeEngine(tmp_path / "state", tmp_path / "run")
        with pytest.raises(AtollError) as caught:
            await engine.settle([], are_all=False)
        assert caught.value.code is ErrorCode.NURSERY_FAILED and "fuser" in caught.value.remedy
        await engine.close()
        assert all(other.poll() is None for other in others) and not caplog.text
    finally:
        for other in others:
            other.kill()
            other.wait()
