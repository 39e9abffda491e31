"""Examination of a machine for storage, by trying: a place for state, a pool in a file, quotas that hold."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import format_size
from atoll.storage.failures import is_given_up
from atoll.storage.loop_devices import find_device, machine_lock
from atoll.storage.lost import NAMES, SHOWN, is_lost_name
from atoll.storage.mounting import MIN_POOL, PROGRAMS
from atoll.storage.pool import PoolStorage, can_have_pool
from atoll.storage.superblock import OFFSET, SIZE, find_damage
from atoll.telemetry.findings import FREE_SPACE, FULL, Area, Check, Outcome, missing, ok, warning

LITTLE_SPACE = 2 * 2**30
FEW_INODES = 100_000
PREFIX = ".atoll-doctor-"
POOL, DISKS = "pool.btrfs", "disks"
TRIED_DISK = 8 * 2**20
DETACH_ATTEMPTS, DETACH_PAUSE_SECONDS = 1_000, 0.005

_LOOP_DEVICES, _BTRFS = Path("/sys/block"), Path("/sys/fs/btrfs")
_NO_QUOTA = "without it disks are plain directories, whose limits are not enforced"


def checks(state: Path) -> list[Check]:
    ground = nearest_directory(state)
    return [
        Check(Area.DISKS, "state directory", partial(check_state, state), needs_root=True),
        Check(Area.DISKS, "free space", partial(check_space, ground)),
        Check(Area.DISKS, "btrfs", check_btrfs),
        Check(Area.DISKS, "programs", check_programs),
        Check(Area.DISKS, "loop devices", check_loop_devices),
        Check(Area.DISKS, "disk quotas", partial(check_quotas, ground), needs_root=True),
        Check(Area.DISKS, "pool", partial(check_pool, state), needs_root=True),
        Check(Area.DISKS, "lost disks", partial(check_lost, state), needs_root=True),
    ]


def nearest_directory(path: Path) -> Path:
    """`path`, or where it would be made."""
    path = path.absolute()
    # Unlike is_dir(), this is False for what we may not look at.
    return next(place for place in (path, *path.parents) if os.path.isdir(place))  # noqa: PTH112


def check_state(state: Path) -> Outcome:
    ground, elsewhere = nearest_directory(state), "Choose another with --state-dir, or remove what is in the way."
    try:
        found = state.stat()
    except FileNotFoundError:
        found = None
    except OSError as cause:
        return missing(f"{state} cannot be used: {cause.strerror}", elsewhere)
    if found and not stat.S_ISDIR(found.st_mode):
        return missing(f"{state} is not a directory", elsewhere)
    try:
        Path(tempfile.mkdtemp(prefix=PREFIX, dir=ground)).rmdir()
    except OSError as cause:
        remedy = FREE_SPACE if cause.errno in FULL else elsewhere
        return missing(f"nothing can be made in {ground}: {cause.strerror}", remedy)
    return judge_owner(state, found.st_uid, found.st_mode) if found else ok(f"{state} will be made")


def judge_owner(state: Path, owner: int, mode: int) -> Outcome:
    if owner or mode & 0o077:
        return warning(
            f"{state} is open to others than root: {stat.filemode(mode)}, owner {owner}",
            f"Close it: `chown root {state} && chmod 700 {state}`.",
        )
    return ok(f"{state}")


def check_space(ground: Path) -> Outcome:
    room = os.statvfs(ground)
    return judge_space(room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None)


def judge_space(free: int, inodes: int | None) -> Outcome:
    """`inodes` is None where the file system makes them as it goes."""
    if free < LITTLE_SPACE:
        return warning(f"{format_size(free)}", "Free some; what sandboxes write and the host image are kept there.")
    if inodes is not None and inodes < FEW_INODES:
        return warning(f"{format_size(free)}, but only {inodes:,} more files", "Remove files that nobody needs.")
    return ok(format_size(free))


def check_btrfs() -> Outcome:
    if "\tbtrfs\n" in Path("/proc/filesystems").read_text():
        simple = (_BTRFS / "features/simple_quota").exists()
        return ok("in the kernel, with simple quotas" if simple else "in the kernel; its quotas are slower before 6.7")
    if _can_load_btrfs():
        return warning(f"not loaded; {_NO_QUOTA}", "Load it: `modprobe btrfs`, and name it in /etc/modules-load.d.")
    return warning(f"this kernel has none; {_NO_QUOTA}", "Boot a kernel with btrfs, as those of the distributions are.")


def _can_load_btrfs() -> bool:
    try:
        return not subprocess.run(["modprobe", "--dry-run", "btrfs"], capture_output=True).returncode
    except OSError:
        return False


def check_programs() -> Outcome:
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return warning(
            f"{', '.join(absent)} not found; {_NO_QUOTA}",
            "Install it: `apt-get install btrfs-progs mount`. If it is installed, put /usr/sbin and /sbin on PATH.",
        )
    return ok(f"{', '.join(PROGRAMS)}")


def check_loop_devices() -> Outcome:
    if not Path("/dev/loop-control").exists():
        return warning(
            f"there is no /dev/loop-control; {_NO_QUOTA}",
            "Load it: `modprobe loop`. A container has none, unless it is given the device.",
        )
    stale = [device for device in attached_pools() if device.is_deleted and not device.is_mounted]
    if stale:
        names = " ".join(device.path for device in stale)
        return warning(f"{names}: left behind, its pool was removed", f"Give it back: `losetup --detach {names}`.")
    return ok("/dev/loop-control is there")


class AttachedPool:
    """A loop device with a pool in it, as /sys shows it."""

    def __init__(self, directory: Path) -> None:
        self.path = f"/dev/{directory.name}"
        backing = (directory / "loop/backing_file").read_text().strip()
        self.is_deleted = backing.endswith(" (deleted)")
        self.file = Path(backing.removesuffix(" (deleted)"))
        # Also where only sandboxes have it mounted, out of our sight.
        self.is_mounted = any(_BTRFS.glob(f"*/devices/{directory.name}"))


def attached_pools() -> list[AttachedPool]:
    found = []
    for directory in _LOOP_DEVICES.glob("loop*"):
        try:
            device = AttachedPool(directory)
        except OSError:  # not attached, or no longer
            continue
        if device.file.name == POOL:
            found.append(device)
    return found


def check_quotas(ground: Path) -> Outcome:
    """A pool made, a disk in it filled beyond its limit, and all of it removed."""
    if not can_have_pool():
        return warning(
            "not enforced: disks are plain directories here", "See to btrfs, programs and loop devices above."
        )
    with temporary_state(ground) as state:
        storage = PoolStorage(state, size=MIN_POOL)
        disk = storage.create(SandboxId("doctor"), TRIED_DISK)
        is_enforced = not _can_write(disk / "file", 2 * TRIED_DISK)
        storage.close()
    if not is_enforced:
        return warning("not enforced: a disk took more than its limit", "Boot a newer kernel; 6.7 has simple quotas.")
    return ok("a disk was filled, and took no more than its limit")


@contextmanager
def temporary_state(ground: Path) -> Iterator[Path]:
    """A state directory to try things in. At the end it is gone, with its pool, also if whoever opened that could not
    close it."""
    state = Path(tempfile.mkdtemp(prefix=PREFIX, dir=ground))
    try:
        yield state
    finally:
        if (state / DISKS).is_mount():
            subprocess.run(["umount", state / DISKS], check=False, capture_output=True)
        if (state / POOL).exists():
            _wait_until_detached(state / POOL)
        shutil.rmtree(state)


def _can_write(path: Path, size: int) -> bool:
    try:
        with path.open("wb") as file:
            file.write(b"\1" * size)
            os.fsync(file.fileno())
    except OSError as cause:
        if cause.errno in (errno.EDQUOT, errno.ENOSPC):
            return False
        raise
    return True


def _wait_until_detached(file: Path) -> None:
    """A loop device goes a moment after the last mount of it."""
    for _ in range(DETACH_ATTEMPTS):
        if find_device(file) is None:
            return
        time.sleep(DETACH_PAUSE_SECONDS)


def check_pool(state: Path) -> Outcome:
    file = state / POOL
    if not file.exists():
        return ok("none yet; the first sandbox makes one")
    with machine_lock():  # else a server that is just attaching it would look like one that died
        attached = [device for device in attached_pools() if not device.is_deleted and _is_same(device.file, file)]
    if len(attached) > 1:
        names = " and ".join(device.path for device in attached)
        return missing(f"{file} is attached twice, as {names}", "Stop everything that uses it at once; two destroy it.")
    if attached and attached[0].is_mounted:
        return _check_mounted(file, state / DISKS)
    damage = find_damage(_read_superblock(file), file.stat().st_size)
    if damage:
        return missing(
            f"{file} is damaged: {damage}",
            f"Look at it with `btrfs check {file}`; to start with an empty one, move the file away.",
        )
    if attached:
        device = attached[0].path
        return warning(
            f"{file} is attached as {device}, and not mounted", f"Give it back: `losetup --detach {device}`."
        )
    return ok(f"{file}, {format_size(file.stat().st_size)}, not in use")


def check_lost(state: Path) -> Outcome:
    try:
        names = [name for name in (state / NAMES).read_text().split() if is_lost_name(name)]
    except FileNotFoundError:
        names = []
    if not names:
        return ok("none")
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if names[SHOWN:] else "")
    return warning(
        f"{len(names)} set aside, as they are no sandbox's: {shown}",
        "`atoll ls --lost` says why; `atoll adopt NAME` makes one a sandbox again, `atoll rm --lost NAME` removes it.",
    )


def _check_mounted(file: Path, disks: Path) -> Outcome:
    room = os.statvfs(disks)
    if disks.is_mount() and room.f_flag & os.ST_RDONLY:
        return _read_only(file, disks)
    if not disks.is_mount():  # only sandboxes have it mounted
        return ok(f"{file}, {format_size(file.stat().st_size)}, in use")
    return judge_headroom(file, room.f_bavail * room.f_frsize, free_below(file))


def _read_only(file: Path, disks: Path) -> Outcome:
    if not is_given_up(disks):
        return missing(f"{file} was mounted read-only", f"Let it be written to: `mount -o remount,rw {disks}`.")
    return missing(
        f"{file} went read-only, as a btrfs does after an error",
        "Look for the reason in `dmesg`, and remove it. A server that runs recovers the pool by itself, and its log "
        f"says what that waits for. If it fails again and again, end sandboxes and server: `btrfs check {file}`.",
    )


def free_below(file: Path) -> int:
    host = os.statvfs(file)
    return host.f_bavail * host.f_frsize


def judge_headroom(file: Path, pool_free: int, host_free: int) -> Outcome:
    """Whether there is room in the pool, and below it, where the file grows."""
    found = f"{file}, {format_size(file.stat().st_size)}, in use; {format_size(pool_free)} free in it"
    found += f", and {format_size(host_free)} on the disk below, into which it grows"
    if pool_free + host_free < LITTLE_SPACE:
        return warning(
            found, "Soon whoever writes gets ENOSPC. Destroy sandboxes, or free space on the disk that holds the pool."
        )
    return ok(found)


def _read_superblock(file: Path) -> bytes:
    with file.open("rb") as pool:
        pool.seek(OFFSET)
        return pool.read(SIZE)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
