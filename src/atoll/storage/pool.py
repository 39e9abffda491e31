"""A pool: one file with a btrfs inside, in which each sandbox has a subvolume with a quota.

Rules:
1. Disks are let in by what is in use (`admission`). With `overcommit` the sum of all never exceeds the pool times that;
   at 1 every byte of every disk is certain.
2. A disk, its quota and the record that it carries are committed together. The first sync inside of a disk that was not
   committed yet commits all of it, so whatever of a disk is on the platter, its record is as well.
3. The file has no hole where the file system may write (`backing`), and grows as it fills (`headroom`).
4. While it is not mounted (`mounting`), as the kernel gave it up, every call raises why. `recover` mounts it anew.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from atoll.protocol.errors import AtollError, cannot_write
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import limit_in_use
from atoll.storage import admission, attributes, backing, btrfs, failures, recovery
from atoll.storage.base import Storage, StorageRoom
from atoll.storage.directory import RECORD, DirectoryStorage, already_exists, existing
from atoll.storage.epitaphs import Epitaphs
from atoll.storage.headroom import Headroom
from atoll.storage.loop_devices import machine_lock
from atoll.storage.lost import LostDisks
from atoll.storage.mounting import PROGRAMS, SIZE_ATTRIBUTE, Mounted, Mounting, disks_in, lost_key
from atoll.storage.quotas import Quotas

WORTH_FREEING = 2**20
CREATE_ATTEMPTS = 5  # a commit between two calls to the kernel is rare, and five of them in a row are not to be


def open_storage(state: Path, size: int | None = None, overcommit: float | None = None) -> Storage:
    """A pool where this machine can have one, else plain directories."""
    if not can_have_pool():
        return DirectoryStorage(state / "disks")
    return PoolStorage(state, size, overcommit)


def can_have_pool() -> bool:
    has_btrfs = "\tbtrfs\n" in Path("/proc/filesystems").read_text()
    return has_btrfs and Path("/dev/loop-control").exists() and all(shutil.which(program) for program in PROGRAMS)


class PoolStorage:
    """The pool of one state directory. `size` is what all disks may hold together; it can be raised, not lowered."""

    enforces_limits = True
    removes_at_once = True

    def __init__(self, state: Path, size: int | None = None, overcommit: float | None = None) -> None:
        self._overcommit = overcommit
        self._file = state / "pool.btrfs"
        self._mount = state / "disks"
        self._mounting = Mounting(self._file, self._mount, is_certain=overcommit is not None and overcommit <= 1)
        self._mounted: Mounted | None = None
        self._size_asked = size
        self._removed = b""  # which disks were, before the pool was given up
        self._so_far = ""  # why it could not be recovered yet
        try:
            self._mount.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as cause:
            raise cannot_write(str(self._mount), cause) from cause
        with machine_lock() as lock:
            try:
                self._mounted = self._mounting.open(size, lock)
            except AtollError:
                if not self._mounting.is_given_up:
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
        return admission.largest_disk(self.size, self._overcommit)

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

    def resize(self, sandbox: SandboxId, size: int) -> None:
        disk = self._quotas.find(sandbox)
        if disk is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._disks / sandbox))
        if size < disk.used:
            raise limit_in_use("disk", size, disk.used, sandbox)
        if size > disk.size:
            self._admit(size, instead_of=disk.size)
        try:
            self._resize(disk, size)
        except OSError as cause:
            raise self._failure(cause) from cause
        if size == self._quotas.largest:
            self._headroom.follow_largest()

    def _resize(self, disk: admission.Disk, size: int) -> None:
        """Set a disk's limit, and say so on it; one that is full takes that only with the higher limit."""
        limit = min(size, max(disk.limit, self._headroom.first_limit(size)))
        if size > disk.size:
            self._quotas.resize(disk.name, size, limit)
        try:
            os.setxattr(self._disks / disk.name, SIZE_ATTRIBUTE, str(size).encode())
        except BaseException:
            self._quotas.resize(disk.name, disk.size, disk.limit)
            raise
        if size <= disk.size:
            self._quotas.resize(disk.name, size, limit)

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

    def _admit(self, size: int, *, instead_of: int = 0) -> None:
        promises = self._promises()
        promises = msgspec.structs.replace(promises, committed=promises.committed - instead_of)
        room = self._headroom.look()
        if admission.refusal(promises, room, size):  # only then is it asked what is about to be freed
            promises = msgspec.structs.replace(promises, freed=self._headroom.freed)
            if refusal := admission.refusal(promises, room, size):
                raise refusal

    def _promises(self) -> admission.Promises:
        return admission.Promises(
            file=str(self._file),
            size=self.size,
            disks=len(self._quotas),
            committed=self._quotas.committed,
            reserved=self._headroom.reserved,
            overcommit=self._overcommit,
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

    def room(self) -> StorageRoom:
        looked = self._headroom.look()
        return StorageRoom(size=self.size, used=looked.used, promised=self._quotas.committed)

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
        try:
            self._mounting.let_kernel_forget()
            with machine_lock() as lock:
                if not self._file.exists():  # a new one would hide what became of this one
                    raise self._mounting.damaged("its file is gone")
                self._mounted = self._mounting.open(self._size_asked, lock)
        except AtollError as problem:
            self._so_far = (
                "it failed again as soon as it was mounted" if self._mounting.is_given_up else problem.message
            )
            raise
        self._so_far = ""
        self.epitaphs.recall(self._removed)

    def close(self) -> None:
        """Unmount. While sandboxes run, the file system lives on with them, and the next to open it finds it so."""
        mounted, self._mounted = self._mounted, None
        if mounted:
            mounted.let_go()
        with machine_lock() as lock:
            self._mounting.unmount(lock)
            # If nobody has it mounted any more, nobody can write into holes.
            if mounted and not mounted.directory.exists():
                with suppress(AtollError, OSError):
                    self._mounting.give_back(lock)

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
                attributes.begin(fd, RECORD, record)
            return btrfs.is_in_one_transaction(fd)
        finally:
            os.close(fd)

    def _failure(self, cause: OSError) -> AtollError:
        if isinstance(cause, AtollError):
            return cause
        if self._mounted:
            self._mounted.headroom.look_soon()  # the kernel may have given it up
        return failures.pool_failure(cause, self._file, self._mount)
