"""Descent: a walk through a tree of directories that somebody else may change meanwhile.

Each step is taken from a descriptor of the directory above and follows no link, so that no path is ever looked up
twice and nothing leads out. One descriptor is open however deep it goes: the way back is "..", and is checked.

Windows opens no directories: there, and nowhere else, `by_path.py` walks by paths.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


def flags(names: str) -> int:
    """The flags for `os.open`. A system without one of these has nothing that it would be for."""
    found = 0
    for name in names.split():
        found |= getattr(os, name, 0)
    return found


HAS_DESCRIPTORS = os.open in os.supports_dir_fd  # of directories
OPEN_DIRECTORY = flags("O_RDONLY O_DIRECTORY O_NOFOLLOW O_CLOEXEC O_NONBLOCK")
NO_FOLLOW = flags("O_NOFOLLOW")
NEW_FILE = flags("O_WRONLY O_CREAT O_EXCL O_NOFOLLOW O_CLOEXEC O_BINARY")

Identity = tuple[int, int]


class Descent:
    """A directory somewhere in a tree: `fd` is open there, `names` lead there from where it began."""

    def __init__(self, fd: int) -> None:
        """`fd` is ours from now on."""
        self.fd = fd
        self.names: list[bytes] = []
        self._above: list[Identity] = []

    def __enter__(self) -> Descent:
        return self

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.fd)

    def enter(self, name: bytes) -> None:
        self.enter_opened(name, os.open(name, OPEN_DIRECTORY, dir_fd=self.fd))

    def enter_opened(self, name: bytes, fd: int) -> None:
        """Into the directory `name`, at which `fd` is open, and ours from now on."""
        self._above.append(identity(os.fstat(self.fd)))
        self.names.append(name)
        os.close(self.fd)
        self.fd = fd

    def leave(self) -> bytes:
        """Go back up; the name of what was left."""
        fd = os.open(b"..", OPEN_DIRECTORY, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = fd
        if identity(os.fstat(fd)) != self._above.pop():
            raise OSError(errno.ESTALE, "it was moved meanwhile")
        return self.names.pop()

    def path_of(self, name: bytes) -> bytes:
        """`name` in this directory, counted from where the descent began."""
        return b"/".join((*self.names, name))

    def children(self) -> list[bytes]:
        return names_in(self.fd)

    def status_of(self, name: bytes) -> os.stat_result:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def open(self, name: bytes, flags: int, mode: int = 0o777) -> int:
        return os.open(name, flags, mode, dir_fd=self.fd)

    def target_of(self, name: bytes) -> bytes:
        """Where a link leads."""
        return os.readlink(name, dir_fd=self.fd)

    def make_link(self, target: bytes, name: bytes) -> None:
        os.symlink(target, name, dir_fd=self.fd)

    def open_new_directory(self, name: bytes, mode: int) -> int:
        """A descriptor of it; it may have been there."""
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=self.fd)
        return os.open(name, OPEN_DIRECTORY, dir_fd=self.fd)

    def enter_new(self, name: bytes, mode: int) -> None:
        self.enter_opened(name, self.open_new_directory(name, mode))

    def make_directory(self, name: bytes, mode: int, *, is_exact: bool) -> None:
        """Make a directory if there is none. It has what the umask would take of `mode` as well, if that `is_exact`."""
        fd = self.open_new_directory(name, mode)
        try:
            if is_exact and sys.platform != "win32":
                os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def remove_file(self, name: bytes) -> None:
        os.unlink(name, dir_fd=self.fd)

    def remove_opened(self, name: bytes, fd: int) -> None:
        """The file that is open at `fd`, which is closed, if `name` still is its own."""
        try:
            if identity(os.fstat(fd)) == identity(self.status_of(name)):
                self.remove_file(name)
        finally:
            os.close(fd)

    def set_time(self, name: bytes, fd: int, seconds: int) -> None:
        """Of the file `name`, which is open at `fd`."""
        os.utime(fd, (seconds, seconds))

    def flaw_in_name(self, name: bytes) -> str | None:
        """Why nothing here can be called so; a file system that takes no such name says so itself."""
        return None


def descend(path: bytes, opening: int = OPEN_DIRECTORY & ~NO_FOLLOW) -> Descent:
    """From the directory at `path`, to which a link may lead."""
    if HAS_DESCRIPTORS:
        return Descent(os.open(path, opening))
    from atoll.archives.by_path import PathDescent  # what this imports stays in every sandbox's memory

    return PathDescent(path)


def go_on(descent: Descent, unfinished: list[list[bytes]], depth: int = 0) -> bool:
    """To the next directory of those that are unfinished, one list for each level below `depth`, the next one last.

    False if there is none. What is gone, or no directory any more, is passed over.
    """
    while True:
        while unfinished[-1]:
            try:
                descent.enter(unfinished[-1].pop())
                return True
            except OSError as cause:
                if cause.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
        unfinished.pop()
        if len(descent.names) == depth:
            return False
        descent.leave()


def first_missing(path: bytes) -> bytes:
    """The first directory on the way to `path` that does not exist; `path` itself, if all of them do."""
    for step in _ways(path):
        if not os.path.exists(step):
            return step
    return path


def find_no_directory(path: bytes) -> bytes | None:
    """The step on the way to `path`, or `path` itself, that is there and is no directory."""
    for step in (*_ways(path), path.rstrip(b"/")):
        if os.path.exists(step) and not os.path.isdir(step):
            return step
    return None


def _ways(path: bytes) -> Iterator[bytes]:
    """The directories above `path`, from the top."""
    steps = path.rstrip(b"/").split(b"/")
    for count in range(1, len(steps)):
        if way := b"/".join(steps[:count]):
            yield way


def identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def names_in(fd: int) -> list[bytes]:
    """A directory's names, in the order of their bytes. They alone have to fit into memory."""
    return sorted(map(os.fsencode, os.listdir(fd)))
