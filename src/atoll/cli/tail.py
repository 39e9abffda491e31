"""The tail of a log: its last lines, whichever stream they are of, in the order in which they began."""

from __future__ import annotations

from collections import deque


class Tail:
    """Keeps the last `lines`. A line that goes on in a later piece of its stream is one line."""

    def __init__(self, lines: int) -> None:
        self._lines: deque[tuple[str, bytearray]] = deque(maxlen=lines)
        self._open: dict[str, bytearray] = {}  # by stream, the line that has no end yet

    def add(self, stream: str, data: bytes) -> None:
        for piece in _lines_of(data):
            line = self._open.pop(stream, None)
            if line is None:
                line = bytearray()
                self._lines.append((stream, line))
            line += piece
            if not piece.endswith(b"\n"):
                self._open[stream] = line

    def lines(self) -> list[tuple[str, bytes]]:
        return [(stream, bytes(line)) for stream, line in self._lines]


def _lines_of(data: bytes) -> list[bytes]:
    """Only a line feed ends a line: a progress bar's is one."""
    *ended, last = data.split(b"\n")
    return [line + b"\n" for line in ended] + ([last] if last else [])
