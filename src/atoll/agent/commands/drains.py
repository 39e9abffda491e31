"""Drains: pipes that only background children still write to, and how a pipe is read without waiting."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


READ_SIZE = 64 * 1024
MAX_DRAINED_PIPES = 256


class Drains:
    """Pipes that only background children still write to: read, and dropped, until nobody can."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pipes: list[int] = []

    def take(self, fd: int) -> None:
        if read_now(fd) == b"":
            os.close(fd)
            return
        if len(self._pipes) >= MAX_DRAINED_PIPES:
            self._close(self._pipes[0])
        self._pipes.append(fd)
        self.loop.add_reader(fd, self._drop, fd)

    def _drop(self, fd: int) -> None:
        if read_now(fd) == b"":
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._pipes.remove(fd)
        self.loop.remove_reader(fd)
        os.close(fd)


def read_now(fd: int) -> bytes | None:
    """Up to READ_SIZE bytes; none at the end of the file; None if there is nothing yet."""
    with suppress(BlockingIOError):
        return os.read(fd, READ_SIZE)
    return None
