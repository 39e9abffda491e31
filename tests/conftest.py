"""Real sandboxes for the tests: one workshop for the whole run, a sandbox where a test asks for one."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from atoll.engine.base import LiveSandbox
from atoll.engine.native.engine import NativeEngine
from atoll.protocol.commands import CommandOutput, Exec, ExecShell
from atoll.protocol.sessions import DEFAULT_SESSION
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.workshop import Workshop
from tests import run_directory
from tests.lab import Lab, laboratory
from tests.leaks import Surroundings, adopt_orphans, look, wait_until_nothing_leaks
from tests.making import create
from tests.native import linked

IMAGES = ("host", "busybox")
ALONE = {"contract", "hostile"}  # directories of tests that look for every left-over, or compare times
_numbers = itertools.count()

# A machine that stands still makes no example slow, nor the making of one.
slow = [HealthCheck.too_slow]
settings.register_profile("tests", settings(), deadline=None, suppress_health_check=slow)
settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    run_directory.choose(config)
    # What a test does not lead to servers of its own, no sandbox of its servers reaches.
    os.environ.update(ATOLL_REFUSE_RANGE="0.0.0.0/0 ::/0", ATOLL_DNS_SERVER="127.0.0.1:9", ATOLL_PROXY="")
    _heed_signals()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    run_directory.remove(session.config, has_failed=exitstatus != pytest.ExitCode.OK)


def _heed_signals() -> None:
    """A shell that puts us in the background, and nohup, have us ignore signals, which all that we start inherits."""
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in ALONE:
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session", autouse=True)
def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.exit("these tests make real sandboxes and need root", returncode=2)


@pytest.fixture(scope="session")
def busybox_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's busybox-static in an otherwise empty root: no C library, no Python, no shell but its own."""
    root = tmp_path_factory.mktemp("busybox")
    (root / "bin").mkdir()
    shutil.copy("/bin/busybox", root / "bin/busybox")
    applets = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True).stdout
    for applet in applets.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    return root


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of the workshop."""
    return tmp_path_factory.mktemp("workshop") / "state"


@pytest.fixture(scope="session")
async def workshop(state: Path, busybox_root: Path, surroundings: Surroundings) -> AsyncIterator[Workshop]:
    directory = state.parent
    async with Workshop(state, directory / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
        # What it starts at first use, it has before the first test looks for what was not there.
        await workshop.destroy(await create(workshop, "first", image="busybox"))
        assert isinstance(workshop.engine, NativeEngine)
        surroundings.shared.add(directory)
        surroundings.nursery = workshop.engine.nursery_pid
        for keeper in workshop._keepers:
            keeper.cancel()  # they open files, while tests count theirs
        yield workshop
    surroundings.shared.remove(directory)
    surroundings.nursery = None


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Where a gateway reaches an internet of ours, and nobody else."""
    with laboratory(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@dataclass
class Box:
    """A sandbox as a test uses it."""

    live: LiveSandbox
    link: AgentLink
    image: str

    async def run(self, *argv: str, stdin: bytes | None = None, **options: object) -> CommandOutput:
        return await self.link.run(Exec(argv=list(argv), **options), stdin)  # type: ignore[arg-type]

    async def shell(
        self, command: str, *, session: str = DEFAULT_SESSION, stdin: bytes | None = None, **options: object
    ) -> CommandOutput:
        """A command in a session."""
        return await self.link.run(ExecShell(command=command, session_id=session, **options), stdin)  # type: ignore[arg-type]

    async def sh(self, script: str, **options: object) -> CommandOutput:
        return await self.run("sh", "-c", script, **options)  # type: ignore[arg-type]

    async def text(self, script: str) -> str:
        """What a script prints, which must succeed."""
        output = await self.sh(script)
        assert output.done.exit_code == 0, (output.stdout, output.stderr)
        return output.stdout.decode().strip()


async def _box(workshop: Workshop, image: str) -> AsyncIterator[Box]:
    live = await create(workshop, f"test-{next(_numbers)}", image=image)
    async with linked(live) as link:
        yield Box(live, link, image)
    await workshop.destroy(live)


@pytest.fixture(params=IMAGES)
async def box(request: pytest.FixtureRequest, workshop: Workshop) -> AsyncIterator[Box]:
    """A new sandbox, once for each image."""
    async for box in _box(workshop, request.param):
        yield box


@pytest.fixture
async def host_box(workshop: Workshop) -> AsyncIterator[Box]:
    async for box in _box(workshop, "host"):
        yield box


@pytest.fixture
async def neighbours(workshop: Workshop) -> AsyncIterator[tuple[Box, Box]]:
    """Two sandboxes at once."""
    async for one in _box(workshop, "host"):
        async for other in _box(workshop, "host"):
            yield one, other


@pytest.fixture(scope="session")
async def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Surroundings:
    """Async, so that the event loop of the run and its descriptors are there before the first test."""
    adopt_orphans()
    return Surroundings(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
async def nothing_leaks(surroundings: Surroundings, tmp_path: Path) -> AsyncIterator[None]:
    """A test leaves no process, mount, cgroup, namespace, loop device, descriptor or socket that it did not find."""
    surroundings.test = tmp_path
    before = look(surroundings)
    yield
    leaked = await wait_until_nothing_leaks(before, surroundings)
    assert not leaked, "left behind:\n" + "\n".join(sorted(f"  {trace.kind}: {trace.what}" for trace in leaked))
