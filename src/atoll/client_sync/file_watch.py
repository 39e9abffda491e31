# Generated from src/atoll/client/file_watch.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""What changes in a directory, as it changes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

from atoll.client_sync.link import SandboxLink
from atoll.client_sync.server import Frames, misbehaved
from atoll.protocol.errors import AtollError
from atoll.protocol.files import FileChange, FileChanges, WatchFiles, decode_file_changes
from atoll.protocol.frames import FrameKind


class FileWatch(Iterator[FileChange]):
    """Changes below a path. It sees every one that comes after `with`, or `wait_until_ready`."""

    def __init__(self, link: SandboxLink, call: WatchFiles) -> None:
        self._link = link
        self._call = call
        self._frames: Frames | None = None
        self._changes: deque[FileChange] = deque()
        self._is_ready = self._is_over = False

    def wait_until_ready(self) -> None:
        """Return once it watches. Fails if that is not possible."""
        while not self._is_ready and not self._is_over:
            self._advance()

    def __iter__(self) -> FileWatch:
        return self

    def __next__(self) -> FileChange:
        while not self._changes:
            if self._is_over:
                raise StopIteration
            self._advance()
        return self._changes.popleft()

    def __enter__(self) -> FileWatch:
        self.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_over = True
        self._changes.clear()
        if self._frames:
            self._frames.close()

    def __repr__(self) -> str:
        return f"<FileWatch of {os.fsdecode(self._call.path)!r}>"

    def _advance(self) -> None:
        try:
            if self._frames is None:
                self._frames = self._link.call(self._call)
            frame = self._frames.next()
            if frame.kind is FrameKind.DONE:
                self._is_over = True
                return
            if frame.kind is not FrameKind.EVENT:
                raise misbehaved(f"a {frame.kind.name} frame came")
            found: FileChanges = self._frames.decode(decode_file_changes, frame)
        except AtollError:
            if self._is_over:  # closed by another task or thread
                return
            self.close()
            raise
        except BaseException:
            self.close()
            raise
        self._is_ready = True
        self._changes.extend(found.changes)
