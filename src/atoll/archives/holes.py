"""Holes: files read and written without the zeros in them.

A map has a bounded number of places. Where a file has more, the smallest holes are sent as the zeros they read as.
"""

from __future__ import annotations

import errno
import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

from atoll.protocol.file_maps import MAX_PLACES, FileMap

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE = 256 * 1024
_COUNTED_IN = 512  # what a file has on its disk, whatever its blocks are
_SEEK_DATA: int = getattr(os, "SEEK_DATA", -1)  # which Windows has not
_SEEK_HOLE: int = getattr(os, "SEEK_HOLE", -1)
_NO_HOLES_KNOWN = (errno.EINVAL, errno.EOPNOTSUPP, errno.ESPIPE, errno.ENOTTY)


if sys.platform != "win32":
    _read_at, _write_at = os.pread, os.pwrite
else:  # nobody else moves where these files are read and written

    def _read_at(fd: int, count: int, offset: int, /) -> bytes:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, count)

    def _write_at(fd: int, data: memoryview, offset: int, /) -> int:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


def map_of(fd: int) -> FileMap | None:
    """Where the bytes of an open file are; None if it has no holes, or nobody knows of any. Reading begins anew."""
    if sys.platform == "win32":
        return None
    status = os.fstat(fd)
    if status.st_blocks * _COUNTED_IN >= status.st_size:
        return None
    try:
        places = _find_places(fd, status.st_size)
    except OSError as cause:
        if cause.errno not in _NO_HOLES_KNOWN:
            raise
        return None
    finally:
        os.lseek(fd, 0, os.SEEK_SET)
    if places == [(0, status.st_size)]:
        return None
    return FileMap(size=status.st_size, places=places)


def _find_places(fd: int, size: int) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    position, filled = 0, 0  # holes of up to `filled` bytes are no holes
    while position < size:
        try:
            start = os.lseek(fd, position, _SEEK_DATA)
        except OSError as cause:
            if cause.errno != errno.ENXIO:
                raise
            break  # nothing but a hole is left
        if start >= size:  # it grows
            break
        end = min(os.lseek(fd, start, _SEEK_HOLE), size)
        if places and start - sum(places[-1]) <= filled:
            start = places.pop()[0]
        places.append((start, end - start))
        if len(places) == 2 * MAX_PLACES:
            filled, places = fill_smallest(places)
        position = end
    while len(places) > MAX_PLACES:
        _, places = fill_smallest(places)
    return places


def fill_smallest(places: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """At least half of the holes between these places made part of them: up to which size, and what that leaves."""
    holes = [after[0] - sum(before) for before, after in pairwise(places)]
    filled = sorted(holes)[len(holes) // 2]
    left = [places[0]]
    for hole, (start, count) in zip(holes, places[1:], strict=True):
        if hole <= filled:
            first = left[-1][0]
            left[-1] = (first, start + count - first)
        else:
            left.append((start, count))
    return filled, left


def read_by(file_map: FileMap, fd: int) -> Iterator[bytes]:
    """The bytes that a map says there are, in pieces. Those that were cut off since are zeros."""
    for offset, count in file_map.places:
        end = offset + count
        while offset < end:
            wanted = min(PIECE, end - offset)
            data = _read_at(fd, wanted, offset) or bytes(wanted)
            offset += len(data)
            yield data


class MapWriter:
    """Writes what comes where a map says, into a file that is new. What is in no place stays a hole."""

    def __init__(self, fd: int, file_map: FileMap) -> None:
        """The map has no flaw. A size that the file system cannot have is an error here, before anything is written."""
        os.ftruncate(fd, file_map.size)
        self.left = file_map.count
        self._fd = fd
        self._places = iter(file_map.places)
        self._position = self._end = 0

    def write(self, data: bytes | memoryview) -> None:
        """No more than is left."""
        view = memoryview(data)
        while view:
            while self._position == self._end:
                self._position, count = next(self._places)
                self._end = self._position + count
            written = _write_at(self._fd, view[: self._end - self._position], self._position)
            self._position += written
            self.left -= written
            view = view[written:]
