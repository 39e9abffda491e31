"""How long a sandbox takes from nothing to its first result, against what the kernel and others charge for the same.

    .venv/bin/python benches/cold_start.py [--rounds 60]

Every variant runs once per round, so that a busy moment of the machine hits all alike; the first rounds are dropped.
Compare the ratios: absolute times mean little on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from atoll.engine.native import seccomp
from atoll.engine.native.capabilities import Capability
from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.views import READ_ONLY, to_hide
from atoll.protocol.commands import Exec
from atoll.protocol.ids import SandboxId
from atoll.supervisor.agent_link import AgentLink, link_to
from atoll.supervisor.plans import Plan
from atoll.supervisor.workshop import Workshop

HERE = Path(__file__).parent
WARM_UP_ROUNDS = 3
SETTLE_SECONDS = 0.1  # namespaces are taken down, and embryos made, behind our back: not the next variant's cost
TRUE = Exec(argv=["true"])
STOCK = ("SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32")

Variant = Callable[[], Awaitable[float]]


class Bare:
    """`subprocess.run(["true"])` on the host: no sandbox at all."""

    burst = 20  # quick ones run in a row, as they do in use

    async def __call__(self) -> float:
        start = time.perf_counter()
        subprocess.run(["true"], check=True)
        return time.perf_counter() - start


class Floor:
    """benches/floor.c: the same sandbox in C, without an agent."""

    def __init__(self, work: Path, layer: Path) -> None:
        program = work / "floor"
        subprocess.run(["gcc", "-O2", "-o", program, HERE / "floor.c"], check=True)
        directory = work / "floor-work"
        directory.mkdir(mode=0o755)
        self._process = subprocess.Popen(
            [program, directory, layer, seccomp.FILTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def __call__(self) -> float:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()) / 1e9

    def close(self) -> None:
        self._process.communicate()


class Crun:
    """`crun run`: the same layers, namespaces, masks, capabilities, and our filter's rules as an OCI profile.

    Most of its time is the compiling of that profile, so the architectures matter: stock profiles name three, our own
    filter is for one. Both are shown.
    """

    def __init__(self, work: Path, layer: Path, architectures: tuple[str, ...]) -> None:
        self._bundle = work / f"crun-{len(architectures)}"
        for name in ("rootfs", "upper", "work"):
            (self._bundle / name).mkdir(parents=True)
        self._bundle.chmod(0o755)
        options = f"lowerdir={layer},upperdir={self._bundle}/upper,workdir={self._bundle}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self._bundle / "rootfs"], check=True)
        (self._bundle / "config.json").write_text(json.dumps(oci_config(architectures)))
        # crun 1.8 refuses a host with v1 controllers and a unified hierarchy that has one too; hidden, it is content.
        self._prefix = [
            "unshare",
            "-m",
            "sh",
            "-c",
            "umount /sys/fs/cgroup/unified 2>/dev/null; read _; " + _LOOP,
        ]
        self._process = subprocess.Popen(
            self._prefix, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self._bundle
        )
        self._ask()

    async def __call__(self) -> float:
        start = time.perf_counter()
        self._ask()
        return time.perf_counter() - start

    def _ask(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "0\n":
            raise SystemExit("cold_start: crun cannot run here; uninstall it, or see its message above")

    def close(self) -> None:
        self._process.communicate()
        subprocess.run(["umount", self._bundle / "rootfs"], check=True)


_LOOP = "echo 0; while read _; do crun run atoll-bench-$$ < /dev/null; echo $?; done"


class Docker:
    """`docker run` of an image that is already there."""

    def __init__(self, image: str) -> None:
        self._command = ["docker", "run", "--rm", "--network", "none", image, "true"]

    async def __call__(self) -> float:
        start = time.perf_counter()
        subprocess.run(self._command, check=True, capture_output=True)
        return time.perf_counter() - start


class Cold:
    """A new sandbox, its first command, its result."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._count = 0

    async def __call__(self) -> float:
        self._count += 1
        start = time.perf_counter()
        sandbox = await self._workshop.make(SandboxId(f"bench-{self._count}"), Plan())
        async with link_to(self._workshop.engine, sandbox) as link:
            output = await link.run(TRUE)
            taken = time.perf_counter() - start
        assert output.done.exit_code == 0
        await self._workshop.destroy(sandbox)
        return taken


class Warm:
    """A command in a sandbox that is already there."""

    burst = 20

    def __init__(self, link: AgentLink) -> None:
        self._link = link

    async def __call__(self) -> float:
        start = time.perf_counter()
        await self._link.run(TRUE)
        return time.perf_counter() - start


def oci_config(architectures: tuple[str, ...]) -> dict[str, object]:
    script = HERE.parent / "scripts/build_seccomp.py"
    syscalls = json.loads(subprocess.run([script, "--oci"], check=True, capture_output=True).stdout)
    syscalls["architectures"] = list(architectures)
    if len(architectures) > 1:
        # 32-bit sockets come by one call whose arguments a filter cannot see, so that what is refused by argument
        # contradicts what is allowed. Without those rules it answers what everything unknown does.
        syscalls["syscalls"] = [rule for rule in syscalls["syscalls"] if "errnoRet" not in rule or not rule["args"]]
    capabilities = [f"CAP_{capability.name}" for capability in Capability]
    ids = [{"containerID": 0, "hostID": 2_146_000_000, "size": 65_536}]
    basic = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs"},
        "hostname": "bench",
        "process": {
            "args": ["/usr/bin/true"],
            "cwd": "/",
            "env": ["PATH=/usr/bin:/bin"],
            "user": {"uid": 0, "gid": 0},
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        },
        "mounts": [
            {"destination": "/usr", "source": "/usr", "type": "bind", "options": ["rbind", "ro"]},
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*basic, "ro"]},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "mode=755", "size=64k"],
            },
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["nosuid", "newinstance"],
            },
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": [*basic, "size=64m"]},
            {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": basic},
        ],
        "linux": {
            "uidMappings": ids,
            "gidMappings": ids,
            "namespaces": [{"type": kind} for kind in ("user", "mount", "pid", "network", "ipc", "uts", "cgroup")],
            "maskedPaths": [f"/proc/{name}" for name in to_hide(set())],
            "readonlyPaths": [f"/proc/{name.decode()}" for name in READ_ONLY],
            "seccomp": syscalls,
        },
    }


def docker_image() -> str | None:
    """Any image a running Docker has."""
    if not shutil.which("docker"):
        return None
    found = subprocess.run(["docker", "images", "-q"], capture_output=True, text=True)
    return found.stdout.split()[0] if found.returncode == 0 and found.stdout.split() else None


async def measure(variants: dict[str, Variant], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(WARM_UP_ROUNDS + rounds):
        for name, variant in variants.items():
            taken = [await variant() for _ in range(getattr(variant, "burst", 1))]
            await asyncio.sleep(SETTLE_SECONDS)
            if number >= WARM_UP_ROUNDS:
                times[name] += taken
    return times


def report(times: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in times.items()}
    bare, floor = medians["subprocess.run"], medians["C floor"]
    print(f"{'':18}{'median':>9}{'p95':>9}{'× bare':>9}{'× C floor':>11}")
    for name, values in times.items():
        p95 = statistics.quantiles(values, n=20)[-1]
        median = medians[name]
        print(f"{name:18}{median * 1e3:7.2f}ms{p95 * 1e3:7.2f}ms{median / bare:9.2f}{median / floor:11.2f}")
    cold, warm = medians["atoll cold"], medians["atoll warm"]
    print(f"\ncold start: {cold / floor:.2f} × C floor (target ≤ 3), {cold / bare:.1f} × bare (or ≤ 15)")
    if "crun run" in medians:
        stock, single = medians["crun run"] / cold, medians["crun, x86-64"] / cold
        print(
            f"            {stock:.1f} × faster than crun with three architectures, {single:.1f} × with one (target ≥ 3)"
        )
    if "docker run" in medians:
        print(f"            {medians['docker run'] / cold:.1f} × faster than docker")
    unprepared = medians["cold, unprepared"]
    print(f"            with no embryo ready: {unprepared / floor:.2f} × C floor, {unprepared / bare:.1f} × bare")
    print(f"warm exec:  {warm / bare:.2f} × bare (target ≤ 1.5)")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        # As in use: the state on a disk, sockets in /run.
        work, run = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atoll-bench-", dir=where)))
            for where in (None, "/run")
        )
        work.chmod(0o755)
        async with Workshop(work / "state", run / "atoll") as workshop:
            await compare(workshop, work, run, rounds)


async def compare(workshop: Workshop, work: Path, run: Path, rounds: int) -> None:
    with ExitStack() as stack:
        await _compare(workshop, work, run, stack, rounds)


async def _compare(workshop: Workshop, work: Path, run: Path, stack: ExitStack, rounds: int) -> None:
    layer = Path(workshop.images.resolve("host").overlays[0].layers[0])
    shown = work / "layer"  # the state directory is private; the C program's child must get through
    shutil.copytree(layer, shown, symlinks=True)
    floor = Floor(work, shown)
    stack.callback(floor.close)
    sandbox = await workshop.make(SandboxId("bench-warm"), Plan())
    async with link_to(workshop.engine, sandbox) as link:
        variants: dict[str, Variant] = {"subprocess.run": Bare(), "atoll warm": Warm(link), "C floor": floor}
        if shutil.which("crun"):
            for name, architectures in (("crun run", STOCK), ("crun, x86-64", STOCK[:1])):
                crun = Crun(work, shown, architectures)
                stack.callback(crun.close)
                variants[name] = crun
        if image := docker_image():
            variants["docker run"] = Docker(image)
        variants["atoll cold"] = Cold(workshop)
        state, sockets = work / "state-unprepared", run / "unprepared"
        async with Workshop(state, sockets, engine=NativeEngine(state, sockets, embryos=0)) as unprepared:
            variants["cold, unprepared"] = Cold(unprepared)
            report(await measure(variants, rounds))
    await workshop.destroy(sandbox)


if __name__ == "__main__":
    os.nice(-5)
    asyncio.run(main())
