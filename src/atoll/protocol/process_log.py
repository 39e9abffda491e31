"""A process's log, from the frames of its answer: as events, or as a whole. Values, no I/O.

1. A part of a log has something in it, and all that is kept is no more than MAX_LOG. Else an agent misbehaves.
2. What comes after a gap does not continue the character before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from atoll.protocol.calls import event, misbehaved, result
from atoll.protocol.characters import Characters
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.processes import LogPart, OutputStream, ProcessInfo, StreamProcessLog

MAX_LOG = 64 * 2**20  # more than an agent keeps: one that sends more is not believed


class Written(NamedTuple):
    """The bytes read at once from one stream: as they were, and those that can be made text by now."""

    number: int
    stream: OutputStream
    time: float
    data: bytes
    text: bytes


class Dropped(NamedTuple):
    """So many bytes before `number` are not kept any more."""

    number: int
    missing: int


class Exited(NamedTuple):
    number: int
    process: ProcessInfo


LogEvent = Written | Dropped | Exited


class LogFold:
    """The answer to a call for a log: its parts, and at the end how the process is."""

    def __init__(self, call: StreamProcessLog) -> None:
        self.process: ProcessInfo | None = None
        self._call = call

    def take(self, frame: Frame) -> LogPart | None:
        """The part that a frame brings; None if it is the end, and `process` is known."""
        if frame.kind is FrameKind.DONE:
            self.process = result(self._call, frame)
            return None
        part = event(LogPart, frame)
        if not (part.entries or part.dropped or part.ended):  # which would be read for ever
            raise misbehaved("a part of a log came with nothing in it")
        return part


class LogEvents:
    """Parts of a log as events. A character whose bytes come in two pieces is in the `text` of the second."""

    def __init__(self) -> None:
        self._characters: dict[OutputStream, Characters] = {}

    def of(self, part: LogPart) -> Iterator[LogEvent]:
        if part.dropped:
            self._characters.clear()
            beginning = part.entries[0].number - len(part.entries[0].data) if part.entries else part.number
            yield Dropped(beginning, part.dropped)
        for entry in part.entries:
            characters = self._characters.get(entry.stream) or self._characters.setdefault(entry.stream, Characters())
            yield Written(entry.number, entry.stream, entry.time, entry.data, characters.take(entry.data))
        if part.ended:
            yield Exited(part.number, part.ended)


class WholeLog:
    """The log that is kept, whole. In one piece for each stream: many small ones would cost many times more."""

    def __init__(self) -> None:
        self.number = self.dropped = 0
        self._output = {OutputStream.STDOUT: bytearray(), OutputStream.STDERR: bytearray()}

    def add(self, part: LogPart) -> None:
        self.number, self.dropped = part.number, self.dropped + part.dropped
        for entry in part.entries:
            self._output[entry.stream] += entry.data
        if sum(map(len, self._output.values())) > MAX_LOG:
            raise misbehaved("a log came that is larger than any it keeps")

    @property
    def stdout(self) -> bytes:
        return bytes(self._output[OutputStream.STDOUT])

    @property
    def stderr(self) -> bytes:
        return bytes(self._output[OutputStream.STDERR])


def portions(part: LogPart, most: int) -> Iterator[LogPart]:
    """The log in parts of so many entries: for whoever lets others have their turn in between."""
    if len(part.entries) <= most:
        yield part
        return
    for start in range(0, len(part.entries), most):
        entries = part.entries[start : start + most]
        is_last = start + most >= len(part.entries)
        yield LogPart(
            number=part.number if is_last else entries[-1].number,
            dropped=0 if start else part.dropped,
            entries=entries,
            ended=part.ended if is_last else None,
        )
