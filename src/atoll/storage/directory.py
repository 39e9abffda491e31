"""One plain directory per sandbox, where there is nothing better: only the file system's own size limits it."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error
from atoll.protocol.ids import SandboxId


class DirectoryStorage:
    enforces_limits = False
    removes_at_once = False

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as cause:
            raise cannot_write(str(root), cause) from cause

    def create(self, sandbox: SandboxId, size: int) -> Path:
        disk = self._root / sandbox
        try:
            disk.mkdir(mode=0o700)
        except FileExistsError as cause:
            raise already_exists(sandbox) from cause
        except OSError as cause:
            raise cannot_write(str(disk), cause) from cause
        return disk

    def find(self, sandbox: SandboxId) -> Path:
        return existing(self._root / sandbox)

    def remove(self, sandbox: SandboxId) -> None:
        # What is in there was named by the sandbox: rm follows no link, and no depth is too much for it.
        disk = self._root / sandbox
        subprocess.run(["rm", "-rf", "--one-file-system", "--", disk], check=False, capture_output=True)
        if disk.exists():
            message = f"not all of {disk} could be removed"
            raise error(
                ErrorCode.STATE_DIRECTORY_UNUSABLE, message, remedy="Look at what is left there, and remove it."
            )

    def names(self) -> set[str]:
        return {path.name for path in self._root.iterdir() if path.is_dir() and not path.is_symlink()}

    def used(self, sandbox: SandboxId) -> int:
        files = (path.lstat() for path in (self._root / sandbox).rglob("*"))
        return sum(status.st_blocks * 512 for status in files)

    def explain(self, problem: AtollError, sandbox: SandboxId) -> AtollError:
        number = problem.context.get("errno")
        is_full = number in (errno.ENOSPC, errno.EDQUOT)
        return cannot_write(str(self._root / sandbox), OSError(number, "")) if is_full else problem

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
