"""The place the log is written to: standard error, or a file that is put away when it is full."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from atoll.protocol.errors import cannot_write

STDERR = 2


class Sink(Protocol):
    def write(self, data: bytes) -> None:
        """All of it. Raises OSError if that cannot be."""
        ...

    def reopen(self) -> None:
        """At the next write; somebody has put the file away."""
        ...

    def close(self) -> None: ...


class StandardError:
    def write(self, data: bytes) -> None:
        write_all(STDERR, data)

    def reopen(self) -> None:
        """Nothing is to be done: it has no name."""

    def close(self) -> None:
        """Nothing is to be done: it is everybody's."""


class LogFile:
    """A file of at most `size` bytes, and the `kept` before it: PATH.1 is the latest of those.

    With `takes_stderr` what else is written to standard error goes there too, such as the last words of Python.
    """

    def __init__(self, path: Path, size: int, kept: int, *, takes_stderr: bool = False) -> None:
        self._path = path
        self._size = size
        self._kept = kept
        self._takes_stderr = takes_stderr
        self._is_to_be_reopened = False
        self._descriptor = -1
        try:
            self._open()
        except OSError as cause:
            raise cannot_write(str(path), cause) from cause

    def write(self, data: bytes) -> None:
        if self._is_to_be_reopened:
            self._is_to_be_reopened = False
            self._open()
        if self._is_full(len(data)):
            self._put_away()
            self._open()
        write_all(self._descriptor, data)

    def reopen(self) -> None:
        self._is_to_be_reopened = True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        self.close()
        self._descriptor = descriptor
        if self._takes_stderr:
            os.dup2(descriptor, STDERR)

    def _is_full(self, more: int) -> bool:
        """By what the file itself says, as others may shorten it. A pipe or a device is never full."""
        found = os.fstat(self._descriptor)
        return stat.S_ISREG(found.st_mode) and 0 < found.st_size > self._size - more

    def _put_away(self) -> None:
        if not self._kept:
            self._path.unlink(missing_ok=True)
        for number in range(self._kept, 0, -1):
            with suppress(FileNotFoundError):
                self._numbered(number - 1).replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
