"""Kill -9 at every step of a creation and a removal, and at random moments: what was reported stays, the rest goes.

Four can be killed: the nursery, its zygote, the process that uses the engine (maker.py), and the child that becomes the
sandbox. At each step of launcher.py one of them is, while it stands still there (dying_nursery.py).
"""

from __future__ import annotations

import ast
import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.engine.native import launcher
from atoll.engine.native.engine import answers
from atoll.protocol.errors import ErrorCode
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.contract import dying_nursery, maker
from tests.contract.dying_nursery import Trap
from tests.contract.maker import CREATE_POINTS, REMOVE_POINTS
from tests.leaks import Surroundings, look, wait_until_nothing_leaks
from tests.making import create

HANG_SECONDS = 60.0
ROUNDS, CREATES_PER_ROUND = 20, 10
LONGEST_LIFE_SECONDS = 0.15  # of a victim in the middle of ten creations, which take about as long


def steps_of(name: str) -> list[str]:
    """What the functions or methods of launcher.py below `name` announce with `at`, in order."""
    tree = ast.parse(Path(launcher.__file__).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
    calls = [node for node in ast.walk(found) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    marks = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "at"]
    return [ast.literal_eval(mark.args[0]) for mark in sorted(marks, key=lambda mark: mark.lineno)]


CONCEIVE, HATCH, CHILD = steps_of("_conceive"), steps_of("hatch"), steps_of("Child")
BEFORE_THERE_IS_A_CHILD = CONCEIVE[: CONCEIVE.index("clone3") + 1]
STEPS = [*CONCEIVE, *HATCH, *CHILD]


def test_every_step_of_the_launcher_is_known() -> None:
    source = Path(launcher.__file__).read_text()
    assert sorted(STEPS) == sorted(re.findall(r'\.at\("([^"]+)"\)', source))
    assert len(set(STEPS)) == len(STEPS)


def test_the_numbered_story_tells_of_every_step() -> None:
    story = launcher.__doc__ or ""
    numbers = sorted(int(number) for number in re.findall(r"(?:^ +|── |  )(\d+)  ?[a-z/]", story, re.MULTILINE))
    assert numbers == list(range(1, len(numbers) + 1)), "steps are numbered from 1 on, each once"
    for step in STEPS:
        words = [word for word in re.findall(r"[\w/]+", step) if len(word) > 3]
        assert any(word.rstrip("s") in story for word in words), f"{step!r} is not in the story"


class Site:
    """A state directory, and the process that uses it for the time being."""

    def __init__(self, directory: Path, surroundings: Surroundings, *, has_trap: bool) -> None:
        self.directory = directory
        self.trap = Trap(directory / "trap")
        self._nursery = [dying_nursery.__file__, str(directory / "trap")] if has_trap else []
        self._surroundings = surroundings
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> list[str]:
        """Begin, or begin again; returns what the new process found."""
        await self.hang_up()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, maker.__file__, str(self.directory), *self._nursery],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._kept = (self.process.pid, ours.fileno())
        self._surroundings.processes.add(self.process.pid)
        self._surroundings.descriptors.add(ours.fileno())
        return await self.read_until(lambda line: line == "ready")

    def order(self, *words: str) -> None:
        assert self._writer
        self._writer.write(f"{' '.join(words)}\n".encode())

    async def read_until(self, is_last: Callable[[str], bool]) -> list[str]:
        """Lines up to one that is the last, or up to the end of the process."""
        lines: list[str] = []
        async with asyncio.timeout(HANG_SECONDS):
            while not lines or not is_last(lines[-1]):
                try:
                    line = (await self._reader.readline()).decode()
                except ConnectionResetError:  # it was killed with an order unread
                    break
                if not line.endswith("\n"):
                    break
                lines.append(line.strip())
        return lines

    async def create(self, name: str) -> list[str]:
        self.order("create", name)
        return await self.answer(name)

    async def answer(self, name: str) -> list[str]:
        return await self.read_until(lambda line: line == f"wrote {name}" or line.startswith(f"failed {name}"))

    async def remove(self, name: str) -> None:
        self.order("remove", name)
        assert (await self.read_until(lambda line: line == f"removed {name}"))[-1] == f"removed {name}"

    async def kill(self) -> None:
        self.process.kill()
        await self.end()

    async def end(self) -> int:
        """Of the process, with all it said still to be read."""
        async with asyncio.timeout(HANG_SECONDS):
            return await asyncio.to_thread(self.process.wait)

    async def hang_up(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
        self._surroundings.processes.discard(self._kept[0])
        self._surroundings.descriptors.discard(self._kept[1])

    async def sprung(self) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not self.trap.is_sprung:
                await asyncio.sleep(0.001)

    async def kill_while_it_stands(self, victim: str) -> None:
        await self.sprung()
        if victim == "engine":
            await self.kill()
        else:
            async with asyncio.timeout(HANG_SECONDS):
                while not (pid := getattr(self.trap, victim)):
                    await asyncio.sleep(0.001)
                os.kill(pid, signal.SIGKILL)
                while is_alive(pid):
                    await asyncio.sleep(0.001)
        self.trap.open()

    def leftovers(self) -> list[Path | str]:
        """Files and records of sandboxes, when there are none. Embryos have a socket each, and answer."""
        found = [path for place in ("state/disks", "run/agents") for path in (self.directory / place).iterdir()]
        files = [path for path in found if not (path.is_socket() and answers(path))]
        return [*files, *kept.stages(self.directory / "state")]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def _site(
    directory: Path, busybox_root: Path, surroundings: Surroundings, *, has_trap: bool
) -> AsyncIterator[Site]:
    before = look(surroundings)
    surroundings.shared.add(directory)
    async with Workshop(directory / "state", directory / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
    site = Site(directory, surroundings, has_trap=has_trap)
    assert await site.start() == ["ready"]
    yield site
    await site.kill()
    await site.hang_up()
    site.trap.close()
    async with Workshop(directory / "state", directory / "run") as workshop:
        for record in workshop.records():  # of a test that failed
            await workshop.remove(record.id)
        await workshop.destroy(await create(workshop, "last", image="busybox"))
    surroundings.shared.remove(directory)
    assert not await wait_until_nothing_leaks(before, surroundings)


@pytest.fixture(scope="module")
async def site(
    tmp_path_factory: pytest.TempPathFactory, busybox_root: Path, surroundings: Surroundings
) -> AsyncIterator[Site]:
    """One for all steps: what one test left undone would be found by the next."""
    async for site in _site(tmp_path_factory.mktemp("site"), busybox_root, surroundings, has_trap=True):
        yield site


@pytest.fixture(scope="module")
async def plain_site(
    tmp_path_factory: pytest.TempPathFactory, busybox_root: Path, surroundings: Surroundings
) -> AsyncIterator[Site]:
    """With the nursery as it is."""
    async for site in _site(tmp_path_factory.mktemp("plain"), busybox_root, surroundings, has_trap=False):
        yield site


async def end_with_nothing_left(site: Site, *names: str) -> None:
    """The next start works, and cleans up."""
    await site.create("next")
    for name in (*names, "next"):
        await site.remove(name)
    async with asyncio.timeout(HANG_SECONDS):
        while site.leftovers():  # an embryo's socket is there a moment before it answers
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("step", [*STEPS, "announce", *CREATE_POINTS])
async def test_the_process_that_uses_the_engine_is_killed_at(site: Site, step: str) -> None:
    await site.create("first")
    site.trap.set(step)
    site.order("create", "second")
    await site.kill_while_it_stands("engine")
    assert await site.answer("second") == [], "it was not reported"
    found = await site.start()
    assert "running first first" in found
    if step in ("created on disk", "created"):  # so it was, though nobody heard of it
        assert "running second nothing" in found
        await site.remove("second")
    else:
        assert found == ["running first first", "swept second", "ready"]
    assert (await site.create("second"))[-1] == "wrote second"
    await end_with_nothing_left(site, "first", "second")


@pytest.mark.parametrize("step", [*STEPS, "announce", *CREATE_POINTS])
async def test_the_nursery_is_killed_at(site: Site, step: str) -> None:
    await site.create("first")
    site.trap.set(step)
    site.order("create", "second")
    await site.kill_while_it_stands("nursery")
    answer = await site.answer("second")
    if answer[-1].startswith("failed"):
        assert answer == [f"failed second {ErrorCode.NURSERY_FAILED}"]
        answer = await site.create("second")
    assert answer == ["made second", "wrote second"]
    await end_with_nothing_left(site, "first", "second")


@pytest.mark.parametrize("step", ["make a cgroup", "clone3", "make /dev", "open the agent", "run the agent"])
async def test_the_zygote_is_killed_at(site: Site, step: str) -> None:
    await site.create("first")
    site.trap.set(step)
    site.order("create", "second")
    await site.kill_while_it_stands("zygote")
    answer = await site.answer("second")
    if answer[-1].startswith("failed"):
        assert answer == [f"failed second {ErrorCode.NURSERY_FAILED}"]
        answer = await site.create("second")
    assert answer == ["made second", "wrote second"]
    await end_with_nothing_left(site, "first", "second")


@pytest.mark.parametrize(
    "step", [*(step for step in STEPS if step not in BEFORE_THERE_IS_A_CHILD), "announce", "on record"]
)
async def test_the_child_is_killed_at(site: Site, step: str) -> None:
    await site.create("first")
    site.trap.set(step)
    site.order("create", "second")
    await site.kill_while_it_stands("child")
    answer = await site.answer("second")
    assert answer[0].split()[:2] == ["failed", "second"]
    assert answer[0].split()[2] in (ErrorCode.SANDBOX_START_FAILED, ErrorCode.SANDBOX_NOT_RUNNING)
    assert await site.create("second") == ["made second", "wrote second"]
    await end_with_nothing_left(site, "first", "second")


@pytest.mark.parametrize("point", REMOVE_POINTS)
async def test_a_removal_that_was_begun_is_finished_by_the_next(site: Site, point: str) -> None:
    await site.create("first")
    await site.create("second")
    site.trap.set(point)
    site.order("remove", "second")
    await site.kill_while_it_stands("engine")
    found = await site.start()
    assert [line for line in found if line != "swept second"] == ["running first first", "ready"]
    assert ("swept second" in found) == (point != "removed")
    await end_with_nothing_left(site, "first")


@pytest.mark.parametrize("victim", ["engine", "nursery"])
async def test_killed_at_random_moments(plain_site: Site, victim: str) -> None:
    chance = random.Random(f"{victim} 1")
    site = plain_site
    for number in range(ROUNDS // 2):
        names = [f"r{number}-{index}" for index in range(CREATES_PER_ROUND)]
        nursery = await start_nursery(site)
        for name in names:
            site.order("create", name)
        await asyncio.sleep(chance.uniform(0, LONGEST_LIFE_SECONDS))
        os.kill(site.process.pid if victim == "engine" else nursery, signal.SIGKILL)
        lines = await read_answers(site, names)
        if victim == "nursery":
            await site.kill()
            lines += await site.read_until(lambda _: False)
        await site.end()
        found = await site.start()
        check_round(lines, found, names)
        running = [line.split()[1] for line in found if line.startswith("running")]
        await end_with_nothing_left(site, *running)


async def start_nursery(site: Site) -> int:
    await site.create("warm")
    await site.remove("warm")
    (nursery,) = [int(pid) for pid in children_of(site.process.pid)]
    return nursery


def children_of(pid: int) -> list[str]:
    return [pid for task in Path(f"/proc/{pid}/task").iterdir() for pid in (task / "children").read_text().split()]


async def read_answers(site: Site, names: list[str]) -> list[str]:
    """Until every name has its last word, or there will be no more."""
    open_names = set(names)

    def is_last(line: str) -> bool:
        verb, name, *_ = line.split()
        if verb in ("wrote", "failed"):
            open_names.discard(name)
        return not open_names

    return await site.read_until(is_last)


def check_round(said: list[str], found: list[str], names: list[str]) -> None:
    made = {line.split()[1] for line in said if line.startswith("made ")}
    wrote = {line.split()[1] for line in said if line.startswith("wrote ")}
    failed = {line.split()[1] for line in said if line.startswith("failed ")}
    running = {line.split()[1]: line.split()[2] for line in found if line.startswith("running ")}
    assert made <= running.keys() <= set(names) - failed, (said, found)
    assert {name: running[name] for name in wrote} == {name: name for name in wrote}
    assert not [line for line in found if line.startswith("ended")], (said, found)
