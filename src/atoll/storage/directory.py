"""Disks as plain directories, where there is nothing better: only the file system's own size limits them."""

from __future__ import annotations

import errno
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import MAX_BYTES
from atoll.storage import attributes
from atoll.storage.base import StorageRoom
from atoll.storage.epitaphs import Epitaphs
from atoll.storage.lost import DIRECTORY as LOST
from atoll.storage.lost import LostDisks

REMOVING = ".removing-"
RECORD = "record"  # what a disk carries of its sandbox


class DirectoryStorage:
    enforces_limits = False
    removes_at_once = False
    largest_disk = MAX_BYTES

    def __init__(self, root: Path) -> None:
        self._root = root
        self.lost = LostDisks(root)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as cause:
            raise cannot_write(str(root), cause) from cause
        self.epitaphs = Epitaphs(root)
        for half_removed in root.glob(f"{REMOVING}*"):
            self._remove(half_removed)

    def create(self, sandbox: SandboxId, size: int, record: bytes = b"") -> Path:
        disk = self._root / sandbox
        try:
            disk.mkdir(mode=0o700)
            if record:
                attributes.write(disk, RECORD, record)
        except FileExistsError as cause:
            raise already_exists(sandbox) from cause
        except OSError as cause:
            with suppress(OSError):
                disk.rmdir()
            raise cannot_write(str(disk), cause) from cause
        return disk

    def record(self, sandbox: str) -> bytes | None:
        return attributes.read(self._root / sandbox, RECORD)

    def replace_record(self, sandbox: SandboxId, record: bytes) -> None:
        attributes.write(self._root / sandbox, RECORD, record)

    def is_covered(self, sandbox: SandboxId) -> bool:
        """The journal of an ext4, and the log of an xfs, are written in order."""
        return True

    def cover(self, sandbox: SandboxId) -> None:
        """Nothing is to be done."""

    def is_empty(self, sandbox: SandboxId) -> bool:
        return not any((self._root / sandbox).iterdir())

    def set_aside(self, sandbox: SandboxId, note: bytes) -> str:
        return self.lost.put(sandbox, note)

    def take_back(self, name: str, sandbox: SandboxId, record: bytes) -> None:
        attributes.write(self.lost.path(name), RECORD, record)
        self.lost.take(name, sandbox)

    def remove_lost(self, name: str) -> None:
        self._remove(self.lost.path(name))

    def resize(self, sandbox: SandboxId, size: int) -> None:
        """Take note of it alone: nobody is held to a size here."""

    def find(self, sandbox: SandboxId) -> Path:
        return existing(self._root / sandbox)

    def remove(self, sandbox: SandboxId) -> None:
        """Under another name first: whatever of this a power failure undoes, it is not half of it."""
        disk, going = self._root / sandbox, self._root / f"{REMOVING}{sandbox}"
        with suppress(OSError):  # one of that name is there if that could not be removed before
            disk.rename(going)
        self._remove(going)
        self._remove(disk)

    def _remove(self, disk: Path) -> None:
        # What is in there was named by the sandbox: rm follows no link, and no depth is too much for it.
        subprocess.run(["rm", "-rf", "--one-file-system", "--", disk], check=False, capture_output=True)
        if disk.exists():
            message = f"not all of {disk} could be removed"
            raise error(
                ErrorCode.STATE_DIRECTORY_UNUSABLE, message, remedy="Look at what is left there, and remove it."
            )

    def names(self) -> set[str]:
        found = {path.name for path in self._root.iterdir() if path.is_dir() and not path.is_symlink()}
        return {name for name in found if name != LOST and not name.startswith(REMOVING)}

    def used(self, sandbox: SandboxId) -> int:
        files = (path.lstat() for path in (self._root / sandbox).rglob("*"))
        return sum(status.st_blocks * 512 for status in files)

    def room(self) -> StorageRoom:
        """The room of the file system, which others use too; nothing is promised of it."""
        found = shutil.disk_usage(self._root)
        return StorageRoom(size=found.total, used=found.used, promised=0)

    def explain(self, problem: AtollError, sandbox: SandboxId) -> AtollError:
        number = problem.context.get("errno")
        is_full = number in (errno.ENOSPC, errno.EDQUOT)
        return cannot_write(str(self._root / sandbox), OSError(number, "")) if is_full else problem

    def problem(self) -> None:
        """None that is ours: what befalls the file system below is its operator's to mend."""

    def obstacle(self) -> None:
        """There is nothing to recover."""

    def recover(self) -> None:
        """Nothing is to be done."""

    def close(self) -> None:
        """Nothing is held."""


def existing(disk: Path) -> Path:
    if not disk.is_dir():
        raise error(
            ErrorCode.STATE_DIRECTORY_UNUSABLE,
            f"the disk {disk} is gone",
            remedy="Put it back from a backup, or destroy the sandbox and make a new one.",
            path=str(disk),
        )
    return disk


def already_exists(sandbox: SandboxId) -> AtollError:
    return error(
        ErrorCode.SANDBOX_EXISTS,
        f"there is a sandbox {sandbox!r} already",
        remedy="Use it, destroy it first, or choose another id.",
        sandbox=sandbox,
    )
