"""The log of a background process: numbered, and bounded in memory and on disk.

Rules:
1. An entry is what was read at once from one stream, or a piece of it. Its number counts all bytes logged so far, and
   the exit of the process as one: so who has seen that has another number than who has seen what was before it.
2. Entries are packed into segments. A log's newest segment grows; when it is full it stays in memory, then goes to a
   file, then nowhere. Who has most gives up its oldest first, so that one that floods takes nothing from the others.
3. All logs share one file in the sandbox's disk. It has no name, so nothing inside finds it, replaces it or leads us
   elsewhere. A disk that is full costs history, and nothing else.
4. Nobody is sent anything. A reader comes with the number it has got to, and if that is no longer kept it is told how
   much it missed. So a process is never held up by its readers, nor they by each other.
"""

from __future__ import annotations

import os
import struct
import time
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.protocol.processes import READY_BYTES, LogEntry, LogPart, OutputStream, last_lines

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENT_BYTES = 16 * 1024
PART_BYTES = 4 * SEGMENT_BYTES
FILE_PAUSE_SECONDS = 10.0  # after a write that failed: each try at a full disk may take long

_HEADER = struct.Struct(">IBd")  # length, stream, time
_STREAMS = (OutputStream.STDOUT, OutputStream.STDERR)
_CODES = {stream: code for code, stream in enumerate(_STREAMS)}


class Bounds:
    """Segments, of one log and of all: those that are full in memory, and those in the file."""

    def __init__(self, *, memory_each: int = 16, memory: int = 256, file_each: int = 256, file: int = 4096) -> None:
        self.memory_each = memory_each
        self.memory = memory
        self.file_each = file_each
        self.file = file


class Segment:
    """Entries in a row, from the number `start` on; packed in `data`, or in the file at `slot`."""

    __slots__ = ("data", "end", "slot", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.data: bytearray | None = bytearray()
        self.slot: int | None = None


class ProcessLog:
    """The log of one process. Whoever is in `listeners` is called when there is more, or no more."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._segments: list[Segment] = []  # some in the file, some full ones in memory, the one that grows
        self.in_file = self.in_memory = 0
        self.end = 0
        self.exit_number: int | None = None
        self.is_closed = False
        self.listeners: set[Callable[[], None]] = set()

    def append(self, stream: OutputStream, data: bytes) -> None:
        now = time.time()
        left = memoryview(data)
        while left:
            segment = self._growing(len(left))
            assert segment.data is not None
            piece = left[: SEGMENT_BYTES - len(segment.data) - _HEADER.size]
            segment.data += _HEADER.pack(len(piece), _CODES[stream], now)
            segment.data += piece
            self.end = segment.end = self.end + len(piece)
            left = left[len(piece) :]
        self._tell()

    def mark_exit(self) -> None:
        """The process is over, here. What it left may write more."""
        self.end += 1
        self.exit_number = self.end

    def close(self) -> None:
        """The log is whole: all who wrote have ended."""
        self.is_closed = True
        self._tell()

    def read(self, since: int) -> LogPart:
        """About PART_BYTES of what follows `since`, up to the next gap, or to the exit, which is no entry."""
        until = self.exit_number - 1 if self.exit_number and since < self.exit_number else self.end
        entries: list[LogEntry] = []
        position, dropped, size = since, 0, 0
        for segment in self._segments[self._index_after(since) :]:
            if segment.start >= until:
                break
            data = self._store.load(segment)
            if data is None:
                continue
            if segment.start > position:
                if entries:
                    break  # what is missing is told at its place
                dropped += segment.start - position
                position = segment.start
            entries += unpack(data, segment.start, position)
            position = segment.end
            size += len(data)
            if size >= PART_BYTES:
                break
        if not entries:
            dropped += until - position
            position = until
        return LogPart(number=position, dropped=dropped, entries=entries)

    def last_lines(self) -> str:
        since = max(0, self.end - READY_BYTES)
        after_exit = max(since, self.exit_number or 0)
        entries = self.read(since).entries if since < after_exit else []
        entries += self.read(after_exit).entries
        return last_lines(b"".join(entry.data for entry in entries))

    def forget(self) -> None:
        """Make room for others with what is kept of it: nobody needs it any more."""
        self.close()
        self._store.remove(self, self._segments)
        self._segments = []

    def oldest_in_memory(self) -> Segment:
        return self._segments[self.in_file]

    def remove_oldest_in_file(self) -> Segment:
        self.in_file -= 1
        return self._segments.pop(0)

    def remove_oldest_in_memory(self) -> None:
        del self._segments[self.in_file]

    def _growing(self, length: int) -> Segment:
        """The segment for the next piece. Something short is not cut in two for the sake of a few bytes.

        None goes on after the exit of the process, which has a number and no bytes.
        """
        if self._segments and (data := self._segments[-1].data) is not None:
            room = SEGMENT_BYTES - len(data) - _HEADER.size
            if room >= min(length, SEGMENT_BYTES // 4) and self._segments[-1].end == self.end:
                return self._segments[-1]
            self._store.take(self)
        self._segments.append(Segment(self.end))
        return self._segments[-1]

    def _index_after(self, number: int) -> int:
        """Of the first segment with something behind `number`."""
        return bisect_right(self._segments, number, key=lambda segment: segment.end)

    def _tell(self) -> None:
        for listener in tuple(self.listeners):
            listener()


class LogStore:
    """Full segments of all logs of a sandbox."""

    def __init__(self, bounds: Bounds | None = None, open_file: Callable[[], int] | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._open_file = open_file or open_nameless_file
        self._logs: set[ProcessLog] = set()
        self._in_memory = 0
        self._file: int | None = None
        self._slots_made = 0
        self._free_slots: list[int] = []
        self._file_rests_until = 0.0

    def make_log(self) -> ProcessLog:
        log = ProcessLog(self)
        self._logs.add(log)
        return log

    def take(self, log: ProcessLog) -> None:
        """The newest segment of `log` is full."""
        log.in_memory += 1
        self._in_memory += 1
        if log.in_memory > self._bounds.memory_each:
            self._move_to_file(log)
        elif self._in_memory > self._bounds.memory:
            self._move_to_file(max(self._logs, key=lambda log: log.in_memory))

    def load(self, segment: Segment) -> bytes | bytearray | None:
        """None if the disk does not give it back."""
        if segment.slot is None:
            return segment.data
        with suppress(OSError):
            assert self._file is not None
            data = os.pread(self._file, SEGMENT_BYTES, segment.slot * SEGMENT_BYTES)
            return data if len(data) == SEGMENT_BYTES else None
        return None

    def remove(self, log: ProcessLog, segments: list[Segment]) -> None:
        self._logs.discard(log)
        self._in_memory -= log.in_memory
        self._free_slots += [segment.slot for segment in segments if segment.slot is not None]
        log.in_memory = log.in_file = 0
        if not self._logs:
            self.close()

    def close(self) -> None:
        """Without logs there is no file, so what it took of the disk is free again."""
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._slots_made = 0
        self._free_slots = []

    def _move_to_file(self, log: ProcessLog) -> None:
        segment = log.oldest_in_memory()
        slot = self._find_slot(log)
        log.in_memory -= 1
        self._in_memory -= 1
        if slot is not None and self._write(slot, segment):
            segment.slot, segment.data = slot, None
            log.in_file += 1
        else:
            log.remove_oldest_in_memory()
            if slot is not None:
                self._free_slots.append(slot)

    def _find_slot(self, log: ProcessLog) -> int | None:
        if time.monotonic() < self._file_rests_until:
            return None
        if log.in_file >= self._bounds.file_each:
            return log.remove_oldest_in_file().slot
        if self._free_slots:
            return self._free_slots.pop()
        if self._slots_made < self._bounds.file:
            self._slots_made += 1
            return self._slots_made - 1
        return max(self._logs, key=lambda log: log.in_file).remove_oldest_in_file().slot

    def _write(self, slot: int, segment: Segment) -> bool:
        assert segment.data is not None
        try:
            if self._file is None:
                self._file = self._open_file()
            padded = segment.data.ljust(SEGMENT_BYTES, b"\0")
            if os.pwrite(self._file, padded, slot * SEGMENT_BYTES) == SEGMENT_BYTES:
                return True
        except OSError:
            pass
        self._file_rests_until = time.monotonic() + FILE_PAUSE_SECONDS
        return False


def unpack(data: bytes | bytearray, start: int, since: int) -> list[LogEntry]:
    """The entries of a segment that starts at number `start`, from `since` on."""
    entries = []
    offset, number = 0, start
    while offset + _HEADER.size <= len(data):
        length, code, when = _HEADER.unpack_from(data, offset)
        if length == 0:  # the padding
            break
        offset += _HEADER.size
        number += length
        if number > since:
            seen = max(0, since - (number - length))
            piece = bytes(data[offset + seen : offset + length])
            entries.append(LogEntry(number=number, time=when, stream=_STREAMS[code], data=piece))
        offset += length
    return entries


def open_nameless_file() -> int:
    """In the sandbox's own disk. Its root is the one directory that nothing inside can replace."""
    with suppress(OSError):
        return os.open("/", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    # An overlay has no nameless files before Linux 6.3.
    path = f"/.atoll-{os.urandom(16).hex()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # somebody was quick to remove it
        os.unlink(path)
    return fd
