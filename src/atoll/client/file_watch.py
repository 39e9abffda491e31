"""A file watch: changes in a directory, as they happen."""

from __future__ import annotations

import os
from typing import Self

from atoll.client.feeds import AsyncFeed
from atoll.client.link import SandboxLink
from atoll.client.server import Frames, misbehaved
from atoll.protocol.files import FileChange, FileChanges, WatchFiles, decode_file_changes
from atoll.protocol.frames import FrameKind


class AsyncFileWatch(AsyncFeed[FileChange]):
    """Changes below a path. It sees every one that comes after `async with`, or `wait_until_ready`."""

    def __init__(self, link: SandboxLink, call: WatchFiles) -> None:
        super().__init__()
        self._link = link
        self._call = call
        self._frames: Frames | None = None
        self._is_ready = False

    async def wait_until_ready(self) -> None:
        """Return once it watches. Fails if that is not possible."""
        async with self._lock.turn():
            self._check_uninterrupted()
            while not self._is_ready and not self._is_over:
                await self._advance()

    async def __aenter__(self) -> Self:
        await self.wait_until_ready()
        return self

    def __repr__(self) -> str:
        return f"<AsyncFileWatch of {os.fsdecode(self._call.path)!r}>"

    async def _receive(self) -> None:
        if self._frames is None:
            self._frames = await self._link.call(self._call, opening=self._opening)
        frame = await self._frames.next()
        if frame.kind is FrameKind.DONE:
            self._is_over = True
            return
        if frame.kind is not FrameKind.EVENT:
            raise misbehaved(f"a {frame.kind.name} frame came")
        found: FileChanges = self._frames.decode(decode_file_changes, frame)
        if self._is_ready and not found.changes:  # it costs nothing to send, and would be read for ever
            raise misbehaved("changes came without one in them")
        self._is_ready = True
        self._items.extend(found.changes)
