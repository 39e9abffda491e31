"""Waiting for what happens to a sandbox: its end, and a change in its control group."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Self


class Watch:
    """`end` becomes readable when the sandbox has ended, `changes` when its group has news. Both are closed by us."""

    def __init__(self, end: int, changes: int) -> None:
        self.has_ended = False
        self._end, self._changes = end, changes
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._loop.add_reader(self._end, self._on_end)
        self._loop.add_reader(self._changes, self._on_change)
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._end, self._changes):
            self._loop.remove_reader(fd)
            os.close(fd)

    async def news(self) -> None:
        """Until there is some. What happens meanwhile is news for the next time."""
        await self._news.wait()
        self._news.clear()

    def _on_end(self) -> None:
        self.has_ended = True
        self._loop.remove_reader(self._end)
        self._news.set()

    def _on_change(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._changes, 65_536)
        self._news.set()
