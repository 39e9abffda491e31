"""A pool: one file with a btrfs inside, in which each sandbox has a subvolume with a quota.

Rules:
1. One loop device per pool file, machine-wide. A second one on the same file would mount as another file system over
   the same bytes and destroy it; so devices are looked up by their file, under a lock, and never attached twice.
2. Disks are let in by what is in use (`admission`). With `overcommit` the sum of all never exceeds the pool times that;
   at 1 every byte of every disk is certain.
3. Programs that change devices, mounts or the pool's file inherit the lock: when we are killed, they go on without us,
   and whoever comes next waits for them.
4. A disk, its quota and the record that it carries are committed together. The first sync inside of a disk that was not
   committed yet commits all of it, so whatever of a disk is on the platter, its record is as well.
5. The file has no hole where the file system may write (`backing`), and grows as it fills (`headroom`).
6. One that the kernel gave up after an error below it (`btrfs.is_given_up`) takes nothing more for as long as anybody
   has it mounted. `recover` mounts it anew; while it is not mounted every call raises why.
7. The pool is mounted nosuid and nodev below a private directory. What sandboxes write there belongs to ids from 0 up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error
from atoll.protocol.ids import SandboxId
from atoll.storage import admission, attributes, backing, btrfs, failures, growth, recovery
from atoll.storage.base import Storage
from atoll.storage.directory import RECORD, DirectoryStorage, already_exists, existing
from atoll.storage.epitaphs import Epitaphs
from atoll.storage.headroom import Ground, Headroom
from atoll.storage.lost import DIRECTORY as LOST
from atoll.storage.lost import LostDisks
from atoll.storage.quotas import Quotas
from atoll.telemetry.preparations import preparing

LOCK = Path("/run/atoll-machine/pools")  # the machine's, as loop devices are
PROGRAMS = ("mkfs.btrfs", "losetup", "mount", "umount")
OPTIONS = "nosuid,nodev,noatime,nodiscard"
SIZE_ATTRIBUTE = "user.atoll.size"  # on a disk's top directory, which sandboxes do not see
LABEL = "atoll"
SHARE_OF_FREE_SPACE = 0.8
WORTH_TRIMMING = 64 * 2**20
WORTH_FREEING = 2**20
ATTACH_ATTEMPTS = 20
CREATE_ATTEMPTS = 5  # a commit between two calls to the kernel is rare, and five of them in a row are not to be
GONE_SECONDS, GONE_PAUSE_SECONDS = 5.0, 0.01  # from the end of the last mount to that of the loop device
MIN_POOL = 256 * 2**20  # what mkfs.btrfs wants, and a little more


def open_storage(state: Path, size: int | None = None, overcommit: float | None = None) -> Storage:
    """A pool where this machine can have one, else plain directories."""
    if not can_have_pool():
        return DirectoryStorage(state / "disks")
    return PoolStorage(state, size, overcommit)


def can_have_pool() -> bool:
    has_btrfs = "\tbtrfs\n" in Path("/proc/filesystems").read_text()
    return has_btrfs and Path("/dev/loop-control").exists() and all(shutil.which(program) for program in PROGRAMS)


@dataclass(frozen=True, kw_only=True)
class Mounted:
    """A pool that is there to be used."""

    disks: Path
    root: int
    directory: Path  # the kernel's, of this btrfs
    size: int
    quotas: Quotas
    headroom: Headroom
    lost: LostDisks
    epitaphs: Epitaphs

    def let_go(self) -> None:
        self.headroom.close()
        os.close(self.root)


class PoolStorage:
    """The pool of one state directory. `size` is what all disks may hold together; it can be raised, not lowered."""

    enforces_limits = True
    removes_at_once = True

    def __init__(self, state: Path, size: int | None = None, overcommit: float | None = None) -> None:
        self._overcommit = overcommit
        self._file = state / "pool.btrfs"
        self._mount = state / "disks"
        self._mounted: Mounted | None = None
        self._is_given_up = False
        self._size_asked = size
        self._removed = b""  # which disks were, before the pool was given up
        self._so_far = ""  # why it could not be recovered yet
        try:
            self._mount.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as cause:
            raise cannot_write(str(self._mount), cause) from cause
        with machine_lock() as lock:
            try:
                self._open_pool(size, lock)
            except AtollError:
                if not self._is_given_up:
                    raise  # else who runs on it must end first, and that is not for us to do

    @property
    def _open(self) -> Mounted:
        if self._mounted is None:
            raise failures.pool_given_up(self._file, self._so_far)
        return self._mounted

    @property
    def _root(self) -> int:
        return self._open.root

    @property
    def _disks(self) -> Path:
        """Where they are; while nothing is mounted there, an empty directory that says nothing about any of them."""
        return self._open.disks

    @property
    def _quotas(self) -> Quotas:
        return self._open.quotas

    @property
    def _headroom(self) -> Headroom:
        return self._open.headroom

    @property
    def size(self) -> int:
        return self._open.size

    @property
    def lost(self) -> LostDisks:
        return self._open.lost

    @property
    def epitaphs(self) -> Epitaphs:
        return self._open.epitaphs

    @property
    def largest_disk(self) -> int:
        return admission.largest_disk(self._promises())

    def create(self, sandbox: SandboxId, size: int, record: bytes = b"") -> Path:
        self._admit(size)
        disk = self._disks / sandbox
        try:
            for attempts_left in reversed(range(CREATE_ATTEMPTS)):
                btrfs.create_subvolume(self._root, sandbox)
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
        return existing(self._disks / sandbox)

    def record(self, sandbox: str) -> bytes | None:
        return attributes.read(self._disks / sandbox, RECORD)

    def replace_record(self, sandbox: SandboxId, record: bytes) -> None:
        attributes.write(self._disks / sandbox, RECORD, record)

    def is_covered(self, sandbox: SandboxId) -> bool:
        try:
            fd = os.open(self._disks / sandbox, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # there may be no descriptor for it just now, and covering it needs none
            return False
        try:
            return btrfs.is_in_one_transaction(fd)
        finally:
            os.close(fd)

    def cover(self, sandbox: SandboxId) -> None:
        btrfs.start_commit(self._root)

    def is_empty(self, sandbox: SandboxId) -> bool:
        return not any((self._disks / sandbox).iterdir())

    def set_aside(self, sandbox: SandboxId, note: bytes) -> str:
        name = self.lost.put(sandbox, note)
        self._quotas.rename(sandbox, lost_key(name))
        return name

    def take_back(self, name: str, sandbox: SandboxId, record: bytes) -> None:
        attributes.write(self.lost.path(name), RECORD, record)
        self.lost.take(name, sandbox)
        self._quotas.rename(lost_key(name), sandbox)

    def remove_lost(self, name: str) -> None:
        directory = os.open(self.lost.path(name).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            btrfs.destroy_subvolume(directory, name)
        except OSError as cause:
            raise self._failure(cause) from cause
        finally:
            os.close(directory)
        self._quotas.drop(lost_key(name))

    def _admit(self, size: int) -> None:
        refusal = admission.refusal(self._promises(), self._headroom.look(), size)
        if refusal:
            raise refusal

    def _promises(self) -> admission.Promises:
        return admission.Promises(
            file=str(self._file),
            size=self.size,
            disks=len(self._quotas),
            committed=self._quotas.committed,
            reserved=self._headroom.reserved,
            overcommit=self._overcommit,
            freed=self._headroom.freed,
        )

    def remove(self, sandbox: SandboxId) -> None:
        group, used = self._quotas.group(sandbox), 0
        try:
            with suppress(OSError, KeyError):
                used = self._quotas.used(sandbox)
            btrfs.destroy_subvolume(self._root, sandbox)
        except FileNotFoundError:
            pass
        except OSError as cause:
            raise self._failure(cause) from cause
        self._quotas.drop(sandbox)
        if group and used >= WORTH_FREEING:
            self._headroom.free(group, used)

    def names(self) -> set[str]:
        return disks_in(self._disks)

    def used(self, sandbox: SandboxId) -> int:
        """As the kernel counts it for the quota, with what it has not written to the pool yet left out."""
        try:
            return self._quotas.used(sandbox)
        except KeyError as cause:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._disks / sandbox)) from cause

    def explain(self, problem: AtollError, sandbox: SandboxId) -> AtollError:
        if failures.may_be_of_read_only(problem):
            if given_up := self.problem():
                return given_up
            if failures.is_read_only(self._mount):
                return self._failure(OSError(errno.EROFS, ""))
        if not failures.may_be_of_full(problem):
            return problem
        disk = self._quotas.find(sandbox)
        if disk and disk.used + WORTH_FREEING >= disk.limit:
            return failures.disk_full(disk)
        return failures.pool_full(self._file, self._mount)

    def problem(self) -> AtollError | None:
        if self._mounted and not self._mounted.headroom.is_given_up:
            return None
        return failures.pool_given_up(self._file, self._so_far)

    def obstacle(self) -> str | None:
        """Fills the holes, if the host has what that takes."""
        file, host = self._file.stat(), os.statvfs(self._file)
        unbacked = max(0, file.st_size - file.st_blocks * backing.SECTOR)
        below = recovery.Below(unbacked=unbacked, host_free=host.f_bavail * host.f_frsize)
        if not recovery.is_in_vain(below) and self._has_no_holes(below, file.st_size):
            return None
        self._so_far = "the disk below it is full, and its file lacks blocks"
        return self._so_far

    def _has_no_holes(self, below: recovery.Below, size: int) -> bool:
        """Whether all its blocks are there. Those beyond its end hide some from who counts, so they are asked for."""
        if not recovery.is_to_be_filled(below):
            return True
        with self._file.open("r+b") as file:
            try:
                backing.allocate(file.fileno(), size)
            except OSError as cause:
                return cause.errno != errno.ENOSPC
        return True

    def recover(self) -> None:
        mounted, self._mounted = self._mounted, None
        if mounted:
            self._removed, self._size_asked = mounted.epitaphs.known, mounted.size
            mounted.let_go()
        self._is_given_up = False
        try:
            self._let_kernel_forget()
            with machine_lock() as lock:
                if not self._file.exists():  # a new one would hide what became of this one
                    raise self._damaged("its file is gone")
                self._open_pool(self._size_asked, lock)
        except AtollError as problem:
            self._so_far = "it failed again as soon as it was mounted" if self._is_given_up else problem.message
            raise
        self._so_far = ""
        self.epitaphs.recall(self._removed)

    def _let_kernel_forget(self) -> None:
        """Wait until mount and loop device are gone: until then it is the one that failed."""
        give_up = time.monotonic() + GONE_SECONDS
        while device := self._let_go_of_device():
            if time.monotonic() > give_up:
                is_ours = self._mount.is_mount()  # then everybody sees it, whoever keeps it
                raise failures.pool_held(self._file, self._mount, [] if is_ours else holders(device))
            time.sleep(GONE_PAUSE_SECONDS)

    def _let_go_of_device(self) -> str | None:
        """The one that is there yet."""
        with machine_lock() as lock:
            if self._mount.is_mount():
                self._unmount(lock)
            if device := find_device(self._file):
                detach(device, lock)
            return device

    def close(self) -> None:
        """Unmount. While sandboxes run, the file system lives on with them, and the next to open it finds it so."""
        mounted, self._mounted = self._mounted, None
        if mounted:
            mounted.let_go()
        with machine_lock() as lock:
            self._unmount(lock)
            # If nobody has it mounted any more, nobody can write into holes.
            if mounted and not mounted.directory.exists():
                with suppress(AtollError, OSError):
                    self._give_back(lock)

    def _give_back(self, lock: int) -> None:
        """To the host, what disks do not take of its disk. The next to open the pool has it allocated again."""
        with attached(self._file, lock) as device:
            try:
                self._mount_device(device, lock)
            finally:
                run("losetup", "--detach", device, otherwise=self._damaged, lock=lock)
        root = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            btrfs.trim(root)
            os.truncate(self._file, self._file.stat().st_size)  # and with that what lies beyond its end
        finally:
            os.close(root)
            self._unmount(lock)

    def _unmount(self, lock: int) -> None:
        subprocess.run(["umount", self._mount], check=False, stderr=subprocess.DEVNULL, pass_fds=[lock])

    def _set_up(self, disk: Path, size: int, record: bytes) -> bool:
        """Whether all of this was done in one transaction."""
        fd = os.open(disk, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fchmod(fd, 0o700)
            os.setxattr(fd, SIZE_ATTRIBUTE, str(size).encode())
            is_largest = size > self._quotas.largest
            self._quotas.add(disk.name, fd, size, self._headroom.first_limit(size))
            if is_largest:
                self._headroom.follow_largest()
            if record:
                attributes.write(disk, RECORD, record)
            return btrfs.is_in_one_transaction(fd)
        finally:
            os.close(fd)

    def _open_pool(self, size: int | None, lock: int) -> None:
        if not self._file.exists():
            size = max(size or default_size(self._file.parent), MIN_POOL)
            with preparing("the pool that disks of sandboxes are in"):
                make_pool(self._file, size, lock)
        with attached(self._file, lock) as device:
            try:
                if not self._mount.is_mount():
                    self._mount_device(device, lock)
            finally:
                # Detached when the last mount of it goes, whoever holds that; at once, if it could not be mounted. Said
                # also of one that was mounted already: who mounted it may have been killed before coming here.
                run("losetup", "--detach", device, otherwise=self._damaged, lock=lock)
        root = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._mounted = self._take_up(root, device, size)
        except BaseException as cause:
            problem = self._failure(cause) if isinstance(cause, OSError) else cause
            self._is_given_up = btrfs.is_given_up(root)
            os.close(root)
            self._unmount(lock)
            if problem is not cause:
                raise problem from cause
            raise

    def _mount_device(self, device: str, lock: int) -> None:
        command = ("mount", "-t", "btrfs", device, str(self._mount), "-o")
        try:
            run(*command, OPTIONS, otherwise=self._damaged, lock=lock)
        except AtollError:
            # Who runs on it may have it mounted where we do not see it; then it is what it was when it was given up.
            if not any(Path("/sys/fs/btrfs").glob(f"*/devices/{Path(device).name}")):
                raise
            self._is_given_up = self._is_of_no_use(command, lock)
            if self._is_given_up:
                raise failures.pool_given_up(self._file) from None
            raise

    def _is_of_no_use(self, command: tuple[str, ...], lock: int) -> bool:
        try:
            run(*command, f"{OPTIONS},ro", otherwise=self._damaged, lock=lock)
        except AtollError:  # not even its root can be read
            return True
        try:
            return failures.is_given_up(self._mount)
        finally:
            self._unmount(lock)

    def _take_up(self, root: int, device: str, size: int | None) -> Mounted:
        """Go on with what is in the pool, and with its size."""
        btrfs.enable_quota(root)
        (members,) = Path("/sys/fs/btrfs").glob(f"*/devices/{Path(device).name}")
        directory = members.parents[1]
        label = directory / "label"
        known = size_in(label.read_text())
        before = known or self._file.stat().st_size  # the file of an earlier version has its size from the start
        size = max(before, size or 0)
        quotas = Quotas(root, directory / "qgroups")
        is_certain = self._overcommit is not None and self._overcommit <= 1
        ground = Ground(
            file=self._file,
            device=device,
            root=root,
            directory=directory,
            size=size,
            is_certain=is_certain,
        )
        headroom = Headroom(ground, quotas)
        try:
            headroom.follow()  # to what was allocated, if somebody was killed who did this
            if known and size > known:
                headroom.prove_growth()
            if size != known:
                label.write_text(label_of(size))
            headroom.start()
            lost, epitaphs = LostDisks(self._mount), Epitaphs(self._mount)
            for name in (*disks_in(self._mount), *map(lost_key, lost.names())):
                self._recall(name, quotas)
        except BaseException:
            headroom.close()
            raise
        return Mounted(
            disks=self._mount,
            root=root,
            directory=directory,
            size=size,
            quotas=quotas,
            headroom=headroom,
            lost=lost,
            epitaphs=epitaphs,
        )

    def _recall(self, name: str, quotas: Quotas) -> None:
        with suppress(OSError):  # such as that the pool is full or read-only: the disk keeps the limit it has
            fd = os.open(self._mount / name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                size = read_size(self._mount / name)
                quotas.add(name, fd, size, size)
            finally:
                os.close(fd)

    def _damaged(self, said: str) -> AtollError:
        return failures.pool_damaged(self._file, said)

    def _failure(self, cause: OSError) -> AtollError:
        if isinstance(cause, AtollError):
            return cause
        if self._mounted:
            self._mounted.headroom.look_soon()  # the kernel may have given it up
        return failures.pool_failure(cause, self._file, self._mount)


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


def disks_in(mount: Path) -> set[str]:
    with os.scandir(mount) as entries:
        return {entry.name for entry in entries if entry.stat().st_ino == btrfs.ROOT_OF_SUBVOLUME}


def make_pool(file: Path, size: int, lock: int) -> None:
    """A new pool appears whole or not at all."""
    work = file.with_suffix(".new")
    try:
        work.unlink(missing_ok=True)  # left by somebody who was killed
        with work.open("wb") as new:
            backing.write_in_place(new.fileno())
            backing.allocate(new.fileno(), growth.LEAST)
        work.chmod(0o600)
        # Metadata once: a quota counts it once as well, so a disk full of tiny files takes no more than it may.
        options = ("--quiet", "--force", "--metadata", "single", "--label", label_of(size))
        run("mkfs.btrfs", *options, str(work), otherwise=_cannot_make, lock=lock)
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


def detach(device: str, lock: int) -> None:
    """Now, or when the last who has it lets go."""
    subprocess.run(["losetup", "--detach", device], check=False, capture_output=True, pass_fds=[lock])


def holders(device: str) -> list[int]:
    """Processes that see a mount of this device; of namespaces that nobody is in, the kernel tells nothing."""
    numbers = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [number for number in numbers if _sees(number, device)]


def _sees(process: int, device: str) -> bool:
    try:
        return f" - btrfs {device} " in Path(f"/proc/{process}/mountinfo").read_text()
    except OSError:
        return False


def label_of(size: int) -> str:
    """In it a pool says how large it is to become."""
    return f"{LABEL} {size}"


def size_in(label: str) -> int:
    """0 for a pool of an earlier version."""
    name, _, size = label.strip().rpartition(" ")
    return int(size) if name == LABEL and size.isdecimal() else 0


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
