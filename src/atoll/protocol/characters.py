"""UTF-8 that comes in pieces: each cut between two characters, so that it can be made text by itself."""

from __future__ import annotations

import codecs


class Characters:
    """A stream of bytes, cut between characters. The beginning of one waits for the rest of it."""

    def __init__(self) -> None:
        self._waiting = b""

    def take(self, data: bytes) -> bytes:
        """The bytes up to the end of the last whole character. What is no text at all waits for nothing."""
        known = self._waiting + data if self._waiting else data
        count = unfinished(known)
        if not count:
            self._waiting = b""
            return known
        self._waiting = known[-count:]
        return known[:-count]

    def rest(self) -> bytes:
        """The beginning of a character whose rest does not come."""
        rest, self._waiting = self._waiting, b""
        return rest


def unfinished(data: bytes) -> int:
    """The number of bytes at the end that begin a character which may be whole with what comes: 0 to 3."""
    for length in range(1, min(3, len(data)) + 1):
        byte = data[-length]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:  # the first byte of a character; what may follow it, Python's decoder knows
            _, read = codecs.utf_8_decode(data[-length:], "replace", False)
            return length - read
    return 0
