"""What to tell when a pool refuses something, with what there is of room, so that its operator knows where to look."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, error, too_many_open_files
from atoll.protocol.limits import format_size
from atoll.storage.admission import Disk

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
        f"the kernel lets nobody write to the pool {file} any more",
        remedy="Its log (`dmesg`) says why; mostly the disk below it failed, or was full under a pool of an earlier "
        "version. Files can still be read. Stop every sandbox (`atoll sleep --stop`), end the server and start it "
        "again: that mounts the pool anew.",
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
