"""Control groups, tried out: limits written and a process frozen, in a corner away from every sandbox's group."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from atoll.engine.native import cgroups_v1, cgroups_v2
from atoll.engine.native.cgroups import Cgroups, Hierarchies, parse_mounts
from atoll.engine.native.cgroups_v1 import CgroupsV1
from atoll.engine.native.cgroups_v2 import CgroupsV2
from atoll.engine.native.group_files import AGENT, COMMANDS, PARENT
from atoll.engine.native.group_limits import Resources
from atoll.engine.native.probe_child import Inside, probe_child
from atoll.engine.native.syscalls import Namespace
from atoll.telemetry.findings import Area, Check, Outcome, missing, ok, warning

REMOVE_ATTEMPTS, REMOVE_PAUSE_SECONDS = 1_000, 0.005  # the last process leaves a moment after its end is seen
TRIED = Resources(cpus=0.5, memory=64 * 2**20, pids=16)
GROUP = "tried"
SOCKET_LIMIT = "memory.kmem.tcp.limit_in_bytes"  # of version 1; version 2 has no other than for memory
SWAP_LIMITS = ("memory.memsw.limit_in_bytes", "memory.swap.max")  # where memory and swap are limited, if at all
_MOUNT = "Mount cgroup2 on /sys/fs/cgroup with the memory, pids and cpu controllers, as systemd does."


def checks() -> list[Check]:
    return [
        Check(Area.LIMITS, "control groups", check_controllers),
        Check(Area.LIMITS, "setting limits", check_limits, needs_root=True),
        Check(Area.LIMITS, "freezing", check_freezer, needs_root=True),
    ]


def check_controllers() -> Outcome:
    found = find_hierarchies()
    match choose_version(found, v2_controllers(found)):
        case 2:
            return ok(f"version 2 with {', '.join(cgroups_v2.CONTROLLERS)}")
        case 1:
            return ok(f"version 1 with {', '.join(cgroups_v1.CONTROLLERS)}")
    return missing(f"{lacking(found, v2_controllers(found))}", _MOUNT)


def check_limits() -> Outcome:
    try:
        with corner(find_hierarchies()) as (groups, directory):
            groups.set_limits(GROUP, TRIED)
            groups.set_cpus(GROUP, TRIED.cpus)
            groups.usage(GROUP)
            counts_swap = any(os.path.exists(f"{directory}/{name}") for name in SWAP_LIMITS)
            counts_sockets = isinstance(groups, CgroupsV2) or os.path.exists(f"{directory}/{SOCKET_LIMIT}")
    except OSError as cause:
        return missing(
            f"a limit cannot be written: {cause}",
            "Let this process write to the control groups; in a container they are usually read-only.",
        )
    if has_swap() and not counts_swap:
        return warning(
            "memory, processes and cpu; but swap is not counted, and a sandbox can swap beyond its limit",
            "Boot with swapaccount=1 on the kernel's command line, or turn swap off.",
        )
    if not counts_sockets or leaves_sockets_out(_boot_options()):
        return warning(
            "memory, processes and cpu; but what waits in sockets is not counted, and a sandbox can hold much there",
            "Take `nosocket` out of cgroup.memory= on the kernel's command line, or boot a kernel that counts them.",
        )
    return ok("memory, processes and cpu")


def leaves_sockets_out(boot_options: str) -> bool:
    given = (option.removeprefix("cgroup.memory=") for option in boot_options.split() if "cgroup.memory=" in option)
    return any("nosocket" in value.split(",") for value in given)


def _boot_options() -> str:
    with open("/proc/cmdline") as file:
        return file.read()


def check_freezer() -> Outcome:
    try:
        with corner(find_hierarchies()) as (groups, _):
            _freeze_a_process(groups)
    except (OSError, TimeoutError) as cause:
        return warning(
            f"a process could not be frozen: {cause}", "Sandboxes run, but cannot sleep with what is in memory."
        )
    return ok("a process stood still, and went on")


def _freeze_a_process(groups: Cgroups) -> None:
    joins, cgroup = groups.joins(GROUP), groups.clone_into(GROUP)
    try:
        with probe_child(Namespace(0), lambda inside: _join(inside, joins), cgroup) as child:
            child.channel.recv(1)
            try:
                groups.freeze(GROUP)
            finally:
                groups.thaw(GROUP)
            child.go([])
            child.result()
    finally:
        for fd in [*joins, *([] if cgroup is None else [cgroup])]:
            os.close(fd)


def _join(inside: Inside, joins: list[int]) -> None:
    inside.step = "join a control group"
    for fd in joins:
        os.write(fd, b"0")
    inside.channel.send(b"!")
    inside.wait()


def find_hierarchies() -> Hierarchies:
    with open("/proc/mounts") as file:
        return parse_mounts(file.read())


def v2_controllers(found: Hierarchies) -> set[str]:
    if not found.v2:
        return set()
    with open(f"{found.v2}/cgroup.controllers") as file:
        return set(file.read().split())


def choose_version(found: Hierarchies, available: set[str]) -> int | None:
    """As `open_cgroups` does: version 2 if its controllers are free, else version 1, else none."""
    if found.v2 and set(cgroups_v2.CONTROLLERS) <= available:
        return 2
    return 1 if set(cgroups_v1.CONTROLLERS) <= set(found.v1) else None


def lacking(found: Hierarchies, available: set[str]) -> str:
    if found.v2 is None and not found.v1:
        return "no control groups are mounted"
    version, wanted, there = (
        (1, cgroups_v1.CONTROLLERS, set(found.v1)) if found.v1 else (2, cgroups_v2.CONTROLLERS, available)
    )
    return f"version {version} lacks {', '.join(name for name in wanted if name not in there)}"


class Corner(NamedTuple):
    """Control groups with one group in them, and the directory in which its memory is limited."""

    groups: Cgroups
    directory: str


@contextmanager
def corner(found: Hierarchies) -> Iterator[Corner]:
    """Below a group of our own, so that no sandbox's is touched; gone at the end."""
    available = v2_controllers(found)
    version = choose_version(found, available)
    if version is None:
        raise FileNotFoundError(lacking(found, available))
    name = f"atoll-doctor-{os.getpid()}-{secrets.token_hex(4)}"
    mounts = dict.fromkeys(cgroups_v2.CONTROLLERS, found.v2 or "") if version == 2 else found.v1
    corners = sorted({f"{mount}/{name}" for mount in mounts.values()})
    try:
        for path in corners:
            os.mkdir(path)
        groups = _open(found, version, name)
        groups.create(GROUP)
        yield Corner(groups, f"{mounts['memory']}/{name}/{PARENT}/{GROUP}")
    finally:
        for path in corners:
            tried = f"{path}/{PARENT}/{GROUP}"
            for directory in (f"{tried}/{AGENT}", f"{tried}/{COMMANDS}", tried, f"{path}/{PARENT}", path):
                _remove(directory)


def _open(found: Hierarchies, version: int, name: str) -> Cgroups:
    if version == 1:
        return CgroupsV1({controller: f"{mount}/{name}" for controller, mount in found.v1.items()})
    # Left on: Atoll needs them so, and a server that starts at this moment would lose them if they went off again.
    for controller in cgroups_v2.CONTROLLERS:
        with open(f"{found.v2}/cgroup.subtree_control", "w") as file:
            file.write(f"+{controller}")
    return CgroupsV2(f"{found.v2}/{name}")


def has_swap() -> bool:
    with suppress(FileNotFoundError), open("/proc/swaps") as file:
        return len(file.readlines()) > 1
    return False


def _remove(directory: str) -> None:
    for _ in range(REMOVE_ATTEMPTS):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError as cause:
            if cause.errno != errno.EBUSY:
                raise
            time.sleep(REMOVE_PAUSE_SECONDS)
