"""Answers about files, from their frames: content, archives, lists, changes. Values, no I/O.

1. What is read is told first, then where its bytes are if it has holes and the caller takes such, then come its bytes.
2. No frame is empty: it would cost nothing to send, and be read for ever. Only the first of a watch is, which says that
   it has begun.
3. An agent that does otherwise, or sends more of a file than was asked for, has misbehaved.
"""

from __future__ import annotations

from msgspec.structs import force_setattr

from atoll.protocol.calls import Call, event, misbehaved, out_of_place, result
from atoll.protocol.file_maps import FileMap
from atoll.protocol.files import (
    FileChange,
    FileChanges,
    FileDone,
    FileInfo,
    FileList,
    ListFiles,
    PackFiles,
    ReadFile,
    WatchFiles,
)
from atoll.protocol.frames import Frame, FrameKind


class DoneFold:
    """The end that these answers have in common: FileDone."""

    def __init__(self, call: Call[FileDone]) -> None:
        self.done: FileDone | None = None
        self._call = call

    def _is_end(self, frame: Frame) -> bool:
        if frame.kind is not FrameKind.DONE:
            return False
        self.done = result(self._call, frame)
        return True


class PackFold(DoneFold):
    """An archive."""

    def __init__(self, call: PackFiles) -> None:
        super().__init__(call)

    def take(self, frame: Frame) -> bytes | None:
        """Some of its bytes; None if this is the end."""
        return None if self._is_end(frame) else data_in(frame)


class ReadFold(DoneFold):
    """A file that is read: `info` once its first frame is here, and `map` after that if it has one."""

    def __init__(self, call: ReadFile) -> None:
        super().__init__(call)
        self.info: FileInfo | None = None
        self.map: FileMap | None = None
        self._may_have_map = call.holes
        self._left = call.length

    def take(self, frame: Frame) -> bytes | None:
        """Some of its bytes, or none if this is `info` or `map`; None if it is the end."""
        if self.info is None:
            self.info = event(FileInfo, frame)
            return b""
        if self._may_have_map:
            self._may_have_map = False
            if frame.kind is FrameKind.EVENT:
                self.map = event(FileMap, frame)
                return b""
        if self._is_end(frame):
            return None
        data = data_in(frame)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise misbehaved("more of a file came than was asked for")
        return data


class ListFold(DoneFold):
    """The entries of a directory."""

    def __init__(self, call: ListFiles) -> None:
        super().__init__(call)
        self._top: int | None = None  # the length of the path of the directory that is listed

    def take(self, frame: Frame) -> list[FileInfo] | None:
        """Some of it, which counts from that directory; None if this is the end."""
        if self._is_end(frame):
            return None
        files = event(FileList, frame).files
        if self._top is None:  # what is in the directory itself comes first
            self._top = files[0].raw_path.rfind(b"/") + 1
        for info in files:
            force_setattr(info, "listed_from", self._top)
        return files


class WatchFold(DoneFold):
    """The changes in a directory, once it `is_ready`."""

    def __init__(self, call: WatchFiles) -> None:
        super().__init__(call)
        self.is_ready = False

    def take(self, frame: Frame) -> list[FileChange] | None:
        """Some changes, mostly none at first; None if this is the end."""
        if self.is_ready and self._is_end(frame):
            return None
        found = event(FileChanges, frame).changes
        if self.is_ready and not found:
            raise misbehaved("changes came without one in them")
        self.is_ready = True
        return found


def data_in(frame: Frame) -> bytes:
    """The bytes of a DATA frame, which has some."""
    if frame.kind is not FrameKind.DATA:
        raise out_of_place(frame)
    if not frame.payload:
        raise misbehaved("a DATA frame came without a byte in it")
    return frame.payload
