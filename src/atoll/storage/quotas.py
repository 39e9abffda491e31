"""The quotas of a pool's disks: what each may use, uses, and may use just now.

The loop adds and drops, the watch over free space reads and changes limits from its thread: each step is one operation
on a dictionary.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from atoll.storage import btrfs
from atoll.storage.admission import Disk


class Quotas:
    def __init__(self, root: int, directory: Path) -> None:
        """`directory` is where the kernel shows them."""
        self._root = root
        self._directory = directory
        self._groups: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self._largest = 0
        self.committed = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def largest(self) -> int:
        """The most that one of them may use."""
        return self._largest

    def add(self, name: str, subvolume: int, size: int, limit: int) -> None:
        """`subvolume` is open as a directory."""
        self._groups[name] = btrfs.id_of(subvolume)
        self.committed += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        self._largest = max(self._largest, size)
        if size:
            self.limit(name, limit)

    def resize(self, name: str, size: int, limit: int) -> None:
        was = self._sizes[name]
        self.limit(name, limit)
        self._sizes[name] = size
        self.committed += size - was
        self._largest = max(self._sizes.values()) if was == self._largest else max(self._largest, size)

    def limit(self, name: str, limit: int) -> None:
        btrfs.limit(self._root, self._groups[name], limit)
        self._limits[name] = limit

    def drop(self, name: str) -> None:
        size = self._sizes.pop(name, 0)
        self.committed -= size
        if size == self._largest:
            self._largest = max(self._sizes.values(), default=0)
        self._limits.pop(name, None)
        self._groups.pop(name, None)

    def rename(self, name: str, new_name: str) -> None:
        for known in (self._groups, self._sizes, self._limits):
            if name in known:
                known[new_name] = known.pop(name)

    def group(self, name: str) -> Path | None:
        return self._directory / f"0_{self._groups[name]}" if name in self._groups else None

    def used(self, name: str) -> int:
        """As the kernel counts it, with what it has not written to the pool yet left out."""
        return _read(self._directory / f"0_{self._groups[name]}", "referenced")

    def disks(self) -> list[Disk]:
        """All; those that go meanwhile are left out."""
        return [disk for disk in map(self.find, list(self._sizes)) if disk]

    def find(self, name: str) -> Disk | None:
        """With what is on its way to it."""
        with suppress(OSError, KeyError):
            group = self._directory / f"0_{self._groups[name]}"
            used = _read(group, "referenced") + _read(group, "rsv_data")
            return Disk(name=name, size=self._sizes[name], used=used, limit=self._limits[name])
        return None


def _read(group: Path, name: str) -> int:
    return int((group / name).read_text())
