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

from typing import Protocol

import msgspec

from atoll.agent.commands import group as command_group
from atoll.engine.base import Usage
from atoll.engine.native import cgroups_v1, cgroups_v2
from atoll.engine.native.cgroups_v1 import CgroupsV1
from atoll.engine.native.cgroups_v2 import CgroupsV2
from atoll.engine.native.group_limits import Resources


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
    def memory_used(self) -> int:
        """Bytes that all sandboxes of this machine use together."""
        ...

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
                if option in cgroups_v1.CONTROLLERS:
                    v1.setdefault(option, target)
    return Hierarchies(v1, v2)


def open_cgroups() -> Cgroups | None:
    """Version 2 if its controllers are free, else version 1 if it is mounted, else none."""
    with open("/proc/mounts") as file:
        found = parse_mounts(file.read())
    if found.v2:
        with open(f"{found.v2}/cgroup.controllers") as file:
            if set(cgroups_v2.CONTROLLERS) <= set(file.read().split()):
                return CgroupsV2(found.v2)
    if set(cgroups_v1.CONTROLLERS) <= set(found.v1):
        return CgroupsV1(found.v1)
    return None
