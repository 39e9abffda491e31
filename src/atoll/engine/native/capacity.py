"""Capacity: how many sandboxes a machine has room for, by the kernel's numbers.

What a sandbox uses of namespaces and inotify is counted for the user who made it, and the zygote makes each as a user
of its own: those numbers are for one sandbox. Processes and memory are the whole machine's.
"""

from __future__ import annotations

import resource
from functools import partial

from atoll.engine.native.mounts import MAX_PTYS
from atoll.protocol.limits import Limits, format_size
from atoll.telemetry.findings import Area, Check, Outcome, missing, ok, warning

FEW_NAMESPACES = 8
FEW_PROCESSES = 65_536
FEW_FILES = 4_096
FEW_WATCHERS = 64
FEW_WATCHES = 8_192
FEW_PTYS = 16_384
FILE_MAX = "fs.file-max"
MANY_FILES, MOST_FILES = 2**31, 2**63 - 1
LITTLE_FOR_FILTERS = 64 * 2**20
LITTLE_MEMORY = 512 * 2**20
KINDS = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


def checks() -> list[Check]:
    return [
        Check(Area.CAPACITY, "memory", check_memory),
        Check(Area.CAPACITY, "processes", check_processes),
        Check(Area.CAPACITY, "open files", partial(judge_files, resource.getrlimit(resource.RLIMIT_NOFILE))),
        Check(Area.CAPACITY, "inotify", check_inotify),
        Check(Area.CAPACITY, "terminals", lambda: judge_ptys(read_setting("kernel.pty.max") or 0)),
        Check(Area.CAPACITY, "all open files", lambda: judge_all_files(read_setting(FILE_MAX) or 0)),
        Check(Area.CAPACITY, "filter memory", lambda: judge_filters(read_setting("net.core.bpf_jit_limit"))),
    ]


def check_namespaces() -> Outcome:
    found = {f"user.max_{kind}_namespaces": read_setting(f"user.max_{kind}_namespaces") for kind in KINDS}
    return judge_namespaces({name: number for name, number in found.items() if number is not None})


def check_memory() -> Outcome:
    with open("/proc/meminfo") as file:
        return judge_memory(file.read())


def check_processes() -> Outcome:
    return judge_processes(read_setting("kernel.pid_max") or 0, read_setting("kernel.threads-max") or 0)


def check_inotify() -> Outcome:
    instances, watches = (read_setting(f"fs.inotify.max_user_{name}") for name in ("instances", "watches"))
    if instances is None or watches is None:
        return warning("the kernel has none", "Boot a kernel built with CONFIG_INOTIFY_USER; file watchers need it.")
    return judge_inotify(instances, watches)


def judge_namespaces(limits: dict[str, int]) -> Outcome:
    if not limits:
        return missing("the kernel has no user namespaces", "Boot a kernel built with CONFIG_USER_NS.")
    name, least = min(limits.items(), key=lambda item: item[1])
    remedy = f"Raise it: `sysctl -w {name}=65536`; a file in /etc/sysctl.d keeps it."
    if least == 0:
        return missing(f"{name} is 0", remedy)
    if least < FEW_NAMESPACES:
        return warning(f"{name} is {least:,} for each sandbox, which barely needs one", remedy)
    return ok(f"{least:,} for each sandbox")


def judge_memory(meminfo: str) -> Outcome:
    sizes = {name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":") for line in meminfo.splitlines())}
    total, available = sizes["MemTotal"], sizes["MemAvailable"]
    found = f"{format_size(total)}, of which {format_size(available)} available"
    if available < LITTLE_MEMORY:
        return warning(found, "Free some; an idle sandbox takes 4 MB, a busy one what its limit allows.")
    return ok(found)


def judge_processes(pid_max: int, threads_max: int) -> Outcome:
    name, least = min(("kernel.pid_max", pid_max), ("kernel.threads-max", threads_max), key=lambda item: item[1])
    each = Limits().pids
    if least < FEW_PROCESSES:
        return warning(
            f"{name} is {least:,}: {least // each} sandboxes at their default limit of {each:,} use all of them",
            f"Raise it: `sysctl -w {name}=4194304`; a file in /etc/sysctl.d keeps it.",
        )
    return ok(f"{least:,} on the whole machine")


def judge_files(limit: tuple[int, int]) -> Outcome:
    soft = limit[0]
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        return warning(
            f"{soft:,} for a process; a server holds some for each sandbox",
            "Raise it: `ulimit -n 65536`, or LimitNOFILE=65536 in the unit of a service.",
        )
    return ok("no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} for a process")


def judge_ptys(most: int) -> Outcome:
    if most < FEW_PTYS:
        return warning(
            f"kernel.pty.max is {most:,}: {most // MAX_PTYS} sandboxes that open as many as they may use all of them",
            "Raise it: `sysctl -w kernel.pty.max=65536`; a file in /etc/sysctl.d keeps it.",
        )
    return ok(f"{most:,} on the whole machine, {MAX_PTYS} for each sandbox")


def judge_all_files(most: int) -> Outcome:
    if most < MANY_FILES:
        return warning(
            f"{FILE_MAX} is {most:,} on the whole machine; one sandbox with many processes can open as many",
            "A server raises it when it starts, unless it has --keep-file-max. By hand: "
            f"`sysctl -w {FILE_MAX}={MOST_FILES}`; a file in /etc/sysctl.d keeps it.",
        )
    return ok("no limit that could be reached")


def judge_filters(most: int | None) -> Outcome:
    if most is not None and most < LITTLE_FOR_FILTERS:
        return warning(
            f"net.core.bpf_jit_limit is {format_size(most)}; each sandbox has a filter there",
            f"Raise it: `sysctl -w net.core.bpf_jit_limit={4 * LITTLE_FOR_FILTERS}`; a file in /etc/sysctl.d keeps it.",
        )
    return ok("none" if most is None else format_size(most))


def judge_inotify(instances: int, watches: int) -> Outcome:
    found = f"{instances:,} watchers with {watches:,} files, for each sandbox"
    low = {}
    if instances < FEW_WATCHERS:
        low["fs.inotify.max_user_instances"] = 8_192
    if watches < FEW_WATCHES:
        low["fs.inotify.max_user_watches"] = 524_288
    if low:
        settings = " ".join(f"{name}={number}" for name, number in low.items())
        return warning(found, f"Raise it: `sysctl -w {settings}`; a file in /etc/sysctl.d keeps it.")
    return ok(found)


def read_setting(name: str) -> int | None:
    """A number that sysctl knows, or None if this kernel does not."""
    try:
        with open(f"/proc/sys/{name.replace('.', '/')}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
