"""Control groups of version 2: a tree for all controllers."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from atoll.agent.commands import group as command_group
from atoll.engine.base import Usage
from atoll.engine.native import group_files, group_limits
from atoll.engine.native.group_files import AGENT, COMMANDS, FREEZE_ATTEMPTS, FREEZE_PAUSE_SECONDS, PARENT, parse_keyed
from atoll.engine.native.group_limits import CPU_PERIOD_US, MemoryInUse, Resources, for_sockets, quota
from atoll.engine.native.syscalls import NewFilesystem, open_watch, watch_file

CONTROLLERS = ("memory", "pids", "cpu")


class CgroupsV2:
    """Version 2: a tree for all controllers."""

    freezing = command_group.V2

    def __init__(self, mount: str, controllers: tuple[str, ...] = CONTROLLERS) -> None:
        self._root = group_files.open_parent(f"{mount}/{PARENT}")
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
        group_files.make(self._root, name, (AGENT, COMMANDS))
        if self._has_memory:
            group_files.write(self._root, f"{name}/cgroup.subtree_control", "+memory +cpu")

    def clone_into(self, name: str) -> int | None:
        return group_files.open_file(self._root, f"{name}/{AGENT}", os.O_RDONLY | os.O_DIRECTORY)

    def joins(self, name: str) -> list[int]:
        return []

    def open_commands(self, name: str) -> list[int]:
        files = {"cgroup.procs": os.O_WRONLY, "cgroup.freeze": os.O_WRONLY, "cgroup.events": os.O_RDONLY}
        return [group_files.open_file(self._root, f"{name}/{COMMANDS}/{file}", flags) for file, flags in files.items()]

    def set_limits(self, name: str, resources: Resources) -> None:
        group_files.write(self._root, f"{name}/memory.max", resources.memory + group_limits.MEMORY_OF_AGENT)
        group_files.write(self._root, f"{name}/{COMMANDS}/memory.max", resources.memory)
        with suppress(FileNotFoundError):
            group_files.write(self._root, f"{name}/memory.swap.max", 0)
        group_files.write(self._root, f"{name}/pids.max", resources.pids)

    def change_limits(self, name: str, resources: Resources) -> None:
        memory, commands = resources.memory, f"{name}/{COMMANDS}"
        before = group_files.read(self._root, f"{commands}/memory.max").strip()
        if before == "max" or memory >= int(before):
            group_files.write(self._root, f"{name}/memory.max", memory + group_limits.MEMORY_OF_AGENT)
            group_files.write(self._root, f"{commands}/memory.max", memory)
        else:
            self._lower_memory(commands, memory)
            group_files.write(self._root, f"{name}/memory.max", memory + group_limits.MEMORY_OF_AGENT)
        group_files.write(self._root, f"{name}/pids.max", resources.pids)
        self.set_cpus(name, resources.cpus)

    def _lower_memory(self, group: str, memory: int) -> None:
        """A limit below what is in use would kill. What is high is taken back as far as it can be, and whoever wants
        more meanwhile is held up.
        """
        group_files.write(self._root, f"{group}/memory.high", memory)
        try:
            used = int(group_files.read(self._root, f"{group}/memory.current"))
            if used > memory:
                raise MemoryInUse(used)
            group_files.write(self._root, f"{group}/memory.max", memory)
        finally:
            group_files.write(self._root, f"{group}/memory.high", "max")

    def limit_all(self, memory: int, pids: int, sockets: int) -> None:
        group_files.write(self._root, "pids.max", pids)
        group_files.write(self._root, "memory.max", memory)

    def socket_limit(self, name: str) -> int:
        return for_sockets(int(group_files.read(self._root, f"{name}/{COMMANDS}/memory.max")))

    def held_by_sockets(self, name: str) -> int:
        return 0  # what is counted is memory here

    def kill_commands(self, name: str) -> None:
        self.kill(f"{name}/{COMMANDS}")

    def set_cpus(self, name: str, cpus: float) -> None:
        group_files.write(self._root, f"{name}/cpu.max", f"{quota(cpus)} {CPU_PERIOD_US}")

    def freeze(self, name: str) -> None:
        group_files.write(self._root, f"{name}/cgroup.freeze", 1)
        for _ in range(FREEZE_ATTEMPTS):
            if parse_keyed(group_files.read(self._root, f"{name}/cgroup.events")).get("frozen"):
                return
            time.sleep(FREEZE_PAUSE_SECONDS)
        self.thaw(name)
        raise TimeoutError(f"{name} could not be frozen")

    def thaw(self, name: str) -> None:
        group_files.write(self._root, f"{name}/cgroup.freeze", 0)

    def is_frozen(self, name: str) -> bool:
        return group_files.read(self._root, f"{name}/cgroup.freeze").strip() == "1"

    def memory_used(self) -> int:
        return int(group_files.read(self._root, "memory.current"))

    def usage(self, name: str) -> Usage:
        cpu = parse_keyed(group_files.read(self._root, f"{name}/cpu.stat"))
        return Usage(
            cpu_seconds=cpu["usage_usec"] / 1e6,
            memory=int(group_files.read(self._root, f"{name}/memory.current")),
            processes=int(group_files.read(self._root, f"{name}/pids.current")),
            oom_kills=parse_keyed(group_files.read(self._root, f"{name}/memory.events")).get("oom_kill", 0),
        )

    def meters(self, name: str) -> tuple[int, int, int]:
        memory = group_files.open_file(self._root, f"{name}/{COMMANDS}/memory.stat", os.O_RDONLY)
        cpu = group_files.open_file(self._root, f"{name}/cpu.stat", os.O_RDONLY)
        return memory, cpu, group_files.open_file(self._root, f"{name}/{COMMANDS}/memory.max", os.O_RDONLY)

    def oom_kills(self, name: str) -> int:
        return parse_keyed(group_files.read(self._root, f"{name}/memory.events")).get("oom_kill", 0)

    def open_channel(self) -> int:
        return open_watch()

    def announce(self, name: str, channel: int) -> None:
        group = f"/proc/self/fd/{self._root}/{name}"
        counts_memory = os.path.exists(f"{group}/memory.events")
        watch_file(channel, f"{group}/memory.events" if counts_memory else f"{group}/cgroup.events")

    def kill(self, name: str) -> None:
        with suppress(FileNotFoundError):
            group_files.write(self._root, f"{name}/cgroup.kill", 1)

    def names(self) -> list[str]:
        return sorted(group_files.directories(self._root))

    def remove(self, name: str) -> bool:
        return group_files.remove(self._root, name)

    def close(self) -> None:
        fd, self._root = self._root, -1
        if fd >= 0:
            os.close(fd)


def _enable(controller: str, level: str) -> None:
    with open(f"{level}/cgroup.subtree_control", "w") as file:
        file.write(f"+{controller}")
