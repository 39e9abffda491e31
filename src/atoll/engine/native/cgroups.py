"""Control groups, version 1 and 2: memory, processes and cpu of a sandbox; freezing, counting and killing it.

Every sandbox has a group of its own below `atoll`, named after its range of user ids, which is unique on the machine
for as long as the sandbox lives. Groups are reached through descriptors opened once, since the nursery leaves the
host's tree.

Rules:
1. A child is in its group before it does anything. On version 2 it is cloned into it. On version 1 it joins by writing
   to descriptors the nursery opened, which takes 11 ms, for a grace period of the kernel, unless that is told to expect
   joins (`favordynmods`): then 0.1.
2. The cpu quota comes last, when the agent is ready, so that it is not throttled before it can answer.
3. Memory without swap: a limit that swaps is a limit on somebody else's disk.
4. Commands have a group below, and the limit of memory is that group's. The agent is beside it and has a share of its
   own: the kernel, which kills to make room in the group that is full, never finds PID 1 there.
5. Version 2 counts what waits in sockets as memory. Version 1 counts it apart, and only in groups that have a limit for
   it; TCP and UDP both come under that one, and no sandbox has more than a quarter of what all together may have.
   Beyond it a connection still gets what it needs to go on: up to 70 KB in each direction. What is beyond that, and
   what is not counted in either version, hoards.py looks after.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import msgspec

from atoll.agent.commands import group as command_group
from atoll.engine.base import Usage
from atoll.engine.native.syscalls import NewFilesystem, open_watch, watch_file

PARENT = "atoll"
AGENT, COMMANDS = "agent", "commands"  # below a sandbox's group
MEMORY_OF_AGENT = 64 * 2**20  # on top of the commands': an idle one takes 3 MB, its buffers are bounded
CPU_PERIOD_US = 100_000
MIN_CPU_QUOTA_US = 1_000  # the kernel's own bound
SHARE_OF_SOCKETS, LEAST_FOR_SOCKETS = 4, 8 * 2**20  # a quarter of the memory, on top of it; one fast connection takes 6
LIMIT, LIMIT_WITH_SWAP = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"  # of version 1
SOCKETS = "memory.kmem.tcp.limit_in_bytes"
FREEZE_ATTEMPTS, FREEZE_PAUSE_SECONDS = 4_000, 0.0005

V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct", "freezer")
V2_CONTROLLERS = ("memory", "pids", "cpu")


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Limits as the kernel takes them."""

    cpus: float
    memory: int
    pids: int


class MemoryInUse(Exception):
    """More memory than there is to be from now on is in use, and cannot be had back without killing somebody."""

    def __init__(self, used: int) -> None:
        super().__init__(used)
        self.used = used


class Cgroups(Protocol):
    """The group of a name, as both versions have it."""

    freezing: command_group.Freezing

    def expect_joins(self) -> None:
        """Have the kernel make them quick, for as long as this process lives."""
        ...

    def create(self, name: str) -> None: ...
    def clone_into(self, name: str) -> int | None:
        """A descriptor for clone3, where that can put a child into its group."""
        ...

    def joins(self, name: str) -> list[int]:
        """Descriptors to which a child writes "0" to join, where clone3 cannot."""
        ...

    def open_commands(self, name: str) -> list[int]:
        """Descriptors with which an agent puts commands into their group, and lets it stand still."""
        ...

    def set_limits(self, name: str, resources: Resources) -> None:
        """Of a group in which hardly anybody is yet."""
        ...

    def change_limits(self, name: str, resources: Resources) -> None:
        """Of one that runs, all or none. MemoryInUse if its commands use more than they could from then on, and the
        kernel would have to kill some.
        """
        ...

    def limit_all(self, memory: int, pids: int, sockets: int) -> None:
        """All sandboxes together."""
        ...

    def socket_limit(self, name: str) -> int:
        """The bytes that may wait in sockets of its commands."""
        ...

    def held_by_sockets(self, name: str) -> int:
        """Bytes that wait in sockets and are counted, but not as memory."""
        ...

    def kill_commands(self, name: str) -> None:
        """Every process of the group but its agent and the agent's forks."""
        ...

    def set_cpus(self, name: str, cpus: float) -> None: ...
    def freeze(self, name: str) -> None:
        """Returns when everything stands still; thaws it again and raises TimeoutError when something will not."""
        ...

    def thaw(self, name: str) -> None: ...
    def is_frozen(self, name: str) -> bool: ...
    def usage(self, name: str) -> Usage: ...
    def meters(self, name: str) -> tuple[int, int, int]:
        """Descriptors of what counts its commands' memory and its cpu, and of how much memory they may use. They say
        nothing of anybody else.
        """
        ...

    def oom_kills(self, name: str) -> int: ...
    def open_channel(self) -> int:
        """A descriptor that becomes readable when there is news of the memory of groups; reading empties it."""
        ...

    def announce(self, name: str, channel: int) -> None:
        """From now on a process of the group that is killed for memory is news, and perhaps more is."""
        ...

    def kill(self, name: str) -> None:
        """Every process of the group. One that is gone is fine."""
        ...

    def names(self) -> list[str]: ...
    def remove(self, name: str) -> bool:
        """False if it must be tried again: somebody is still in it."""
        ...

    def close(self) -> None:
        """Let go of the trees. Groups stay. Twice is fine."""
        ...


def group_name(uid_base: int) -> str:
    return f"sandbox-{uid_base}"


class Hierarchies(msgspec.Struct, frozen=True):
    """Where control groups are mounted: version 1 by controller, and version 2."""

    v1: dict[str, str]
    v2: str | None


def parse_mounts(mounts: str) -> Hierarchies:
    """From /proc/mounts."""
    v1: dict[str, str] = {}
    v2 = None
    for line in mounts.splitlines():
        _, target, kind, options, *_ = line.split(" ")
        if kind == "cgroup2" and v2 is None:
            v2 = target
        elif kind == "cgroup":
            for option in options.split(","):
                if option in V1_CONTROLLERS:
                    v1.setdefault(option, target)
    return Hierarchies(v1, v2)


def open_cgroups() -> Cgroups | None:
    """Version 2 if its controllers are free, else version 1 if it is mounted, else none."""
    with open("/proc/mounts") as file:
        found = parse_mounts(file.read())
    if found.v2:
        with open(f"{found.v2}/cgroup.controllers") as file:
            if set(V2_CONTROLLERS) <= set(file.read().split()):
                return CgroupsV2(found.v2)
    if set(V1_CONTROLLERS) <= set(found.v1):
        return CgroupsV1(found.v1)
    return None


class CgroupsV1:
    """Version 1: a tree per controller."""

    freezing = command_group.V1

    def __init__(self, mounts: dict[str, str]) -> None:
        self._trees: list[int] = []
        self._roots: dict[str, int] = {}
        for controller in V1_CONTROLLERS:
            self._roots[controller] = self._open_root(f"{mounts[controller]}/{PARENT}")
        # Where commands are apart from their agent; where both are in their group is the other one.
        self._apart = list(dict.fromkeys((self._roots["memory"], self._roots["cpu"])))
        freezer = self._roots["freezer"]
        self._together = freezer if freezer not in self._apart else None

    def _open_root(self, path: str) -> int:
        """Controllers that share a hierarchy share its directories."""
        fd = _open_parent(path)
        for tree in self._trees:
            if os.fstat(tree).st_dev == os.fstat(fd).st_dev:
                os.close(fd)
                return tree
        self._trees.append(fd)
        return fd

    def expect_joins(self) -> None:
        # The option can be given only when a hierarchy is made, but holds for all. So we make one, without controllers,
        # without a mount, and without groups; it goes when nobody holds it.
        with suppress(OSError):  # a kernel before 6.0
            self._favours = NewFilesystem("cgroup", ("none", "favordynmods"), name=PARENT)

    def create(self, name: str) -> None:
        for tree in self._trees:
            _make(tree, name, (COMMANDS,) if tree in (*self._apart, self._together) else ())

    def clone_into(self, name: str) -> int | None:
        return None

    def joins(self, name: str) -> list[int]:
        return [_open(tree, f"{self._group_of_agent(tree, name)}/cgroup.procs", os.O_WRONLY) for tree in self._trees]

    def _group_of_agent(self, tree: int, name: str) -> str:
        return f"{name}/{COMMANDS}" if tree == self._together else name

    def open_commands(self, name: str) -> list[int]:
        memory, cpu, freezer = (self._roots[controller] for controller in ("memory", "cpu", "freezer"))
        return [
            *(_open(tree, f"{name}/{COMMANDS}/cgroup.procs", os.O_WRONLY) for tree in (memory, cpu)),
            _open(freezer, f"{name}/{COMMANDS}/freezer.state", os.O_RDWR),
            _open(freezer, f"{name}/cgroup.procs", os.O_WRONLY),
            _open(freezer, f"{self._group_of_agent(freezer, name)}/cgroup.procs", os.O_WRONLY),
        ]

    def set_limits(self, name: str, resources: Resources) -> None:
        self._limit_memory(name, resources.memory + MEMORY_OF_AGENT)
        self._limit_memory(f"{name}/{COMMANDS}", resources.memory)
        self._limit_sockets(f"{name}/{COMMANDS}", resources.memory)
        _write(self._roots["pids"], f"{name}/pids.max", resources.pids)

    def limit_all(self, memory: int, pids: int, sockets: int) -> None:
        _write(self._roots["pids"], "pids.max", pids)
        with suppress(FileNotFoundError):
            _write(self._roots["memory"], SOCKETS, sockets)
        _write(self._roots["memory"], "memory.limit_in_bytes", memory)

    def socket_limit(self, name: str) -> int:
        group, memory = f"{name}/{COMMANDS}", self._roots["memory"]
        try:
            return int(_read(memory, f"{group}/{SOCKETS}"))
        except FileNotFoundError:
            return for_sockets(int(_read(memory, f"{group}/memory.limit_in_bytes")))

    def held_by_sockets(self, name: str) -> int:
        try:
            return int(_read(self._roots["memory"], f"{name}/{COMMANDS}/memory.kmem.tcp.usage_in_bytes"))
        except FileNotFoundError:
            return 0

    def kill_commands(self, name: str) -> None:
        self._kill(f"{name}/{COMMANDS}", [(tree, f"{name}/{COMMANDS}") for tree in self._apart])

    def change_limits(self, name: str, resources: Resources) -> None:
        before = int(_read(self._roots["memory"], f"{name}/{COMMANDS}/{LIMIT}"))
        try:
            self._move_limit(f"{name}/{COMMANDS}", resources.memory)
            self._move_limit(name, resources.memory + MEMORY_OF_AGENT)
        except OSError as cause:
            # The kernel takes back what it can, and refuses a limit that even then is too low.
            for group, limit in ((name, before + MEMORY_OF_AGENT), (f"{name}/{COMMANDS}", before)):
                self._move_limit(group, limit)
            if cause.errno != errno.EBUSY:
                raise
            used = int(_read(self._roots["memory"], f"{name}/{COMMANDS}/memory.usage_in_bytes"))
            raise MemoryInUse(used) from cause
        self._limit_sockets(f"{name}/{COMMANDS}", resources.memory)
        _write(self._roots["pids"], f"{name}/pids.max", resources.pids)
        self.set_cpus(name, resources.cpus)

    def _limit_memory(self, name: str, memory: int) -> None:
        _write(self._roots["memory"], f"{name}/{LIMIT}", memory)
        with suppress(FileNotFoundError):  # a kernel that does not account for swap
            _write(self._roots["memory"], f"{name}/{LIMIT_WITH_SWAP}", memory)

    def _move_limit(self, name: str, memory: int) -> None:
        """From another: that with swap is never the lower one of the two, so it goes up first and down last."""
        is_more = memory > int(_read(self._roots["memory"], f"{name}/{LIMIT}"))
        for file in (LIMIT_WITH_SWAP, LIMIT) if is_more else (LIMIT, LIMIT_WITH_SWAP):
            with suppress(FileNotFoundError):
                _write(self._roots["memory"], f"{name}/{file}", memory)

    def _limit_sockets(self, name: str, memory: int) -> None:
        with suppress(FileNotFoundError):  # a kernel that does not count them, of which the doctor tells
            of_all = int(_read(self._roots["memory"], SOCKETS))
            _write(self._roots["memory"], f"{name}/{SOCKETS}", for_sockets(memory, of_all))

    def set_cpus(self, name: str, cpus: float) -> None:
        _write(self._roots["cpu"], f"{name}/cpu.cfs_period_us", CPU_PERIOD_US)
        _write(self._roots["cpu"], f"{name}/cpu.cfs_quota_us", quota(cpus))

    def freeze(self, name: str) -> None:
        # Said again until it is so: the kernel tells each process once, and one that was just then in vfork misses it.
        for _ in range(FREEZE_ATTEMPTS):
            _write(self._roots["freezer"], f"{name}/freezer.state", "FROZEN")
            if _read(self._roots["freezer"], f"{name}/freezer.state").strip() == "FROZEN":
                return
            time.sleep(FREEZE_PAUSE_SECONDS)
        self.thaw(name)
        raise TimeoutError(f"{name} could not be frozen")

    def thaw(self, name: str) -> None:
        # An agent that was killed may have left its commands frozen, and nobody frozen dies.
        for group in (name, f"{name}/{COMMANDS}"):
            _write(self._roots["freezer"], f"{group}/freezer.state", "THAWED")

    def is_frozen(self, name: str) -> bool:
        return _read(self._roots["freezer"], f"{name}/freezer.state").strip() != "THAWED"

    def usage(self, name: str) -> Usage:
        memory = self._roots["memory"]
        return Usage(
            cpu_seconds=int(_read(self._roots["cpuacct"], f"{name}/cpuacct.usage")) / 1e9,
            memory=int(_read(memory, f"{name}/memory.usage_in_bytes")),
            processes=int(_read(self._roots["pids"], f"{name}/pids.current")),
            oom_kills=self.oom_kills(name),
        )

    def meters(self, name: str) -> tuple[int, int, int]:
        memory = _open(self._roots["memory"], f"{name}/{COMMANDS}/memory.stat", os.O_RDONLY)
        cpu = _open(self._roots["cpuacct"], f"{name}/cpuacct.stat", os.O_RDONLY)
        return memory, cpu, _open(self._roots["memory"], f"{name}/{COMMANDS}/{LIMIT}", os.O_RDONLY)

    def oom_kills(self, name: str) -> int:
        return sum(self._oom_kills(group) for group in (name, f"{name}/{COMMANDS}"))

    def _oom_kills(self, group: str) -> int:
        return parse_keyed(_read(self._roots["memory"], f"{group}/memory.oom_control")).get("oom_kill", 0)

    def open_channel(self) -> int:
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def announce(self, name: str, channel: int) -> None:
        memory = self._roots["memory"]
        group = f"{name}/{COMMANDS}"  # which is told also when the sandbox as a whole is full
        control = _open(memory, f"{group}/memory.oom_control", os.O_RDONLY)
        try:
            _write(memory, f"{group}/cgroup.event_control", f"{channel} {control}")
        finally:
            os.close(control)

    def kill(self, name: str) -> None:
        below = [(tree, f"{name}/{COMMANDS}") for tree in self._trees]
        self._kill(name, [*((tree, name) for tree in self._trees), *below])

    def _kill(self, name: str, groups: Iterable[tuple[int, str]]) -> None:
        with suppress(TimeoutError, FileNotFoundError):
            self.freeze(name)  # or they would multiply faster than they are counted
        for tree, group in groups:
            with suppress(FileNotFoundError):  # not every tree has one, and some may be removed already
                for pid in _read(tree, f"{group}/cgroup.procs").split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
        with suppress(FileNotFoundError):
            self.thaw(name)

    def names(self) -> list[str]:
        return sorted({name for tree in self._trees for name in _directories(tree)})

    def remove(self, name: str) -> bool:
        remaining = [tree for tree in self._trees if not _remove(tree, name)]
        return not remaining

    def close(self) -> None:
        self._roots.clear()
        while self._trees:
            os.close(self._trees.pop())


class CgroupsV2:
    """Version 2: a tree for all controllers."""

    freezing = command_group.V2

    def __init__(self, mount: str, controllers: tuple[str, ...] = V2_CONTROLLERS) -> None:
        self._root = _open_parent(f"{mount}/{PARENT}")
        self._has_memory = "memory" in controllers
        for controller in controllers:
            for level in (mount, f"{mount}/{PARENT}"):
                _enable(controller, level)
        with suppress(OSError):  # a kernel without it, or whoever looks after this tree keeps it
            for level in (mount, f"{mount}/{PARENT}"):
                _enable("io", level)  # then all sandboxes have the same weight when they wait for a disk

    def expect_joins(self) -> None:
        """Commands do. The option holds for version 2 as well, whichever hierarchy was made with it."""
        with suppress(OSError):
            self._favours = NewFilesystem("cgroup", ("none", "favordynmods"), name=PARENT)

    def create(self, name: str) -> None:
        _make(self._root, name, (AGENT, COMMANDS))
        if self._has_memory:
            _write(self._root, f"{name}/cgroup.subtree_control", "+memory +cpu")

    def clone_into(self, name: str) -> int | None:
        return _open(self._root, f"{name}/{AGENT}", os.O_RDONLY | os.O_DIRECTORY)

    def joins(self, name: str) -> list[int]:
        return []

    def open_commands(self, name: str) -> list[int]:
        files = {"cgroup.procs": os.O_WRONLY, "cgroup.freeze": os.O_WRONLY, "cgroup.events": os.O_RDONLY}
        return [_open(self._root, f"{name}/{COMMANDS}/{file}", flags) for file, flags in files.items()]

    def set_limits(self, name: str, resources: Resources) -> None:
        _write(self._root, f"{name}/memory.max", resources.memory + MEMORY_OF_AGENT)
        _write(self._root, f"{name}/{COMMANDS}/memory.max", resources.memory)
        with suppress(FileNotFoundError):
            _write(self._root, f"{name}/memory.swap.max", 0)
        _write(self._root, f"{name}/pids.max", resources.pids)

    def change_limits(self, name: str, resources: Resources) -> None:
        memory, commands = resources.memory, f"{name}/{COMMANDS}"
        before = _read(self._root, f"{commands}/memory.max").strip()
        if before == "max" or memory >= int(before):
            _write(self._root, f"{name}/memory.max", memory + MEMORY_OF_AGENT)
            _write(self._root, f"{commands}/memory.max", memory)
        else:
            self._lower_memory(commands, memory)
            _write(self._root, f"{name}/memory.max", memory + MEMORY_OF_AGENT)
        _write(self._root, f"{name}/pids.max", resources.pids)
        self.set_cpus(name, resources.cpus)

    def _lower_memory(self, group: str, memory: int) -> None:
        """A limit below what is in use would kill. What is high is taken back as far as it can be, and whoever wants
        more meanwhile is held up.
        """
        _write(self._root, f"{group}/memory.high", memory)
        try:
            used = int(_read(self._root, f"{group}/memory.current"))
            if used > memory:
                raise MemoryInUse(used)
            _write(self._root, f"{group}/memory.max", memory)
        finally:
            _write(self._root, f"{group}/memory.high", "max")

    def limit_all(self, memory: int, pids: int, sockets: int) -> None:
        _write(self._root, "pids.max", pids)
        _write(self._root, "memory.max", memory)

    def socket_limit(self, name: str) -> int:
        return for_sockets(int(_read(self._root, f"{name}/{COMMANDS}/memory.max")))

    def held_by_sockets(self, name: str) -> int:
        return 0  # what is counted is memory here

    def kill_commands(self, name: str) -> None:
        self.kill(f"{name}/{COMMANDS}")

    def set_cpus(self, name: str, cpus: float) -> None:
        _write(self._root, f"{name}/cpu.max", f"{quota(cpus)} {CPU_PERIOD_US}")

    def freeze(self, name: str) -> None:
        _write(self._root, f"{name}/cgroup.freeze", 1)
        for _ in range(FREEZE_ATTEMPTS):
            if parse_keyed(_read(self._root, f"{name}/cgroup.events")).get("frozen"):
                return
            time.sleep(FREEZE_PAUSE_SECONDS)
        self.thaw(name)
        raise TimeoutError(f"{name} could not be frozen")

    def thaw(self, name: str) -> None:
        _write(self._root, f"{name}/cgroup.freeze", 0)

    def is_frozen(self, name: str) -> bool:
        return _read(self._root, f"{name}/cgroup.freeze").strip() == "1"

    def usage(self, name: str) -> Usage:
        cpu = parse_keyed(_read(self._root, f"{name}/cpu.stat"))
        return Usage(
            cpu_seconds=cpu["usage_usec"] / 1e6,
            memory=int(_read(self._root, f"{name}/memory.current")),
            processes=int(_read(self._root, f"{name}/pids.current")),
            oom_kills=parse_keyed(_read(self._root, f"{name}/memory.events")).get("oom_kill", 0),
        )

    def meters(self, name: str) -> tuple[int, int, int]:
        memory = _open(self._root, f"{name}/{COMMANDS}/memory.stat", os.O_RDONLY)
        cpu = _open(self._root, f"{name}/cpu.stat", os.O_RDONLY)
        return memory, cpu, _open(self._root, f"{name}/{COMMANDS}/memory.max", os.O_RDONLY)

    def oom_kills(self, name: str) -> int:
        return parse_keyed(_read(self._root, f"{name}/memory.events")).get("oom_kill", 0)

    def open_channel(self) -> int:
        return open_watch()

    def announce(self, name: str, channel: int) -> None:
        group = f"/proc/self/fd/{self._root}/{name}"
        counts_memory = os.path.exists(f"{group}/memory.events")
        watch_file(channel, f"{group}/memory.events" if counts_memory else f"{group}/cgroup.events")

    def kill(self, name: str) -> None:
        with suppress(FileNotFoundError):
            _write(self._root, f"{name}/cgroup.kill", 1)

    def names(self) -> list[str]:
        return sorted(_directories(self._root))

    def remove(self, name: str) -> bool:
        return _remove(self._root, name)

    def close(self) -> None:
        fd, self._root = self._root, -1
        if fd >= 0:
            os.close(fd)


def _enable(controller: str, level: str) -> None:
    with open(f"{level}/cgroup.subtree_control", "w") as file:
        file.write(f"+{controller}")


def for_sockets(memory: int, of_all: int = sys.maxsize) -> int:
    """The bytes that may wait in the sockets of a sandbox with so much memory, where all together may have `of_all`."""
    return max(LEAST_FOR_SOCKETS, min(memory, of_all) // SHARE_OF_SOCKETS)


def quota(cpus: float) -> int:
    """Microseconds of cpu per period."""
    return max(MIN_CPU_QUOTA_US, round(cpus * CPU_PERIOD_US))


def parse_keyed(text: str) -> dict[str, int]:
    """Files of the form "name number" per line."""
    return {name: int(value) for name, value in (line.split() for line in text.splitlines()) if value.isdigit()}


def _open_parent(path: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(path)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open(tree: int, path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, dir_fd=tree)


def _directories(tree: int) -> list[str]:
    with os.scandir(tree) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _write(tree: int, path: str, value: int | str) -> None:
    with _opened(tree, path, os.O_WRONLY) as fd:
        os.write(fd, str(value).encode())


def _read(tree: int, path: str) -> str:
    with _opened(tree, path, os.O_RDONLY) as fd:
        return os.read(fd, 65_536).decode()


@contextmanager
def _opened(tree: int, path: str, flags: int) -> Iterator[int]:
    """A group may be removed before its file is opened, while it is, or after: always FileNotFoundError."""
    fd = -1
    try:
        fd = _open(tree, path, flags)
        yield fd
    except OSError as cause:
        if cause.errno == errno.ENODEV:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from cause
        raise
    finally:
        if fd >= 0:
            os.close(fd)


def _make(tree: int, name: str, below: Iterable[str]) -> None:
    try:
        os.mkdir(name, dir_fd=tree)
    except FileExistsError:  # left by a sandbox of ours that is gone: its range of ids was free
        if _remove(tree, name):  # with its limits, which could be in the way of others
            os.mkdir(name, dir_fd=tree)
    for group in below:
        with suppress(FileExistsError):
            os.mkdir(f"{name}/{group}", dir_fd=tree)


def _remove(tree: int, name: str) -> bool:
    """With those below."""
    remaining = [group for group in (AGENT, COMMANDS) if not _remove_one(tree, f"{name}/{group}")]
    return not remaining and _remove_one(tree, name)


def _remove_one(tree: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=tree)
    except FileNotFoundError:
        return True
    except OSError as cause:
        if cause.errno == errno.EBUSY:  # the last process leaves its group a moment after its end is seen
            return False
        raise
    return True
