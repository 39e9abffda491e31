"""Examination of a machine for the native engine, by trying: namespaces, mounts, the filter, user ids.

Everything is tried in a child (probe_child.py), so that nothing of it remains. The trials are the steps of launcher.py
on their own, so that the one that fails can be named.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import tempfile
from functools import partial

from atoll.cpu.own import CPUS, OWN
from atoll.engine.native import capacity, group_examination, mounts, preflight, syscalls
from atoll.engine.native.probe_child import Inside, ProbeFailed, mapped_child, probe_child
from atoll.engine.native.seccomp import FILTER, SeccompFilter
from atoll.engine.native.syscalls import MountAttribute, MountFlag, Namespace, Prctl
from atoll.engine.native.uid_ranges import LOCK_FILE, RANGE_SIZE, UidRanges
from atoll.telemetry.findings import FREE_SPACE, Area, Check, Outcome, missing, ok, unknown

KINDS = {
    "user": Namespace.USER,
    "mnt": Namespace.MOUNT,
    "pid": Namespace.PID,
    "net": Namespace.NET,
    "ipc": Namespace.IPC,
    "uts": Namespace.UTS,
    "cgroup": Namespace.CGROUP,
}
# Settings that forbid user namespaces, and the value at which they do not.
OVERLAY_BYTES, OVERLAY_FILES = 64 * 2**10, 16
RESTRICTIONS = {
    "kernel.unprivileged_userns_clone": "1",
    "kernel.apparmor_restrict_unprivileged_userns": "0",
}
ALL_USER_IDS = ["0", "0", str(2**32 - 1)]  # the map of those who are in no user namespace but the first
_IN_CONTAINER = "If this is a container, run Atoll on the machine itself, or in a virtual machine."
_STAGE = "/tmp"  # somewhere that exists and that everyone may enter; covered only in the child's own mount namespace


def checks(ground: str) -> list[Check]:
    """`ground` is the directory in which the state directory is, or would be made."""
    idmap = {"idmap of /usr": "/usr", "idmap of the state": ground}
    machine = [
        Check(Area.MACHINE, "root", check_root),
        Check(Area.MACHINE, "system", partial(check_system, platform.system(), platform.machine())),
        Check(Area.MACHINE, "kernel", lambda: ok(preflight.check_kernel(platform.release()))),
    ]
    if OWN.name not in CPUS:  # nothing can be tried without the numbers of its system calls
        return machine
    return [
        *machine,
        Check(Area.ISOLATION, "namespaces", check_namespaces),
        Check(Area.ISOLATION, "namespace limits", capacity.check_namespaces),
        Check(Area.ISOLATION, "user ids", check_uid_ranges, needs_root=True),
        *(Check(Area.ISOLATION, name, partial(check_idmap, path), needs_root=True) for name, path in idmap.items()),
        Check(Area.ISOLATION, "mounts inside", partial(check_mounts, ground), needs_root=True),
        Check(Area.ISOLATION, "seccomp", check_seccomp),
        *group_examination.checks(),
        *capacity.checks(),
    ]


def check_root() -> Outcome:
    found = preflight.check_root(os.geteuid())
    with open("/proc/self/uid_map") as file:
        if file.read().split() != ALL_USER_IDS:
            return missing(f"{found}, but only in a user namespace", f"Sandboxes need the real root. {_IN_CONTAINER}")
    return ok(found)


def check_system(system: str, machine: str) -> Outcome:
    return ok(preflight.check_architecture(system, machine))


def check_namespaces() -> Outcome:
    """Each kind by itself, in a user namespace of its own as sandboxes are."""
    refused = {kind: number for kind, flag in KINDS.items() if (number := _try_namespace(flag))}
    if not refused:
        return ok(f"clone3 makes {', '.join(KINDS)}")
    said = ", ".join(f"{kind} ({os.strerror(number)})" for kind, number in refused.items())
    return missing(f"clone3 does not make {said}", namespace_remedy(set(refused.values()), _restrictions_in_force()))


def _try_namespace(kind: Namespace) -> int:
    """0, or the kernel's reason."""
    try:
        with probe_child(Namespace.USER | kind, lambda inside: None) as child:
            child.result()
    except OSError as cause:
        return cause.errno or errno.EIO
    return 0


def namespace_remedy(reasons: set[int], restrictions: dict[str, str]) -> str:
    """The remedy where the kernel refused a namespace for these reasons."""
    if restrictions:
        return f"Allow them: {_sysctl(restrictions)}"
    if errno.ENOSPC in reasons:
        return f"Raise their number: {_sysctl({'user.max_user_namespaces': '65536'})}, and so for the others."
    if errno.ENOSYS in reasons:
        return f"A filter around this process hides clone3. {_IN_CONTAINER}"
    if errno.EINVAL in reasons:
        return "Boot a kernel built with all kinds of namespaces, as those of the distributions are."
    return f"Something around this process forbids them. {_IN_CONTAINER}"


def _restrictions_in_force() -> dict[str, str]:
    """Restrictions that are set, with the value that lifts each. To root they do not apply."""
    if os.geteuid() == 0:
        return {}
    return {
        name: wanted for name, wanted in RESTRICTIONS.items() if capacity.read_setting(name) not in (None, int(wanted))
    }


def _sysctl(settings: dict[str, str]) -> str:
    return "`sysctl -w " + " ".join(f"{name}={value}" for name, value in settings.items()) + "`"


def check_uid_ranges() -> Outcome:
    try:
        base, holder = UidRanges().take()
    except OSError as cause:
        return missing(
            f"{LOCK_FILE} cannot be used: {cause.strerror}",
            f"Remove what is in the way of {os.path.dirname(LOCK_FILE)}; only root may write there.",
        )
    os.close(holder)
    return ok(f"{RANGE_SIZE:,} for each sandbox, such as from {base:,} on")


def check_idmap(path: str) -> Outcome:
    with open("/proc/self/mounts") as file:
        kind = file_system_of(os.path.realpath(path), file.read())
    try:
        with mapped_child(Namespace(0), Inside.wait) as (_, userns):
            os.close(mounts.open_idmapped(path, userns, MountAttribute.READ_ONLY | MountAttribute.NODEV))
    except OSError as cause:
        return missing(
            f"{path} is on {kind}, which cannot be idmapped: {cause.strerror}",
            f"Have it on ext4, xfs, btrfs or tmpfs; overlay and network file systems will not do. {_IN_CONTAINER}",
        )
    return ok(f"{path} is on {kind}")


def file_system_of(path: str, table: str) -> str:
    """The type of the file system that `path` is on, by /proc/mounts: the last mount that leads there."""
    best, found = "", "unknown"
    for line in table.splitlines():
        _, target, kind, *_ = line.split(" ")
        target = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), target)  # it writes a space as \040
        is_above = path == target or path.startswith(target.rstrip("/") + "/")
        if is_above and len(target) >= len(best):
            best, found = target, kind
    return found


def check_mounts(ground: str) -> Outcome:
    """An overlay that takes writes, made inside a user namespace over /usr; and what goes beside it."""
    with tempfile.TemporaryDirectory(prefix=".atoll-doctor-", dir=ground) as disk:
        for name in ("upper", "work"):
            os.mkdir(f"{disk}/{name}", 0o755)
        try:
            _mount_inside(disk)
        except ProbeFailed as failure:
            if is_full(disk):
                return unknown(f"could not be tried on a full disk: {failure}", FREE_SPACE)
            return missing(f"{failure}", mount_remedy(failure.step))
    return ok("overlay over /usr, proc and sysfs")


def is_full(path: str) -> bool:
    """Whether there is no room for what an overlay makes for itself; it is merely read-only then, whatever it is on.

    Root may take some blocks more, but not the root of a sandbox.
    """
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize < OVERLAY_BYTES or (room.f_files > 0 and room.f_favail < OVERLAY_FILES)


def _mount_inside(disk: str) -> None:
    namespaces = Namespace.MOUNT | Namespace.PID | Namespace.NET
    with mapped_child(namespaces, _mount_everything) as (child, userns):
        trees = []
        try:
            for path, attribute in (("/usr", MountAttribute.READ_ONLY), (disk, MountAttribute.NONE)):
                trees.append(mounts.open_idmapped(path, userns, attribute | MountAttribute.NODEV))
            child.go(trees)
        except OSError as cause:
            raise ProbeFailed("idmap the layers", cause.errno or 0) from cause
        finally:
            for tree in trees:
                os.close(tree)
        child.result()


def _mount_everything(inside: Inside) -> None:
    lower, disk = inside.wait()
    inside.step = "become root inside"
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    inside.step = "mount a tmpfs"
    syscalls.mount("tmpfs", _STAGE, "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "mode=755,size=1m")
    os.chdir(_STAGE)
    for name in ("lower", "disk", "merged", "proc", "sys"):
        os.mkdir(name)
    syscalls.move_mount(lower, "lower")
    syscalls.move_mount(disk, "disk")
    inside.step = "mount an overlay"
    options = "lowerdir=lower,upperdir=disk/upper,workdir=disk/work,userxattr"
    syscalls.mount("overlay", "merged", "overlay", MountFlag.NODEV, options)
    inside.step = "write to an overlay"
    os.mkdir("merged/atoll-doctor")
    inside.step = "mount /proc"
    syscalls.mount("proc", "proc", "proc", MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC)
    inside.step = "mount /sys"
    syscalls.mount("sysfs", "sys", "sysfs", MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC | MountFlag.READ_ONLY)


def mount_remedy(step: str) -> str:
    """The remedy where a sandbox could not take this step."""
    if step in ("mount /proc", "mount /sys"):
        return f"The kernel allows a new one only where nothing covers parts of the old. {_IN_CONTAINER}"
    if "overlay" in step:
        return "Have the module overlay loaded, and /usr and the state directory on ext4, xfs, btrfs or tmpfs."
    return f"Something around this process forbids it. {_IN_CONTAINER}"


def check_seccomp() -> Outcome:
    try:
        shipped = SeccompFilter.shipped()
    except OSError as cause:
        return missing(f"the filter {FILTER} is not there: {cause.strerror}", "Install Atoll again.")
    try:
        with probe_child(Namespace(0), partial(_install, shipped)) as child:
            child.result()
    except ProbeFailed as failure:
        return missing(
            f"{failure}", "Boot a kernel built with CONFIG_SECCOMP_FILTER, as those of the distributions are."
        )
    return ok(f"the filter for {platform.machine()} loads and holds")


def _install(shipped: SeccompFilter, inside: Inside) -> None:
    inside.step = "load the system-call filter"
    syscalls.prctl(Prctl.SET_NO_NEW_PRIVS, 1)
    shipped.install()
    inside.step = "have unshare refused by the filter"
    try:
        syscalls.unshare(Namespace.USER)
    except PermissionError:
        return
    raise OSError(errno.EBADE, os.strerror(errno.EBADE))
