"""Control groups of version 1: a tree per controller."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from atoll.agent.commands import group as command_group
from atoll.engine.base import Usage
from atoll.engine.native import group_files, group_limits
from atoll.engine.native.group_files import COMMANDS, FREEZE_ATTEMPTS, FREEZE_PAUSE_SECONDS, PARENT, parse_keyed
from atoll.engine.native.group_limits import CPU_PERIOD_US, MemoryInUse, Resources, for_sockets, quota
from atoll.engine.native.syscalls import NewFilesystem

CONTROLLERS = ("memory", "pids", "cpu", "cpuacct", "freezer")
LIMIT, LIMIT_WITH_SWAP = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
SOCKETS = "memory.kmem.tcp.limit_in_bytes"


class CgroupsV1:
    """Version 1: a tree per controller."""

    freezing = command_group.V1

    def __init__(self, mounts: dict[str, str]) -> None:
        self._trees: list[int] = []
        self._roots: dict[str, int] = {}
        for controller in CONTROLLERS:
            self._roots[controller] = self._open_root(f"{mounts[controller]}/{PARENT}")
        # Where commands are apart from their agent; where both are in their group is the other one.
        self._apart = list(dict.fromkeys((self._roots["memory"], self._roots["cpu"])))
        freezer = self._roots["freezer"]
        self._together = freezer if freezer not in self._apart else None

    def _open_root(self, path: str) -> int:
        """Controllers that share a hierarchy share its directories."""
        fd = group_files.open_parent(path)
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
            group_files.make(tree, name, (COMMANDS,) if tree in (*self._apart, self._together) else ())

    def clone_into(self, name: str) -> int | None:
        return None

    def joins(self, name: str) -> list[int]:
        return [
            group_files.open_file(tree, f"{self._group_of_agent(tree, name)}/cgroup.procs", os.O_WRONLY)
            for tree in self._trees
        ]

    def _group_of_agent(self, tree: int, name: str) -> str:
        return f"{name}/{COMMANDS}" if tree == self._together else name

    def open_commands(self, name: str) -> list[int]:
        memory, cpu, freezer = (self._roots[controller] for controller in ("memory", "cpu", "freezer"))
        return [
            *(group_files.open_file(tree, f"{name}/{COMMANDS}/cgroup.procs", os.O_WRONLY) for tree in (memory, cpu)),
            group_files.open_file(freezer, f"{name}/{COMMANDS}/freezer.state", os.O_RDWR),
            group_files.open_file(freezer, f"{name}/cgroup.procs", os.O_WRONLY),
            group_files.open_file(freezer, f"{self._group_of_agent(freezer, name)}/cgroup.procs", os.O_WRONLY),
        ]

    def set_limits(self, name: str, resources: Resources) -> None:
        self._limit_memory(name, resources.memory + group_limits.MEMORY_OF_AGENT)
        self._limit_memory(f"{name}/{COMMANDS}", resources.memory)
        self._limit_sockets(f"{name}/{COMMANDS}", resources.memory)
        group_files.write(self._roots["pids"], f"{name}/pids.max", resources.pids)

    def limit_all(self, memory: int, pids: int, sockets: int) -> None:
        group_files.write(self._roots["pids"], "pids.max", pids)
        with suppress(FileNotFoundError):
            group_files.write(self._roots["memory"], SOCKETS, sockets)
        group_files.write(self._roots["memory"], "memory.limit_in_bytes", memory)

    def socket_limit(self, name: str) -> int:
        group, memory = f"{name}/{COMMANDS}", self._roots["memory"]
        try:
            return int(group_files.read(memory, f"{group}/{SOCKETS}"))
        except FileNotFoundError:
            return for_sockets(int(group_files.read(memory, f"{group}/memory.limit_in_bytes")))

    def held_by_sockets(self, name: str) -> int:
        try:
            return int(group_files.read(self._roots["memory"], f"{name}/{COMMANDS}/memory.kmem.tcp.usage_in_bytes"))
        except FileNotFoundError:
            return 0

    def kill_commands(self, name: str) -> None:
        self._kill(f"{name}/{COMMANDS}", [(tree, f"{name}/{COMMANDS}") for tree in self._apart])

    def change_limits(self, name: str, resources: Resources) -> None:
        before = int(group_files.read(self._roots["memory"], f"{name}/{COMMANDS}/{LIMIT}"))
        try:
            self._move_limit(f"{name}/{COMMANDS}", resources.memory)
            self._move_limit(name, resources.memory + group_limits.MEMORY_OF_AGENT)
        except OSError as cause:
            # The kernel takes back what it can, and refuses a limit that even then is too low.
            for group, limit in ((name, before + group_limits.MEMORY_OF_AGENT), (f"{name}/{COMMANDS}", before)):
                self._move_limit(group, limit)
            if cause.errno != errno.EBUSY:
                raise
            used = int(group_files.read(self._roots["memory"], f"{name}/{COMMANDS}/memory.usage_in_bytes"))
            raise MemoryInUse(used) from cause
        self._limit_sockets(f"{name}/{COMMANDS}", resources.memory)
        group_files.write(self._roots["pids"], f"{name}/pids.max", resources.pids)
        self.set_cpus(name, resources.cpus)

    def _limit_memory(self, name: str, memory: int) -> None:
        group_files.write(self._roots["memory"], f"{name}/{LIMIT}", memory)
        with suppress(FileNotFoundError):  # a kernel that does not account for swap
            group_files.write(self._roots["memory"], f"{name}/{LIMIT_WITH_SWAP}", memory)

    def _move_limit(self, name: str, memory: int) -> None:
        """From another: that with swap is never the lower one of the two, so it goes up first and down last."""
        is_more = memory > int(group_files.read(self._roots["memory"], f"{name}/{LIMIT}"))
        for file in (LIMIT_WITH_SWAP, LIMIT) if is_more else (LIMIT, LIMIT_WITH_SWAP):
            with suppress(FileNotFoundError):
                group_files.write(self._roots["memory"], f"{name}/{file}", memory)

    def _limit_sockets(self, name: str, memory: int) -> None:
        with suppress(FileNotFoundError):  # a kernel that does not count them, of which the doctor tells
            of_all = int(group_files.read(self._roots["memory"], SOCKETS))
            group_files.write(self._roots["memory"], f"{name}/{SOCKETS}", for_sockets(memory, of_all))

    def set_cpus(self, name: str, cpus: float) -> None:
        group_files.write(self._roots["cpu"], f"{name}/cpu.cfs_period_us", CPU_PERIOD_US)
        group_files.write(self._roots["cpu"], f"{name}/cpu.cfs_quota_us", quota(cpus))

    def freeze(self, name: str) -> None:
        # Said again until it is so: the kernel tells each process once, and one that was just then in vfork misses it.
        for _ in range(FREEZE_ATTEMPTS):
            group_files.write(self._roots["freezer"], f"{name}/freezer.state", "FROZEN")
            if group_files.read(self._roots["freezer"], f"{name}/freezer.state").strip() == "FROZEN":
                return
            time.sleep(FREEZE_PAUSE_SECONDS)
        self.thaw(name)
        raise TimeoutError(f"{name} could not be frozen")

    def thaw(self, name: str) -> None:
        # An agent that was killed may have left its commands frozen, and nobody frozen dies.
        for group in (name, f"{name}/{COMMANDS}"):
            group_files.write(self._roots["freezer"], f"{group}/freezer.state", "THAWED")

    def is_frozen(self, name: str) -> bool:
        return group_files.read(self._roots["freezer"], f"{name}/freezer.state").strip() != "THAWED"

    def memory_used(self) -> int:
        return int(group_files.read(self._roots["memory"], "memory.usage_in_bytes"))

    def usage(self, name: str) -> Usage:
        memory = self._roots["memory"]
        return Usage(
            cpu_seconds=int(group_files.read(self._roots["cpuacct"], f"{name}/cpuacct.usage")) / 1e9,
            memory=int(group_files.read(memory, f"{name}/memory.usage_in_bytes")),
            processes=int(group_files.read(self._roots["pids"], f"{name}/pids.current")),
            oom_kills=self.oom_kills(name),
        )

    def meters(self, name: str) -> tuple[int, int, int]:
        memory = group_files.open_file(self._roots["memory"], f"{name}/{COMMANDS}/memory.stat", os.O_RDONLY)
        cpu = group_files.open_file(self._roots["cpuacct"], f"{name}/cpuacct.stat", os.O_RDONLY)
        return memory, cpu, group_files.open_file(self._roots["memory"], f"{name}/{COMMANDS}/{LIMIT}", os.O_RDONLY)

    def oom_kills(self, name: str) -> int:
        return sum(self._oom_kills(group) for group in (name, f"{name}/{COMMANDS}"))

    def _oom_kills(self, group: str) -> int:
        return parse_keyed(group_files.read(self._roots["memory"], f"{group}/memory.oom_control")).get("oom_kill", 0)

    def open_channel(self) -> int:
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def announce(self, name: str, channel: int) -> None:
        memory = self._roots["memory"]
        group = f"{name}/{COMMANDS}"  # which is told also when the sandbox as a whole is full
        control = group_files.open_file(memory, f"{group}/memory.oom_control", os.O_RDONLY)
        try:
            group_files.write(memory, f"{group}/cgroup.event_control", f"{channel} {control}")
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
                for pid in group_files.read(tree, f"{group}/cgroup.procs").split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
        with suppress(FileNotFoundError):
            self.thaw(name)

    def names(self) -> list[str]:
        return sorted({name for tree in self._trees for name in group_files.directories(tree)})

    def remove(self, name: str) -> bool:
        remaining = [tree for tree in self._trees if not group_files.remove(tree, name)]
        return not remaining

    def close(self) -> None:
        self._roots.clear()
        while self._trees:
            os.close(self._trees.pop())
