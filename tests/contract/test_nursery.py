"""The nursery's own side: what it finds at its start, how many it can have, and what it tells of those that fail."""

from __future__ import annotations

import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from atoll.engine.native import launcher
from atoll.engine.native.cgroups import open_cgroups
from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.nursery import sweep
from atoll.engine.native.uid_ranges import UidRanges
from atoll.protocol.errors import AtollError
from atoll.supervisor.workshop import Workshop
from tests.contract.test_native_engine import nursery_of
from tests.making import create
from tests.native import run

FAILING_CHILDREN = """
from atoll.engine.native import launcher, nursery
def fail_early(wanted):
    raise OSError(28, "no room for descriptors")
launcher._keep_descriptors = fail_early
nursery.main()
"""


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(launcher, "SOCKETS", str(tmp_path))
    yield tmp_path


def test_agents_that_take_nobody_in_hold_up_no_start(sockets: Path) -> None:
    """As those of sleeping sandboxes: whoever knocks stays in their queue until it is full."""
    with socket.socket(socket.AF_UNIX) as asleep, socket.socket(socket.AF_UNIX) as dead:
        asleep.bind(str(sockets / "asleep"))
        asleep.listen(0)
        dead.bind(str(sockets / "dead"))
        cgroups, ranges = open_cgroups(), UidRanges()
        assert cgroups
        for _ in range(3):
            sweep(cgroups, ranges)
        assert [path.name for path in sockets.iterdir()] == ["asleep"]
        cgroups.close()
        ranges.close()


@pytest.fixture
async def narrow(tmp_path: Path, busybox_root: Path) -> AsyncIterator[Workshop]:
    """A workshop that was opened by somebody who may open 100 files, and more if need be."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    workshop = Workshop(tmp_path / "state", tmp_path / "run")
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    async with workshop:
        workshop.images.add("busybox", busybox_root)
        yield workshop


async def test_the_nursery_has_room_for_more_sandboxes_than_a_command_may_open_files(narrow: Workshop) -> None:
    live = await create(narrow, "one", image="busybox")
    assert (await run(live, "sh", "-c", "ulimit -n")).strip() == b"100"
    nursery = nursery_of(narrow)
    limits = Path(f"/proc/{nursery}/limits").read_text()
    (row,) = [line.split() for line in limits.splitlines() if line.startswith("Max open files")]
    assert row[3] == row[4] != "100"
    await narrow.destroy(live)


async def test_a_child_that_fails_at_once_is_heard(tmp_path: Path, busybox_root: Path) -> None:
    program = tmp_path / "failing_nursery.py"
    program.write_text(FAILING_CHILDREN)
    engine = NativeEngine(tmp_path / "state", tmp_path / "run", nursery=(str(program),))
    async with Workshop(tmp_path / "state", tmp_path / "run", engine=engine) as workshop:
        workshop.images.add("busybox", busybox_root)
        with pytest.raises(AtollError, match=r"keep some descriptors: .*no room for descriptors"):
            await create(workshop, "one", image="busybox")
