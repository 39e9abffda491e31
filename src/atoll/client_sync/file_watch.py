# Generated from client/file_watch.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""A file watch: changes in a directory, as they happen."""

from __future__ import annotations

import os
from typing import Self

from atoll.client_sync.plumbing.feeds import Feed
from atoll.client_sync.plumbing.remote_sandbox import Frames, RemoteSandbox
from atoll.protocol.file_answers import WatchFold
from atoll.protocol.files import FileChange, FileDone, WatchFiles


class FileWatch(Feed[FileChange]):
    """Changes below a path. It sees every one that comes after `with`, or `wait_until_ready`."""

    def __init__(self, sandbox: RemoteSandbox, call: WatchFiles) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._call = call
        self._frames: Frames[FileDone] | None = None
        self._fold = WatchFold(call)

    def wait_until_ready(self) -> None:
        """Return once it watches. Fails if that is not possible."""
        with self._lock.turn():
            self._check_uninterrupted()
            while not self._fold.is_ready and not self._is_over:
                self._advance()

    def __enter__(self) -> Self:
        self.wait_until_ready()
        return self

    def __repr__(self) -> str:
        return f"<FileWatch of {os.fsdecode(self._call.path)!r}>"

    def _receive(self) -> None:
        if self._frames is None:
            self._frames = self._sandbox.call(self._call, scope=self._scope)
        found = self._fold.take(self._frames.next())
        if found is None:
            self._is_over = True
        else:
            self._items.extend(found)
