"""Scratch directories: where the agent and a shell meet, on a small file system that has no path.

No `rm -rf /` finds it, but root inside can reach a shell's directory through that shell's descriptors. So whatever is
in there may have been put there by anyone: it is opened without following links or waiting, and looked at first.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.agent.commands.spawn import no_room
from atoll.protocol.errors import AtollError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OPENING = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PLACES = ("/dev/shm", "/run", "/tmp", "/var/tmp")
CLOSED = -1  # as a descriptor: whatever is tried with it fails


class Scratch:
    """All directories of one agent. Files that are called as one of `disposable` go first when it is full."""

    def __init__(self, disposable: Sequence[str]) -> None:
        self._made = 0
        self._disposable = disposable
        self._directories: set[ScratchDirectory] = set()

    def open(self, root: int) -> None:
        """`root` is a descriptor of an empty directory, ours from now on."""
        self._root = root

    def close(self) -> None:
        os.close(self._root)

    def make_directory(self) -> ScratchDirectory:
        self._made += 1
        name = str(self._made)
        try:
            os.mkdir(name, 0o700, dir_fd=self._root)
            fd = os.open(name, os.O_DIRECTORY | _OPENING, dir_fd=self._root)
        except OSError as cause:
            raise _full(cause) from cause
        directory = ScratchDirectory(self, name, fd)
        self._directories.add(directory)
        return directory

    def remove_directory(self, directory: ScratchDirectory) -> None:
        self._directories.discard(directory)
        with suppress(OSError):
            os.rmdir(directory.name, dir_fd=self._root)

    def make_room(self) -> None:
        """Or a session that saves much would keep all others from running anything."""
        for directory in self._directories:
            directory.remove(*self._disposable)


class ScratchDirectory:
    """Files and FIFOs of one session. Once closed it has none, and takes none."""

    def __init__(self, scratch: Scratch, name: str, fd: int) -> None:
        self._scratch = scratch
        self.name = name
        self.fd = fd

    def write(self, name: str, data: bytes, *, mode: int = 0o600) -> None:
        try:
            self._write(name, data, mode)
        except OSError:
            self._scratch.make_room()
            try:
                self._write(name, data, mode)
            except OSError as cause:
                raise _full(cause) from cause

    def make_output(self, name: str) -> int:
        """Our end of a new FIFO that the shell writes to."""
        return self._make_fifo(name, os.O_RDONLY)

    def make_input(self, name: str) -> int:
        """Our end of a new FIFO that the shell reads. To open it for writing alone, a reader would have to be there."""
        return self._make_fifo(name, os.O_RDWR)

    def rename(self, name: str, new_name: str) -> None:
        with suppress(OSError):
            os.rename(name, new_name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, *names: str) -> None:
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=self.fd)

    def head(self, name: str, most: int) -> bytes:
        """The first bytes of a file; none if there is no such file."""
        return self._read(name, most, lambda size: 0)

    def tail(self, name: str, most: int) -> bytes:
        """The last bytes of a file; none if there is no such file."""
        return self._read(name, most, lambda size: max(0, size - most))

    def _read(self, name: str, most: int, start: Callable[[int], int]) -> bytes:
        with suppress(OSError):
            fd = os.open(name, os.O_RDONLY | _OPENING, dir_fd=self.fd)
            try:
                status = os.fstat(fd)
                return os.pread(fd, most, start(status.st_size)) if stat.S_ISREG(status.st_mode) else b""
            finally:
                os.close(fd)
        return b""

    def close(self) -> None:
        with suppress(OSError):
            self.remove(*os.listdir(self.fd))
        # A shell that was told to die is cleaned up after later, when the number may be another directory's.
        fd, self.fd = self.fd, CLOSED
        os.close(fd)
        self._scratch.remove_directory(self)

    def _write(self, name: str, data: bytes, mode: int) -> None:
        self.remove(name)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPENING, mode, dir_fd=self.fd)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)

    def _make_fifo(self, name: str, mode: int) -> int:
        self.remove(name)
        try:
            os.mkfifo(name, 0o600, dir_fd=self.fd)
            fd = os.open(name, mode | _OPENING, dir_fd=self.fd)
        except OSError as cause:
            raise _full(cause) from cause
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):  # somebody was quick to replace it
            os.close(fd)
            raise no_room("a command", "its files were tampered with")
        return fd


def make_private_directory() -> int:
    """For an agent that may not make a file system of its own."""
    for place in PLACES:
        path = f"{place}/.atoll-{os.urandom(8).hex()}"
        with suppress(OSError):
            if not os.statvfs(place).f_flag & os.ST_NOEXEC:  # shells start from there
                os.mkdir(path, 0o700)
                return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    raise FileNotFoundError(f"in none of {', '.join(PLACES)} files can be made and executed")


def _full(cause: OSError) -> AtollError:
    return no_room("a command", cause.strerror)
