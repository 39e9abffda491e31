"""The mounting of a pool: its file made, attached, mounted and taken up, and let go of again.

1. One that the kernel gave up after an error below it (`btrfs.is_given_up`) takes nothing more for as long as anybody
   has it mounted, also where we do not see that. So it is mounted anew only when the kernel has forgotten it.
2. The pool is mounted nosuid and nodev below a private directory. What sandboxes write there belongs to ids from 0 up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.storage import backing, btrfs, failures, growth
from atoll.storage.epitaphs import Epitaphs
from atoll.storage.headroom import Ground, Headroom
from atoll.storage.loop_devices import attached, detach, find_device, holders, machine_lock, run
from atoll.storage.lost import DIRECTORY as LOST
from atoll.storage.lost import LostDisks
from atoll.storage.quotas import Quotas
from atoll.telemetry.preparations import preparing

PROGRAMS = ("mkfs.btrfs", "losetup", "mount", "umount")
OPTIONS = "nosuid,nodev,noatime,nodiscard"
SIZE_ATTRIBUTE = "user.atoll.size"  # on a disk's top directory, which sandboxes do not see
LABEL = "atoll"
SHARE_OF_FREE_SPACE = 0.8
GONE_SECONDS, GONE_PAUSE_SECONDS = 5.0, 0.01  # from the end of the last mount to that of the loop device
MIN_POOL = 256 * 2**20  # what mkfs.btrfs wants, and a little more


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


class Mounting:
    """The file of a pool, and the directory it is mounted on. `is_certain` says that every byte of every disk is to be
    there.
    """

    def __init__(self, file: Path, mount: Path, *, is_certain: bool) -> None:
        self.file = file
        self.mount = mount
        self.is_given_up = False  # by the kernel, as was seen when it was mounted last
        self._is_certain = is_certain

    def open(self, size: int | None, lock: int) -> Mounted:
        """Mount it, if it is not, and take it up; one that is not there yet is made, of this size if one is given."""
        self.is_given_up = False
        if not self.file.exists():
            size = max(size or default_size(self.file.parent), MIN_POOL)
            with preparing("the pool that disks of sandboxes are in"):
                make_pool(self.file, size, lock)
        with attached(self.file, lock) as device:
            try:
                if not self.mount.is_mount():
                    self._mount_device(device, lock)
            finally:
                # Detached when the last mount of it goes, whoever holds that; at once, if it could not be mounted. Said
                # also of one that was mounted already: who mounted it may have been killed before coming here.
                run("losetup", "--detach", device, otherwise=self.damaged, lock=lock)
        root = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._take_up(root, device, size)
        except BaseException as cause:
            problem = self._explained(cause)
            self.is_given_up = btrfs.is_given_up(root)
            os.close(root)
            self.unmount(lock)
            if problem is not cause:
                raise problem from cause
            raise

    def _explained(self, cause: BaseException) -> BaseException:
        if isinstance(cause, OSError) and not isinstance(cause, AtollError):
            return failures.pool_failure(cause, self.file, self.mount)
        return cause

    def _mount_device(self, device: str, lock: int) -> None:
        command = ("mount", "-t", "btrfs", device, str(self.mount), "-o")
        try:
            run(*command, OPTIONS, otherwise=self.damaged, lock=lock)
        except AtollError:
            # Who runs on it may have it mounted where we do not see it; then it is what it was when it was given up.
            if not any(Path("/sys/fs/btrfs").glob(f"*/devices/{Path(device).name}")):
                raise
            self.is_given_up = self._is_of_no_use(command, lock)
            if self.is_given_up:
                raise failures.pool_given_up(self.file) from None
            raise

    def _is_of_no_use(self, command: tuple[str, ...], lock: int) -> bool:
        try:
            run(*command, f"{OPTIONS},ro", otherwise=self.damaged, lock=lock)
        except AtollError:  # not even its root can be read
            return True
        try:
            return failures.is_given_up(self.mount)
        finally:
            self.unmount(lock)

    def _take_up(self, root: int, device: str, size: int | None) -> Mounted:
        """Go on with what is in the pool, and with its size."""
        btrfs.enable_quota(root)
        (members,) = Path("/sys/fs/btrfs").glob(f"*/devices/{Path(device).name}")
        directory = members.parents[1]
        label = directory / "label"
        known = size_in(label.read_text())
        before = known or self.file.stat().st_size  # the file of an earlier version has its size from the start
        size = max(before, size or 0)
        quotas = Quotas(root, directory / "qgroups")
        ground = Ground(
            file=self.file,
            device=device,
            root=root,
            directory=directory,
            size=size,
            is_certain=self._is_certain,
        )
        headroom = Headroom(ground, quotas)
        try:
            headroom.follow()  # to what was allocated, if somebody was killed who did this
            if known and size > known:
                headroom.prove_growth()
            if size != known:
                label.write_text(label_of(size))
            headroom.start()
            lost, epitaphs = LostDisks(self.mount), Epitaphs(self.mount)
            for name in (*disks_in(self.mount), *map(lost_key, lost.names())):
                self._recall(name, quotas)
        except BaseException:
            headroom.close()
            raise
        return Mounted(
            disks=self.mount,
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
            fd = os.open(self.mount / name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                size = read_size(self.mount / name)
                quotas.add(name, fd, size, size)
            finally:
                os.close(fd)

    def let_kernel_forget(self) -> None:
        """Wait until mount and loop device are gone: until then it is the one that failed."""
        self.is_given_up = False
        give_up = time.monotonic() + GONE_SECONDS
        while device := self._let_go_of_device():
            if time.monotonic() > give_up:
                is_ours = self.mount.is_mount()  # then everybody sees it, whoever keeps it
                raise failures.pool_held(self.file, self.mount, [] if is_ours else holders(device))
            time.sleep(GONE_PAUSE_SECONDS)

    def _let_go_of_device(self) -> str | None:
        """The one that is there yet."""
        with machine_lock() as lock:
            if self.mount.is_mount():
                self.unmount(lock)
            if device := find_device(self.file):
                detach(device, lock)
            return device

    def give_back(self, lock: int) -> None:
        """To the host, what disks do not take of its disk. The next to open the pool has it allocated again."""
        with attached(self.file, lock) as device:
            try:
                self._mount_device(device, lock)
            finally:
                run("losetup", "--detach", device, otherwise=self.damaged, lock=lock)
        root = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            btrfs.trim(root)
            os.truncate(self.file, self.file.stat().st_size)  # and with that what lies beyond its end
        finally:
            os.close(root)
            self.unmount(lock)

    def unmount(self, lock: int) -> None:
        subprocess.run(["umount", self.mount], check=False, stderr=subprocess.DEVNULL, pass_fds=[lock])

    def damaged(self, said: str) -> AtollError:
        return failures.pool_damaged(self.file, said)


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


def _cannot_make(said: str) -> AtollError:
    return error(ErrorCode.NO_SPACE, f"a pool could not be made: {said}", remedy="Free some space for it.")
