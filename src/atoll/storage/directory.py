"""One plain directory per sandbox. The disk limit is not enforced here: only the file system's size is."""

from __future__ import annotations

import shutil
from pathlib import Path

from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.ids import SandboxId


class DirectoryStorage:
    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, sandbox: SandboxId) -> Path:
        """A new, empty disk."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = self._root / sandbox
        try:
            disk.mkdir(mode=0o700)
        except FileExistsError as cause:
            raise error(
                ErrorCode.SANDBOX_EXISTS,
                f"there is a sandbox {sandbox!r} already",
                remedy="Use it, destroy it first, or choose another id.",
                sandbox=sandbox,
            ) from cause
        return disk

    def remove(self, sandbox: SandboxId) -> None:
        """Everything the sandbox wrote. Twice is fine."""
        # rmtree never follows a link out of the tree; what is in there was named by the sandbox.
        shutil.rmtree(self._root / sandbox, ignore_errors=True)
