"""A pool: one sparse file with a btrfs inside, in which each sandbox has a subvolume with a quota.

Rules:
1. One loop device per pool file, machine-wide. A second one on the same file would mount as another file system over
   the same bytes and destroy it; so devices are looked up by their file, under a lock, and never attached twice.
2. The sum of all disks never exceeds the pool times `overcommit`. At 1 every byte of every disk is certain; few
   sandboxes use what they may, so the default lets more of them in.
3. Programs that change devices, mounts or the pool's file inherit the lock: when we are killed, they go on without us,
   and whoever comes next waits for them.
4. A disk, its quota and the record that it carries are committed together. The first sync inside of a disk that was not
   committed yet commits all of it, so whatever of a disk is on the platter, its record is as well.
5. The pool is mounted nosuid and nodev below a private directory. What sandboxes write there belongs to ids from 0 up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error, too_many_open_files
from atoll.protocol.ids import SandboxId
from atoll.storage import attributes, btrfs
from atoll.storage.base import Storage
from atoll.storage.directory import RECORD, DirectoryStorage, already_exists, existing
from atoll.storage.epitaphs import Epitaphs
from atoll.storage.lost import DIRECTORY as LOST
from atoll.storage.lost import LostDisks

LOCK = Path("/run/atoll-machine/pools")  # the machine's, as loop devices are
PROGRAMS = ("mkfs.btrfs", "losetup", "mount", "umount")
OPTIONS = "nosuid,nodev,noatime,discard=async"
SIZE_ATTRIBUTE = "user.atoll.size"  # on a disk's top directory, which sandboxes do not see
SHARE_OF_FREE_SPACE = 0.8
OVERCOMMIT = 10.0
WORTH_TRIMMING = 64 * 2**20
RESERVE = 32 * 2**20  # with less than that free on the host, the pool's file soon cannot grow, and btrfs gives up
SECTOR = 512
ATTACH_ATTEMPTS = 20
CREATE_ATTEMPTS = 5  # a commit between two calls to the kernel is rare, and five of them in a row are not to be
MIN_POOL = 256 * 2**20  # what mkfs.btrfs wants, and a little more


def open_storage(state: Path, size: int | None = None) -> Storage:
    """A pool where this machine can have one, else plain directories."""
    if not can_have_pool():
        return DirectoryStorage(state / "disks")
    return PoolStorage(state, size)


def can_have_pool() -> bool:
    has_btrfs = "\tbtrfs\n" in Path("/proc/filesystems").read_text()
    return has_btrfs and Path("/dev/loop-control").exists() and all(shutil.which(program) for program in PROGRAMS)


class PoolStorage:
    """The pool of one state directory. `size` is that of the whole pool; it can be raised, not lowered."""

    enforces_limits = True
    removes_at_once = True

    def __init__(self, state: Path, size: int | None = None, overcommit: float = OVERCOMMIT) -> None:
        self._overcommit = overcommit
        self._file = state / "pool.btrfs"
        self._mount = state / "disks"
        try:
            self._mount.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as cause:
            raise cannot_write(str(self._mount), cause) from cause
        with machine_lock() as lock:
            self._open_pool(size, lock)
        self.lost, self.epitaphs = LostDisks(self._mount), Epitaphs(self._mount)
        aside = (lost_key(name) for name in self.lost.names())
        self._sizes: dict[str, int] = {name: read_size(self._mount / name) for name in (*self.names(), *aside)}
        self._committed = sum(self._sizes.values())

    @property
    def size(self) -> int:
        return self._file.stat().st_size

    def create(self, sandbox: SandboxId, size: int, record: bytes = b"") -> Path:
        self._admit(size)
        disk = self._mount / sandbox
        try:
            for attempts_left in reversed(range(CREATE_ATTEMPTS)):
                btrfs.create_subvolume(self._root, sandbox)
                self._commit(sandbox, size)
                if self._set_up(disk, size, record) or not attempts_left:
                    break
                btrfs.destroy_subvolume(self._root, sandbox)
        except FileExistsError as cause:
            raise already_exists(sandbox) from cause
        except OSError as cause:
            with suppress(AtollError):  # then the next to open the pool removes it
                self.remove(sandbox)
            raise self._failure(cause) from cause
        return disk

    def find(self, sandbox: SandboxId) -> Path:
        return existing(self._mount / sandbox)

    def record(self, sandbox: str) -> bytes | None:
        return attributes.read(self._mount / sandbox, RECORD)

    def replace_record(self, sandbox: SandboxId, record: bytes) -> None:
        attributes.write(self._mount / sandbox, RECORD, record)

    def is_covered(self, sandbox: SandboxId) -> bool:
        try:
            fd = os.open(self._mount / sandbox, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # there may be no descriptor for it just now, and covering it needs none
            return False
        try:
            return btrfs.is_in_one_transaction(fd)
        finally:
            os.close(fd)

    def cover(self, sandbox: SandboxId) -> None:
        btrfs.start_commit(self._root)

    def is_empty(self, sandbox: SandboxId) -> bool:
        return not any((self._mount / sandbox).iterdir())

    def set_aside(self, sandbox: SandboxId, note: bytes) -> str:
        name = self.lost.put(sandbox, note)
        self._sizes[lost_key(name)] = self._sizes.pop(sandbox, 0)
        return name

    def take_back(self, name: str, sandbox: SandboxId, record: bytes) -> None:
        attributes.write(self.lost.path(name), RECORD, record)
        self.lost.take(name, sandbox)
        self._sizes[sandbox] = self._sizes.pop(lost_key(name), 0)

    def remove_lost(self, name: str) -> None:
        directory = os.open(self.lost.path(name).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            btrfs.destroy_subvolume(directory, name)
        except OSError as cause:
            raise self._failure(cause) from cause
        finally:
            os.close(directory)
        self._committed -= self._sizes.pop(lost_key(name), 0)

    def _admit(self, size: int) -> None:
        if shutil.disk_usage(self._file.parent).free < RESERVE:
            raise self._full()
        committed, promised = self._committed, int(self.size * self._overcommit)
        if committed + size > promised:
            raise error(
                ErrorCode.DISK_COMMITTED,
                f"of {promised} bytes that may be promised {committed} are; {size} more do not fit",
                remedy="Give sandboxes smaller disks, destroy some, or make the pool larger.",
                committed=committed,
                size=self.size,
            )

    def remove(self, sandbox: SandboxId) -> None:
        try:
            btrfs.destroy_subvolume(self._root, sandbox)
        except FileNotFoundError:
            pass
        except OSError as cause:
            raise self._failure(cause) from cause
        self._committed -= self._sizes.pop(sandbox, 0)

    def _commit(self, sandbox: SandboxId, size: int) -> None:
        self._committed += size - self._sizes.get(sandbox, 0)
        self._sizes[sandbox] = size

    def names(self) -> set[str]:
        with os.scandir(self._mount) as entries:
            return {entry.name for entry in entries if entry.stat().st_ino == btrfs.ROOT_OF_SUBVOLUME}

    def used(self, sandbox: SandboxId) -> int:
        """As the kernel counts it for the quota, with what it has not written to the pool yet left out."""
        fd = os.open(self._mount / sandbox, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return int((self._counters / f"0_{btrfs.id_of(fd)}/referenced").read_text())
        finally:
            os.close(fd)

    def close(self) -> None:
        """Unmount. While sandboxes run, the file system lives on with them, and the next to open it finds it so."""
        self._give_back()
        os.close(self._root)
        with machine_lock() as lock:
            self._unmount(lock)

    def _give_back(self) -> None:
        """To the host, what removed disks took of its disk. The kernel does so in its own time, until it unmounts."""
        with suppress(OSError):  # the file may be on what cannot have holes, or be gone
            taken = self._file.stat().st_blocks * SECTOR
            if taken - shutil.disk_usage(self._root).used > WORTH_TRIMMING:
                btrfs.trim(self._root)

    def _unmount(self, lock: int) -> None:
        subprocess.run(["umount", self._mount], check=False, stderr=subprocess.DEVNULL, pass_fds=[lock])

    def _set_up(self, disk: Path, size: int, record: bytes) -> bool:
        """Whether all of this was done in one transaction."""
        fd = os.open(disk, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fchmod(fd, 0o700)
            os.setxattr(fd, SIZE_ATTRIBUTE, str(size).encode())
            btrfs.limit(fd, size)
            if record:
                attributes.write(disk, RECORD, record)
            return btrfs.is_in_one_transaction(fd)
        finally:
            os.close(fd)

    def _open_pool(self, size: int | None, lock: int) -> None:
        if not self._file.exists():
            make_pool(self._file, size or default_size(self._file.parent), lock)
        with attached(self._file, lock) as device:
            try:
                if not self._mount.is_mount():
                    command = ("mount", "-t", "btrfs", "-o", OPTIONS, device, str(self._mount))
                    run(*command, otherwise=self._damaged, lock=lock)
            finally:
                # Detached when the last mount of it goes, whoever holds that; at once, if it could not be mounted. Said
                # also of one that was mounted already: who mounted it may have been killed before coming here.
                run("losetup", "--detach", device, otherwise=self._damaged, lock=lock)
        self._root = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            btrfs.enable_quota(self._root)
            self._grow(device, size or 0, lock)
        except BaseException as cause:
            os.close(self._root)
            self._unmount(lock)
            if isinstance(cause, OSError) and not isinstance(cause, AtollError):
                raise self._failure(cause) from cause
            raise
        (members,) = Path("/sys/fs/btrfs").glob(f"*/devices/{Path(device).name}")
        self._counters = members.parents[1] / "qgroups"

    def _grow(self, device: str, size: int, lock: int) -> None:
        """To `size`, and what was not finished when somebody was killed who did this."""
        if size > self.size:
            os.truncate(self._file, size)
        if self.size // SECTOR > int(Path(f"/sys/block/{Path(device).name}/size").read_text()):
            run("losetup", "--set-capacity", device, otherwise=self._damaged, lock=lock)
        btrfs.grow_to_device(self._root)

    def _damaged(self, said: str) -> AtollError:
        return error(
            ErrorCode.POOL_DAMAGED,
            f"the pool {self._file} cannot be used: {said}",
            remedy=f"Look at it with `btrfs check {self._file}`; to start with an empty one, move the file away.",
            path=str(self._file),
        )

    def _failure(self, cause: OSError) -> AtollError:
        if cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return self._full()
        if cause.errno in (errno.EMFILE, errno.ENFILE):
            return too_many_open_files(cause)
        if cause.errno == errno.EROFS:
            return error(
                ErrorCode.POOL_DAMAGED,
                f"the kernel lets nobody write to the pool {self._file} any more",
                remedy="Its log (dmesg) says why; often the disk that holds the file was full. Free some space, stop "
                "every sandbox, and open the state directory again.",
                path=str(self._file),
            )
        return self._damaged(str(cause))

    def _full(self) -> AtollError:
        return error(
            ErrorCode.NO_SPACE,
            f"the disk that holds {self._file} has no room for more",
            remedy="Free some space on it, or destroy sandboxes.",
            path=str(self._file),
        )


@contextmanager
def machine_lock() -> Iterator[int]:
    """Yields the descriptor that holds it, for programs to inherit."""
    try:
        LOCK.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as cause:
        raise cannot_write(str(LOCK), cause) from cause
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def default_size(directory: Path) -> int:
    return max(MIN_POOL, int(shutil.disk_usage(directory).free * SHARE_OF_FREE_SPACE))


def make_pool(file: Path, size: int, lock: int) -> None:
    """A new pool appears whole or not at all."""
    work = file.with_suffix(".new")
    try:
        work.unlink(missing_ok=True)  # left by somebody who was killed
        with work.open("wb") as new:
            new.truncate(max(size, MIN_POOL))
        work.chmod(0o600)
        run("mkfs.btrfs", "--quiet", "--force", str(work), otherwise=_cannot_make, lock=lock)
        work.rename(file)
    except OSError as cause:
        raise _cannot_make(str(cause)) from cause
    finally:
        work.unlink(missing_ok=True)


def find_device(file: Path) -> str | None:
    """The loop device that has this file, if one does."""
    shown = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", file], capture_output=True, text=True
    )
    return shown.stdout.split()[0] if shown.stdout.split() else None


@contextmanager
def attached(file: Path, lock: int) -> Iterator[str]:
    """A loop device that has this file, and keeps it while this lasts."""
    for _ in range(ATTACH_ATTEMPTS):
        device = find_device(file) or attach(file, lock)
        # One whose last mount is going may be detached until it is open, and then cannot be opened, or is another's.
        try:
            held = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if find_device(file) == device:
                yield device
                return
        finally:
            os.close(held)
    raise _cannot_attach(f"{device} is detached again and again")


def attach(file: Path, lock: int) -> str:
    # Without direct I/O every byte would be cached twice.
    command = ("losetup", "--find", "--show", "--direct-io=on", str(file))
    return run(*command, otherwise=_cannot_attach, lock=lock).strip()


def lost_key(name: str) -> str:
    """Under which the size of a disk that was set aside is known, which is promised still."""
    return f"{LOST}/{name}"


def read_size(disk: Path) -> int:
    try:
        return int(os.getxattr(disk, SIZE_ATTRIBUTE))
    except OSError:  # made, and its maker killed before it could say how large
        return 0


def run(*command: str, otherwise: Callable[[str], AtollError], lock: int) -> str:
    shown = subprocess.run(command, capture_output=True, text=True, pass_fds=[lock])
    if shown.returncode:
        raise otherwise(shown.stderr.strip())
    return shown.stdout


def _cannot_make(said: str) -> AtollError:
    return error(ErrorCode.NO_SPACE, f"a pool could not be made: {said}", remedy="Free some space for it.")


def _cannot_attach(said: str) -> AtollError:
    remedy = "Free a loop device, or raise their number; `losetup --list` shows who has them."
    return error(ErrorCode.POOL_DAMAGED, f"no loop device for the pool: {said}", remedy=remedy)
