"""What a test left behind: processes, mounts, control groups, namespaces, loop devices, descriptors, sockets, files.

Other runs of these tests may share the machine, so everything is attributed. Whoever descends from this process is
ours: it adopts the orphans of what it started (`adopt_orphans`). Mounts, loop devices and files are ours if they are
of this run's temporary directory. A control group belongs to a range of user ids; one whose range nobody holds is left
over, and ours unless another nursery on the machine could have made it.

The machine that all tests of a run share is taken out: its directory, its nursery and as many embryos as it keeps.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import NamedTuple

from atoll.agent.commands.process_tree import parse_stat
from atoll.engine.native.cgroups import parse_mounts
from atoll.engine.native.engine import EMBRYOS
from atoll.engine.native.group_files import group_name
from atoll.engine.native.uid_ranges import UidRanges
from atoll.engine.native.zygote import PROCESS_NAME as ZYGOTE
from atoll.store.sqlite.database import NAME as DATABASE
from tests import kept

PATIENCE_SECONDS = 60.0  # until something counts as left behind; what ends, ends in milliseconds
PAUSE_SECONDS = 0.01
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
HALF_MADE = ("run/agents/*.sock", "state/pool.new")

_PR_SET_CHILD_SUBREAPER = 36


class Trace(NamedTuple):
    kind: str
    what: str


@dataclass
class Surroundings:
    """Where a run of tests works, and what of that outlives a test: machines that tests share."""

    directory: Path
    test: Path | None = None  # the directory of the test at hand
    shared: set[Path] = field(default_factory=set)
    nursery: int | None = None
    processes: set[int] = field(default_factory=set)
    descriptors: set[int] = field(default_factory=set)
    ranges: UidRanges = field(default_factory=UidRanges)


class Process(NamedTuple):
    pid: int
    parent: int
    is_zombie: bool
    name: bytes


def adopt_orphans() -> None:
    """Become the parent of whoever our descendants leave behind, as init would."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


async def wait_until_nothing_leaks(before: set[Trace], around: Surroundings) -> set[Trace]:
    """What is there that was not, once it has had time to go."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while leaked := look(around) - before:
        gc.collect()  # what an error's traceback holds in a circle is not leaked
        if time.monotonic() > give_up:
            return leaked
        await asyncio.sleep(PAUSE_SECONDS)  # in which the loop closes what was given up
    return set()


def look(around: Surroundings) -> set[Trace]:
    """Everything that could be left behind, at this moment."""
    everyone = list(_processes())
    descendants = _descendants(os.getpid(), everyone)
    _reap(descendants)
    living = {process.pid for process in descendants if not process.is_zombie}
    ours = living - _kept(around, everyone)
    devices = dict(_loop_devices(around))
    return {
        *(Trace("process", f"{pid} {_name(pid)}") for pid in ours),
        *(Trace("namespace", name) for name in _namespaces(ours)),
        *(Trace("loop device", f"{device} of {file}") for device, file in devices.items()),
        *(Trace("mount", mount) for mount in _mounts(_outside_others(everyone, living), around, devices)),
        *(Trace("cgroup", name) for name in _groups(everyone, living, around.ranges)),
        *(Trace("descriptor", name) for name in _descriptors(around)),
        *(Trace("file", name) for name in _files(around)),
        *(Trace("record", name) for name in _half_recorded(around)),
    }


def _processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                stat = parse_stat(Path(f"/proc/{name}/stat").read_bytes())
                yield Process(int(name), stat.parent, stat.is_zombie, stat.name)


def _descendants(root: int, everyone: Iterable[Process]) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in everyone:
        children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, []))
    for process in found:  # grows while we go
        found += children.get(process.pid, [])
    return found


def _reap(descendants: Iterable[Process]) -> None:
    for process in descendants:
        if process.is_zombie and process.parent == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _kept(around: Surroundings, everyone: list[Process]) -> set[int]:
    """What outlives a test: the shared nursery with its embryos, and what fixtures hold."""
    kept = set(around.processes)
    for pid in around.processes:
        kept |= {process.pid for process in _descendants(pid, everyone)}
    if around.nursery:
        children = _descendants(around.nursery, everyone)
        embryos = {process.pid for process in children if process.name != ZYGOTE} - kept
        zygotes = {process.pid for process in children if process.name == ZYGOTE}
        kept |= {around.nursery} | zygotes | (embryos if len(embryos) <= EMBRYOS else set())
    return kept


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "(ended)"


def _namespaces(pids: Iterable[int]) -> Iterator[str]:
    """Those that processes are in, and those that descriptors hold; also ours."""
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}
    for pid in pids:
        for kind in NAMESPACES:
            with suppress(OSError):
                name = os.readlink(f"/proc/{pid}/ns/{kind}")
                if name not in own:
                    yield name
    for pid in (os.getpid(), *pids):
        for _, target in _links(pid):
            if target.split(":")[0] in NAMESPACES:
                yield target


def _links(pid: int) -> Iterator[tuple[str, str]]:
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield fd, os.readlink(f"/proc/{pid}/fd/{fd}")


def _descriptors(around: Surroundings) -> Iterator[str]:
    """Ours. Not the first three, which pytest redirects, nor the one that lists them.

    SQLite keeps the descriptor of a connection that was closed while another holds a lock, and uses it for the next.
    """
    kept = {f"{shared}/state/{DATABASE}" for shared in around.shared}
    for fd, target in _links(os.getpid()):
        is_counted = int(fd) > 2 and int(fd) not in around.descriptors and target not in kept
        if is_counted and target != f"/proc/{os.getpid()}/fd":
            yield f"{fd} {target}"


def _loop_devices(around: Surroundings) -> Iterator[tuple[str, str]]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            file = path.read_text().strip()
            if _is_ours(file, around):
                yield path.parts[3], file


def _outside_others(everyone: list[Process], ours: set[int]) -> list[Process]:
    """All but the sandboxes of other runs, whose mounts are their own: there may be a thousand of them."""
    others = {process.pid for process in everyone if process.name == b"atoll-agent" and process.pid not in ours}
    return [process for process in everyone if process.pid not in others and process.parent not in others]


def _mounts(everyone: Iterable[Process], around: Surroundings, devices: Iterable[str]) -> Iterator[str]:
    """In every mount namespace that some process is in, also where only that process sees them."""
    numbers = {Path(f"/sys/block/{device}/dev").read_text().strip() for device in devices}
    seen = set()
    for process in everyone:
        with suppress(OSError):
            namespace = os.readlink(f"/proc/{process.pid}/ns/mnt")
            if namespace not in seen:
                seen.add(namespace)
                for line in Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines():
                    if line.split(" ", 3)[2] in numbers or _is_ours(line, around):
                        yield f"{namespace} {line}"


def _is_ours(text: str, around: Surroundings) -> bool:
    return f"{around.directory}/" in text and not any(str(shared) in text for shared in around.shared)


def _groups(everyone: Iterable[Process], ours: set[int], ranges: UidRanges) -> Iterator[str]:
    """Groups of nobody; none if another nursery lives, which may just be making or removing them."""
    if _is_another_run(everyone, ours):
        return
    bases = {group_name(base): base for base in ranges.bases()}
    for name in sorted(_group_names() & bases.keys()):
        if ranges.is_free(bases[name]):
            yield name


def _is_another_run(everyone: Iterable[Process], ours: set[int]) -> bool:
    return any(process.name in (b"atoll-nursery", b"atoll-agent") and process.pid not in ours for process in everyone)


def _group_names() -> set[str]:
    found = parse_mounts(Path("/proc/mounts").read_text())
    roots = {*found.v1.values(), found.v2}
    return {path.name for root in roots if root for path in Path(root, "atoll").glob("sandbox-*")}


def _files(around: Surroundings) -> Iterator[str]:
    """What a machine of the test's own should have removed."""
    for pattern in HALF_MADE:
        yield from glob(f"{around.test}/{pattern}")


def _half_recorded(around: Surroundings) -> Iterator[str]:
    """Sandboxes that a machine of the test's own should have finished making or removing."""
    state = Path(f"{around.test}/state")
    if (state / DATABASE).is_file():
        with suppress(sqlite3.DatabaseError):  # damaged by the test
            yield from (f"{name} {stage}" for name, stage in kept.stages(state).items() if stage != "created")
