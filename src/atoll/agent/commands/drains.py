"""Drains: pipes that only background children still write to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atoll.agent.commands.execution import read_now

if TYPE_CHECKING:
    import asyncio


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
