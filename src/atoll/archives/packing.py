"""Packing: a file or a directory as a tar archive, made piece by piece."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from atoll.archives.descent import NO_FOLLOW, Descent, descend, flags, go_on
from atoll.archives.exclusion import Exclusion
from atoll.archives.holes import PIECE, map_of, read_by
from atoll.archives.tar import END, MAX_NAME, Entry, EntryType, encode_entry, padding
from atoll.protocol.errors import AtollError
from atoll.protocol.file_maps import FileMap
from atoll.protocol.names import MAX_SHOWN
from atoll.protocol.transfer_bounds import Bounds, Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NO_BOUNDS = Bounds()
NAMES_LEFT_OUT = 10

_READING = flags("O_RDONLY O_NONBLOCK O_NOCTTY O_NOFOLLOW O_CLOEXEC O_BINARY")
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)  # or something else by now


class Packer:
    """`pieces` are the archive. An error has the path in `filename`.

    A directory's entries are named from within it, after "." for itself; a file is one entry with its own name.
    Links are packed, not followed. Sockets, FIFOs and devices are left out, which `left_out` tells, and so is what
    vanishes meanwhile. What goes beyond `bounds` is an error before it is packed. Holes are not packed. What `exclude`
    has rules for is as if it were not there.
    """

    def __init__(self, path: bytes, bounds: Bounds = NO_BOUNDS, exclude: Sequence[bytes] = ()) -> None:
        self.count = 0  # entries, without "."
        self.left_out = 0
        self.left_out_names: list[bytes] = []  # of the first, from within the directory
        self._path = path
        self._tally = Tally(bounds, path)
        self._exclusion = Exclusion(exclude) if exclude else None
        self._ready = bytearray()

    def pieces(self) -> Iterator[bytes]:
        status = os.stat(self._path)
        if stat.S_ISDIR(status.st_mode):
            self._add(_entry(b".", EntryType.DIRECTORY, status))
            yield from self._pack_directory()
        else:
            name = os.path.basename(self._path.rstrip(b"/"))
            yield from self._pack_file(name, os.open(self._path, _READING & ~NO_FOLLOW))
        yield bytes(self._ready) + END

    def _pack_directory(self) -> Iterator[bytes]:
        with descend(self._path) as descent:
            unfinished: list[list[bytes]] = []
            name = b""
            try:
                while True:
                    directories: list[bytes] = []
                    for name in descent.children():
                        yield from self._pack_entry(name, descent, directories)
                    unfinished.append(directories[::-1])
                    name = b""
                    if not go_on(descent, unfinished):
                        return
            except AtollError:  # some of which are an OSError, and know their path
                raise
            except OSError as cause:
                path = b"/".join(filter(None, (self._path, *descent.names, name)))[:MAX_SHOWN]
                raise OSError(cause.errno, cause.strerror, path) from cause

    def _pack_entry(self, name: bytes, descent: Descent, directories: list[bytes]) -> Iterator[bytes]:
        path = descent.path_of(name)
        try:
            status = descent.status_of(name)
            if self._exclusion and self._exclusion.leaves_out(path, is_directory=stat.S_ISDIR(status.st_mode)):
                return
            match stat.S_IFMT(status.st_mode):
                case stat.S_IFREG:
                    yield from self._pack_file(path, descent.open(name, _READING))
                case stat.S_IFDIR:
                    self._count(path)
                    self._add(_entry(path, EntryType.DIRECTORY, status))
                    directories.append(name)
                case stat.S_IFLNK:
                    target = descent.target_of(name)
                    self._count(path)
                    self._add(_entry(path, EntryType.SYMLINK, status)._replace(target=target))
                case _:
                    self._leave_out(path)
        except OSError as cause:
            if cause.errno not in _GONE:
                raise
        if len(self._ready) >= PIECE:
            yield self._take()

    def _pack_file(self, name: bytes, fd: int) -> Iterator[bytes]:
        """As many bytes as it has now: what is added meanwhile is left out, what is cut off becomes zeros."""
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return
            file_map = map_of(fd) or FileMap(size=status.st_size, places=[(0, status.st_size)])
            self._count(name, file_map.count)
            holes = file_map if file_map.count != file_map.size else None
            self._add(_entry(name, EntryType.FILE, status)._replace(size=file_map.size, map=holes))
            for data in read_by(file_map, fd):
                self._ready += data
                if len(self._ready) >= PIECE:
                    yield self._take()
            self._ready += padding(file_map.count)
        finally:
            os.close(fd)

    def _count(self, path: bytes, size: int = 0) -> None:
        if len(path) > MAX_NAME:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        self._tally.add_entry(path.count(b"/") + 1, size)
        self.count += 1

    def _leave_out(self, name: bytes) -> None:
        self.left_out += 1
        if len(self.left_out_names) < NAMES_LEFT_OUT:
            self.left_out_names.append(name)

    def _add(self, entry: Entry) -> None:
        self._ready += encode_entry(entry)

    def _take(self) -> bytes:
        taken = bytes(self._ready)
        self._ready.clear()
        return taken


def _entry(name: bytes, kind: EntryType, status: os.stat_result) -> Entry:
    return Entry(name, kind, mode=stat.S_IMODE(status.st_mode), modified_at=int(status.st_mtime))
