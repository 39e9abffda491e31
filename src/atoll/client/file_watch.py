"""A file watch: changes in a directory, as they happen."""

from __future__ import annotations

import os
from typing import Self

from atoll.client.plumbing.feeds import AsyncFeed
from atoll.client.plumbing.remote_sandbox import Frames, RemoteSandbox
from atoll.protocol.file_answers import WatchFold
from atoll.protocol.files import FileChange, FileDone, WatchFiles


class AsyncFileWatch(AsyncFeed[FileChange]):
    """Changes below a path. It sees every one that comes after `async with`, or `wait_until_ready`."""

    def __init__(self, sandbox: RemoteSandbox, call: WatchFiles) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._call = call
        self._frames: Frames[FileDone] | None = None
        self._fold = WatchFold(call)

    async def wait_until_ready(self) -> None:
        """Return once it watches. Fails if that is not possible."""
        async with self._lock.turn():
            self._check_uninterrupted()
            while not self._fold.is_ready and not self._is_over:
                await self._advance()

    async def __aenter__(self) -> Self:
        await self.wait_until_ready()
        return self

    def __repr__(self) -> str:
        return f"<AsyncFileWatch of {os.fsdecode(self._call.path)!r}>"

    async def _receive(self) -> None:
        if self._frames is None:
            self._frames = await self._sandbox.call(self._call, scope=self._scope)
        found = self._fold.take(await self._frames.next())
        if found is None:
            self._is_over = True
        else:
            self._items.extend(found)
