"""A nursery that makes sandboxes without some of their defences. Only tests start it, as

    python -I tests/hostile/weakened_nursery.py --without filter,capabilities FD

Each switch takes away one defence and leaves every other in place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from atoll.agent import main as agent
from atoll.agent import server
from atoll.agent.commands import guard
from atoll.agent.commands import runner as commands
from atoll.agent.commands.group import CommandGroup
from atoll.attacks.record import Defence
from atoll.engine.native import capabilities, clocks, group_limits, launcher, mounts, nursery, syscalls, views
from atoll.engine.native.cgroups_v1 import CgroupsV1
from atoll.engine.native.cgroups_v2 import CgroupsV2
from atoll.engine.native.seccomp import SeccompFilter
from atoll.engine.native.syscalls import MountAttribute, MountFlag, Namespace, Prctl
from atoll.engine.native.uid_ranges import FIRST_BASE, RANGE_SIZE, RANGES
from atoll.engine.native.zygote import Zygote

SHARED_RANGE = FIRST_BASE + RANGES * RANGE_SIZE  # one that is never handed out


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper` in the place of a function, which it gets as its first argument."""
    setattr(owner, name, partial(wrapper, getattr(owner, name)))


def without_filter() -> None:
    replace_method(SeccompFilter, "install", lambda real, self: None)


def without_capabilities_dropped() -> None:
    capabilities.bound = lambda: None
    capabilities.drop_the_rest = partial(syscalls.prctl, Prctl.SET_NO_NEW_PRIVS, 1)


def without_no_new_privileges() -> None:
    """The filter then takes CAP_SYS_ADMIN to install, so it comes before the capabilities go."""
    shipped = SeccompFilter.shipped()
    install = SeccompFilter.install

    def drop_after_filter(drop: Callable[[], None]) -> None:
        install(shipped)
        drop()

    wrap(capabilities, "prctl", lambda real, option, value: option == Prctl.SET_NO_NEW_PRIVS or real(option, value))
    wrap(capabilities, "drop_the_rest", drop_after_filter)
    without_filter()


def without_user_namespace() -> None:
    """Root inside is root outside."""
    without_namespace(Namespace.USER)
    without_namespace_owner()
    wrap(launcher, "_write", lambda real, path, *rest: path.endswith("_map") or real(path, *rest))
    mounts.idmap = lambda tree, userns, attributes: syscalls.mount_setattr(tree, attributes)


def without_pid_namespace() -> None:
    """The agent can then no longer tell who is outside."""
    without_namespace(Namespace.PID)
    wrap(agent, "Agent", lambda real, **options: real(admits=lambda peer: True))


def without_network_namespace() -> None:
    without_namespace(Namespace.NET)
    launcher._set_up_network = lambda: None


def without_no_ping() -> None:
    def let_everybody_ping(set_up: Callable[[], None]) -> None:
        set_up()
        launcher._write("/proc/sys/net/ipv4/ping_group_range", f"0 {RANGE_SIZE - 1}")

    wrap(launcher, "_set_up_network", let_everybody_ping)


def without_namespace(kind: Namespace) -> None:
    launcher.NAMESPACES &= ~kind
    wrap(syscalls, "mount", mount_or_bind)


# File systems that the kernel mounts only for whoever has a namespace of the kind they show.
NURSERYS_OWN = {"proc": "/proc", "sysfs": "/sys", "mqueue": "/empty"}


def mount_or_bind(real: Callable[..., None], source: str, target: str, kind: str | None, *rest: Any) -> None:
    try:
        real(source, target, kind, *rest)
    except PermissionError:
        if kind not in NURSERYS_OWN:
            raise
        real(NURSERYS_OWN[kind], target, None, MountFlag.BIND | MountFlag.RECURSIVE)


def without_uid_range() -> None:
    def write_shared(real: Callable[..., None], path: str, text: str, *rest: Any) -> None:
        real(path, f"0 {SHARED_RANGE} {RANGE_SIZE}" if path.endswith("_map") else text, *rest)

    wrap(launcher, "_write", write_shared)


def without_namespace_owner() -> None:
    replace_method(Zygote, "clone", lambda real, self, uid, *rest: real(self, 0, *rest))


def without_old_root_detached() -> None:
    """What a sandbox leaves by pivot_root stays mounted over its root, and ".." leads there."""
    wrap(mounts, "enter_root", keep_old_root)


def without_small_root() -> None:
    """Over the nursery's root there is still the host's. In such a place the kernel makes no user namespaces."""
    wrap(mounts, "enter_small_root", keep_old_root)
    without_user_namespace()


def keep_old_root(enter: Callable[..., None], *rest: Any) -> None:
    detach = syscalls.detach
    wrap(syscalls, "detach", lambda real, target: target == "." or real(target))
    enter(*rest)
    syscalls.detach = detach


def without_hidden_paths() -> None:
    flags = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC | MountFlag.READ_ONLY
    replace_method(views.Views, "show", lambda real, self: syscalls.mount("sysfs", "sys", "sysfs", flags))


def without_own_clocks() -> None:
    clocks.start_clocks = lambda: None


def without_read_only_paths() -> None:
    vars(views).update(READ_ONLY=())


def without_mount_flag(flag: MountFlag) -> None:
    wrap(
        syscalls,
        "mount",
        lambda real, source, target, kind, flags, *rest: real(source, target, kind, flags & ~flag, *rest),
    )


def without_own_dev() -> None:
    flags = MountAttribute.READ_ONLY | MountAttribute.NOEXEC
    mounts.make_dev = lambda userns: mounts.open_idmapped("/dev", userns, flags)


def without_agent_undumpable() -> None:
    wrap(agent, "_set_dumpable", lambda real, value: real(True))


def without_agent_ids() -> None:
    launcher._OF_NO_ACCOUNT = 0


def without_agent_id_unused() -> None:
    """It is that of `nobody`."""
    launcher._OF_NO_ACCOUNT = 65_534


def without_agent_socket_outside() -> None:
    """Sandboxes see the directory of the agents' sockets, and may connect to them."""

    def enter_root(real: Callable[..., None], overlays: Any) -> None:
        tree = syscalls.open_tree(launcher.SOCKETS)
        real(overlays)
        os.mkdir(launcher.SOCKETS)
        syscalls.move_mount(tree, launcher.SOCKETS)

    def hatch(real: Callable[..., None], embryo: launcher.Embryo, *rest: Any) -> None:
        os.chmod(launcher.SOCKETS, 0o755)
        os.chmod(f"{launcher.SOCKETS}/{embryo.socket_name}", 0o666)
        real(embryo, *rest)

    wrap(mounts, "enter_root", enter_root)
    wrap(launcher, "hatch", hatch)


def without_spawn_guard() -> None:
    replace_method(guard.SpawnGuard, "arm", lambda real, self: None)


def without_back_pressure() -> None:
    server.UNSENT_BYTES = 2**30


def without_oom_order() -> None:
    commands.MOST_OOM_SCORE = launcher.OOM_SCORE


def without_commands_group() -> None:
    """Everybody is where the agent is, and so is the limit."""
    group_limits.MEMORY_OF_AGENT = 0
    replace_method(CommandGroup, "open", lambda real, self, words, fds: None)


def without_limit(**unlimited: int) -> None:
    replace_cgroup_method(
        "set_limits",
        lambda real, self, name, resources: real(self, name, msgspec.structs.replace(resources, **unlimited)),
    )


def without_socket_limit() -> None:
    replace_method(CgroupsV1, "_limit_sockets", lambda real, self, name, memory: None)


def without_pty_limit() -> None:
    mounts.MAX_PTYS = 1024


def without_cpu_limit() -> None:
    replace_cgroup_method("set_cpus", lambda real, self, name, cpus: real(self, name, 4096))


def replace_cgroup_method(name: str, method: Callable[..., Any]) -> None:
    for version in (CgroupsV1, CgroupsV2):
        replace_method(version, name, method)


def replace_method(owner: type, name: str, method: Callable[..., Any]) -> None:
    """As `wrap`, for a method: a partial would not be bound to its object."""
    real = getattr(owner, name)
    setattr(owner, name, lambda self, *rest: method(real, self, *rest))


SWITCHES: dict[Defence, Callable[[], None]] = {
    Defence.FILTER: without_filter,
    Defence.CAPABILITIES: without_capabilities_dropped,
    Defence.NO_NEW_PRIVILEGES: without_no_new_privileges,
    Defence.NO_SET_USER_ID: partial(without_mount_flag, MountFlag.NOSUID),
    Defence.USER_NAMESPACE: without_user_namespace,
    Defence.PID_NAMESPACE: without_pid_namespace,
    Defence.NETWORK_NAMESPACE: without_network_namespace,
    Defence.IPC_NAMESPACE: partial(without_namespace, Namespace.IPC),
    Defence.UID_RANGE: without_uid_range,
    Defence.NAMESPACE_OWNER: without_namespace_owner,
    Defence.OLD_ROOT_DETACHED: without_old_root_detached,
    Defence.SMALL_ROOT: without_small_root,
    Defence.HIDDEN_PATHS: without_hidden_paths,
    Defence.OWN_CLOCKS: without_own_clocks,
    Defence.READ_ONLY_PATHS: without_read_only_paths,
    Defence.NO_DEVICES: partial(without_mount_flag, MountFlag.NODEV),
    Defence.OWN_DEV: without_own_dev,
    Defence.AGENT_UNDUMPABLE: without_agent_undumpable,
    Defence.AGENT_IDS: without_agent_ids,
    Defence.AGENT_ID_UNUSED: without_agent_id_unused,
    Defence.AGENT_SOCKET_OUTSIDE: without_agent_socket_outside,
    Defence.SPAWN_GUARD: without_spawn_guard,
    Defence.BACK_PRESSURE: without_back_pressure,
    Defence.OOM_ORDER: without_oom_order,
    Defence.COMMANDS_GROUP: without_commands_group,
    Defence.PIDS_LIMIT: partial(without_limit, pids=4096),
    Defence.MEMORY_LIMIT: partial(without_limit, memory=2**30),
    Defence.SOCKET_LIMIT: without_socket_limit,
    Defence.NO_PING: without_no_ping,
    Defence.PTY_LIMIT: without_pty_limit,
    Defence.CPU_LIMIT: without_cpu_limit,
}


def main() -> None:
    for name in filter(None, sys.argv[2].split(",")):
        SWITCHES[Defence(name)]()
    nursery.main()


if __name__ == "__main__":
    main()
