"""Failures of a pool, told with what there is of room, so that its operator knows where to look."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, error, too_many_open_files
from atoll.protocol.limits import format_size
from atoll.storage import btrfs
from atoll.storage.admission import Disk

MAX_NAMED = 5

_OF_A_READ_ONLY_POOL = frozenset(
    {
        ErrorCode.SANDBOX_START_FAILED,
        ErrorCode.READ_ONLY,
        ErrorCode.FILESYSTEM_ERROR,
        ErrorCode.PROCESS_LIMIT_REACHED,
        ErrorCode.NO_SPACE,
    }
)
_STEPS_THAT_WRITE = {"make the writable layers", "mount the overlays", "enter the root"}


def may_be_of_read_only(problem: AtollError) -> bool:
    """Whether an operation may fail with this on a disk that takes nothing more. It may for other reasons as well."""
    is_without_shell = problem.code == ErrorCode.COMMAND_NOT_FOUND and problem.context.get("command") == "sh"
    return is_without_shell or problem.code in _OF_A_READ_ONLY_POOL


def may_be_of_full(problem: AtollError) -> bool:
    """The kernel says "no space" also of namespaces and control groups, but not at the steps that write to a disk."""
    is_full = problem.context.get("errno") in (errno.ENOSPC, errno.EDQUOT)
    return is_full and problem.context.get("step") in _STEPS_THAT_WRITE


def pool_failure(cause: OSError, file: Path, mount: Path) -> AtollError:
    if cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return pool_full(file, mount)
    if cause.errno in (errno.EMFILE, errno.ENFILE):
        return too_many_open_files(cause)
    if is_given_up(mount):
        return pool_given_up(file)
    if cause.errno == errno.EROFS:
        return pool_read_only(file)
    return pool_damaged(file, str(cause))


def pool_full(file: Path, mount: Path) -> AtollError:
    pool, host = os.statvfs(mount), os.statvfs(file)
    pool_free, host_free = pool.f_bavail * pool.f_frsize, host.f_bavail * host.f_frsize
    return error(
        ErrorCode.NO_SPACE,
        f"the pool {file} has {format_size(pool_free)} left, and the disk below it {format_size(host_free)}",
        remedy="Free some space on that disk, and the pool grows; or destroy sandboxes, or delete files in them.",
        path=str(file),
        pool_free=pool_free,
        host_free=host_free,
    )


def disk_full(disk: Disk) -> AtollError:
    held = "" if disk.limit == disk.size else ", as the pool is nearly full"
    return error(
        ErrorCode.NO_SPACE,
        f"the disk of sandbox {disk.name!r} is full: it uses {format_size(disk.used)} of {format_size(disk.size)}, and "
        f"may use {format_size(disk.limit)} now{held}",
        remedy="Delete files in it, if it runs. Else free space on the disk that holds the pool or destroy sandboxes, "
        "if the pool is nearly full; or destroy it, and make one with a larger disk.",
        sandbox=disk.name,
        used=disk.used,
        size=disk.size,
        limit=disk.limit,
    )


def pool_read_only(file: Path) -> AtollError:
    return error(
        ErrorCode.POOL_READ_ONLY,
        f"the pool {file} is mounted read-only",
        remedy="Somebody did that: `dmesg` tells of no error. Files can still be read. `mount -o remount,rw` on the "
        "directory disks beside it lets everybody write again.",
        path=str(file),
    )


def pool_given_up(file: Path, so_far: str = "") -> AtollError:
    """`so_far` is why it could not be recovered yet."""
    waits = f", so far in vain: {so_far}" if so_far else ""
    return error(
        ErrorCode.POOL_READ_ONLY,
        f"the kernel lets nobody write to the pool {file} any more, and it is being recovered{waits}",
        remedy="Its log (`dmesg`) says why; mostly the disk below it failed, or was full. Remove the cause and ask "
        "again: as soon as it can, the server ends the sandboxes, mounts the pool anew, and starts each when it is "
        "next used. What was synced in them is kept; what was to be destroyed goes then.",
        path=str(file),
    )


def pool_held(file: Path, mount: Path, holders: list[int]) -> AtollError:
    """After a recovery began: somebody else keeps it mounted, as it is."""
    named = ", ".join(map(str, holders[:MAX_NAMED])) + (", ..." if len(holders) > MAX_NAMED else "")
    return error(
        ErrorCode.POOL_READ_ONLY,
        f"the pool {file} cannot be mounted anew: it is in use" + (f" by process {named}" if named else ""),
        remedy=f"End who works in {mount} (`fuser -vm {mount}`) or has a copy of its mount. It is tried again until "
        "nobody has.",
        path=str(file),
    )


def pool_damaged(file: Path, said: str) -> AtollError:
    return error(
        ErrorCode.POOL_DAMAGED,
        f"the pool {file} cannot be used: {said}",
        remedy=f"Look at it with `btrfs check {file}`; to start with an empty one, move the file away.",
        path=str(file),
    )


def is_read_only(mount: Path) -> bool:
    return bool(os.statvfs(mount).f_flag & os.ST_RDONLY)


def is_given_up(mount: Path) -> bool:
    try:
        root = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # there may be no descriptor for it just now
        return False
    try:
        return btrfs.is_given_up(root)
    finally:
        os.close(root)
