"""Maps of files with holes: where the bytes are that travel, so that nobody sends or writes zeros."""

from __future__ import annotations

import msgspec

MAX_PLACES = 4096
MAX_SIZE = 2**63 - 1


class FileMap(msgspec.Struct, frozen=True, kw_only=True):
    """Of a file of `size` bytes: (offset, count) of what comes, in order. Who was sent one checks it by `flaw_in`."""

    size: int
    places: list[tuple[int, int]]

    @property
    def count(self) -> int:
        """The number of bytes that travel."""
        return sum(count for _, count in self.places)


def flaw_in(file_map: FileMap) -> str | None:
    """The fault of a map, whoever made it."""
    if not 0 <= file_map.size <= MAX_SIZE:
        return f"it is of a file of {file_map.size} bytes"
    if len(file_map.places) > MAX_PLACES:
        return f"it has {len(file_map.places)} places; {MAX_PLACES} are allowed"
    end = 0
    for offset, count in file_map.places:
        if offset < end or count < 0 or offset + count > file_map.size:
            return f"{count} bytes from {offset} on have no place in it"
        end = offset + count
    return None
