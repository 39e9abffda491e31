"""Disks set aside: of no sandbox that is on record, and not for us to remove. Each has a name, and a note why.

They are beside the others, in a directory that no sandbox can be called. The name is that of the sandbox it was of,
with a number if there is such a one already.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, error, shown
from atoll.storage import attributes

DIRECTORY = ".lost"
NOTE = "lost"
NAMES = "lost"  # a file beside the disks, for those who cannot look into the pool
SHOWN = 20
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[1-9][0-9]{0,8})?")


class LostDisks:
    """The lost disks in the directory `disks`."""

    def __init__(self, disks: Path) -> None:
        self._disks = disks
        self._place = disks / DIRECTORY

    def names(self) -> list[str]:
        try:
            return sorted(path.name for path in self._place.iterdir() if is_lost_name(path.name))
        except FileNotFoundError:
            return []

    def path(self, name: str) -> Path:
        """Of one that must be there."""
        if not isinstance(name, str) or not is_lost_name(name) or not (self._place / name).is_dir():
            raise no_such_disk(name)
        return self._place / name

    def put(self, sandbox: str, note: bytes) -> str:
        """Set the disk of a sandbox aside; returns what it is called now."""
        self._place.mkdir(mode=0o700, exist_ok=True)
        taken = set(self.names())
        free = (f"{sandbox}.{number}" if number > 1 else sandbox for number in count(1))
        name = next(name for name in free if name not in taken)
        attributes.write(self._disks / sandbox, NOTE, note)
        (self._disks / sandbox).rename(self._place / name)
        return name

    def take(self, name: str, sandbox: str) -> None:
        """Make it the disk of a sandbox, which must have none."""
        self.path(name).rename(self._disks / sandbox)

    def note(self, name: str) -> bytes | None:
        return attributes.read(self.path(name), NOTE)

    def write_note(self, name: str, note: bytes) -> None:
        attributes.write(self.path(name), NOTE, note)


def is_lost_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name))


def no_such_disk(name: str) -> AtollError:
    return error(
        ErrorCode.SANDBOX_NOT_FOUND,
        f"no disk called {shown(name, 100)} was set aside",
        remedy="`atoll ls --lost` lists those that were.",
    )
