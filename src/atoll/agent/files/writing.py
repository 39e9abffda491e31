"""Writing: a file appears as a whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from atoll.agent.files.errors import is_a_directory, names_a_directory, not_a_file
from atoll.archives.holes import MapWriter
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.file_maps import FileMap, flaw_in
from atoll.protocol.names import named

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

MAX_LINKS = 40  # as many as the kernel follows
NEW_FILE_MODE, NEW_DIRECTORY_MODE = 0o644, 0o755
COPIED_AT_ONCE = 2**27
LARGE = 32 * 1024

_PARENT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_KEEPING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_NO_COPY_RANGE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.ETXTBSY)
_IN_PLACE = os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_EMPTY_PATH = 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


class Place:
    """A name in a directory, after all links: what is done there follows none any more."""

    def __init__(self, path: bytes, *, follow: bool = True, make_parents: bool = False) -> None:
        self.path = path
        self.directory = os.open(b"/", _PARENT)
        self.found: os.stat_result | None = None
        try:
            self._resolve(path, follow, make_parents)
        except BaseException:
            os.close(self.directory)
            raise

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.directory)

    def _resolve(self, path: bytes, follow: bool, make_parents: bool) -> None:
        for _ in range(MAX_LINKS):
            parent, _, self.name = path.rpartition(b"/")
            if self.name in (b"", b".", b".."):
                raise names_a_directory(self.path)
            if parent or path.startswith(b"/"):
                self._go(parent or b"/", make_parents)
            self.found = self._look()
            if not (follow and self.found and stat.S_ISLNK(self.found.st_mode)):
                return
            path = os.readlink(self.name, dir_fd=self.directory)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def _look(self) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        return None

    def _go(self, parent: bytes, make_parents: bool) -> None:
        try:
            directory = os.open(parent, _PARENT, dir_fd=self.directory)
        except FileNotFoundError:
            if not make_parents:
                raise
            make_directories(parent, above=self.directory)
            directory = os.open(parent, _PARENT, dir_fd=self.directory)
        os.close(self.directory)
        self.directory = directory


class NewFile:
    """Content on its way to a place, where `appear` puts it. Without that it vanishes.

    A file that is there and keeps nothing, such as a device or a file in /proc, is written as it is. To let go of a
    large one that is replaced takes the kernel half a millisecond for each MiB. Nobody needs to wait for that:
    `take_replaced` gives it to whoever closes it later.
    """

    def __init__(self, place: Place, mode: int | None) -> None:
        self.path = place.path
        self._place = place
        self._name: bytes | None = None  # of the temporary file, while it has one
        self._replaced: int | None = None  # a descriptor that keeps what was there, if that is large
        self.is_in_place = _is_written_in_place(place)
        self._mode = mode
        self.fd = self._open_in_place() if self.is_in_place else self._make()

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.fd)
        if (replaced := self.take_replaced()) is not None:
            os.close(replaced)
        if self._name:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._place.directory)

    def take_replaced(self) -> int | None:
        """A descriptor that is all that is left of what was there before, if that was large."""
        replaced, self._replaced = self._replaced, None
        return replaced

    def appear(self, *, exclusive: bool = False, sync: bool = False) -> None:
        if not self.is_in_place:
            self._set_mode(self._mode)  # last: whoever writes to a program that becomes another user ends that
        if sync:
            os.fsync(self.fd)
        if self.is_in_place:
            return
        if exclusive or (self._place.found is None and self._name is None):
            self._take_name(exclusive)
        else:
            self._replace()
        if sync:
            _sync_directory(self._place.directory)

    def _open_in_place(self) -> int:
        fd = os.open(self._place.name, _IN_PLACE, dir_fd=self._place.directory)
        if os.isatty(fd):
            os.close(fd)
            raise not_a_file(self._place.path, "terminal")
        return fd

    def _make(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            if can_name_the_nameless():
                return os.open(b".", flags | os.O_TMPFILE, 0o600, dir_fd=self._place.directory)
        except OSError as cause:
            if cause.errno not in _NO_TMPFILE:
                raise
        self._name = temporary_name()
        return os.open(self._name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._place.directory)

    def _set_mode(self, mode: int | None) -> None:
        found = self._place.found
        if found and (found.st_uid, found.st_gid) != (0, 0):
            with suppress(OSError):  # an owner who has no number here
                os.fchown(self.fd, found.st_uid, found.st_gid)
        if mode is None:
            mode = stat.S_IMODE(found.st_mode) if found else NEW_FILE_MODE
        os.fchmod(self.fd, mode)

    def _take_name(self, exclusive: bool) -> None:
        place = self._place
        try:
            if self._name:
                os.link(self._name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            else:
                self._link(place.name)
        except FileExistsError:
            if exclusive:
                raise
            self._replace()

    def _replace(self) -> None:
        place = self._place
        if self._name is None:
            name = temporary_name()
            self._link(name)
            self._name = name
        if place.found and place.found.st_size >= LARGE:
            with suppress(OSError):
                self._replaced = os.open(place.name, _KEEPING, dir_fd=place.directory)
        os.rename(self._name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
        self._name = None

    def _link(self, name: bytes) -> None:
        """Give the nameless file a name."""
        if _libc.linkat(self.fd, b"", self._place.directory, name, _AT_EMPTY_PATH):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def write_by_map(file: NewFile, file_map: FileMap, pieces: Iterable[bytes | memoryview]) -> None:
    """The bytes of a file with holes, where its map has them."""
    path = file.path
    if flaw := flaw_in(file_map):
        message = f"the map of {os.fsdecode(path)!r:.200} is wrong: {flaw}"
        raise error(ErrorCode.INVALID_REQUEST, message, remedy="Send another, or none.", **named(path=path))
    if file.is_in_place:  # what keeps nothing has no holes either
        raise not_a_file(path, "device, or made by the kernel")
    writer, left = MapWriter(file.fd, file_map), file_map.count
    for data in pieces:
        left -= len(data)
        if left < 0:
            break
        writer.write(data)
    if left:
        message = f"{file_map.count} bytes of {os.fsdecode(path)!r:.200} were announced, and it was another number"
        raise error(ErrorCode.INVALID_REQUEST, message, remedy="Send what its map says.", **named(path=path))


def make_directories(path: bytes, *, above: int, mode: int = NEW_DIRECTORY_MODE) -> None:
    """`path` with what is missing on the way. What is there already stays as it is, whatever it is."""
    path = path.rstrip(b"/") or b"/"
    ends = [end for end, byte in enumerate(path) if byte == ord("/") and end and path[end - 1] != byte]
    steps = [*(path[:end] for end in ends), path]
    last = len(steps) - 1
    for number, step in enumerate(steps):
        with suppress(FileExistsError):
            os.mkdir(step, mode if number == last else NEW_DIRECTORY_MODE, dir_fd=above)


def copy_content(source: int, target: int, size: int) -> None:
    """With the holes. The kernel shares the blocks where it can."""
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
        except OSError as cause:
            if cause.errno != errno.ENXIO:
                raise
            break  # nothing but a hole is left
        position = min(os.lseek(source, start, os.SEEK_HOLE), size)
        _copy_range(source, target, start, position - start)
    os.ftruncate(target, size)


def copy_to_the_end(source: int, target: int) -> None:
    """Of what has no size of its own."""
    while data := os.read(source, 64 * 1024):
        write_all(target, data)


def _copy_range(source: int, target: int, start: int, count: int) -> None:
    os.lseek(target, start, os.SEEK_SET)
    has_copy_range = True
    while count > 0:
        try:
            if has_copy_range:
                copied = os.copy_file_range(source, target, min(count, COPIED_AT_ONCE), offset_src=start)
            else:
                copied = os.sendfile(target, source, start, min(count, COPIED_AT_ONCE))
        except OSError as cause:
            if not has_copy_range or cause.errno not in _NO_COPY_RANGE:
                raise
            has_copy_range = False
            continue
        if not copied:
            return  # it has become shorter
        start, count = start + copied, count - copied


def write_all(fd: int, data: bytes | memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def temporary_name() -> bytes:
    return b".atoll-" + os.urandom(8).hex().encode()


@cache
def can_name_the_nameless() -> bool:
    """Whether whoever opened a nameless file may give it a name: since Linux 6.10. Before, that took a capability."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= (6, 10)


def _is_written_in_place(place: Place) -> bool:
    if not place.found:
        return False
    mode = place.found.st_mode
    if stat.S_ISDIR(mode):
        raise is_a_directory(place.path, "Give the path of a file.")
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise not_a_file(place.path, "FIFO" if stat.S_ISFIFO(mode) else "socket")
    return not stat.S_ISREG(mode) or is_unreal(place.found)


def is_unreal(status: os.stat_result) -> bool:
    """Whether it is a file that the kernel makes up: such takes no place anywhere."""
    return not status.st_blocks and any(status.st_dev == os.stat(root).st_dev for root in (b"/proc", b"/sys"))


def _sync_directory(directory: int) -> None:
    fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
