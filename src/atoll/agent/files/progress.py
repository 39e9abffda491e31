"""The progress of a worker: how far it is, in memory that PID 1 has as well, and can read when the worker is gone."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap

_CALLS = struct.Struct("=QI")  # how many were taken on a connection, and the length of the latest
_PHASE, _OUTDATED, _AT, _CALL = 0, 1, 8, 32


class Phase(IntEnum):
    """How far an operation is."""

    NOT_BEGUN = 0
    BETWEEN_FRAMES = 1
    MID_FRAME = 2
    ANSWERING = 3  # the last frame has been sent, or has not: nobody can say. Nothing was read beyond the operation.
    KEPT = 4  # it has been sent; the connection is kept for the next call, of which nothing has been read


class Progress:
    """Both sides see at once what either of them writes. Nobody else has this memory."""

    SIZE = 8192

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory

    def begin(self, *, is_outdated: bool = False) -> None:
        """A connection, with its first call."""
        self.phase = Phase.NOT_BEGUN
        self.is_outdated = is_outdated
        _CALLS.pack_into(self._memory, _AT, 0, 0)

    @property
    def phase(self) -> int:
        return self._memory[_PHASE]

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._memory[_PHASE] = phase

    @property
    def is_outdated(self) -> bool:
        """Whether a session may be somewhere else than the worker was told; PID 1 says so."""
        return bool(self._memory[_OUTDATED])

    @is_outdated.setter
    def is_outdated(self, is_outdated: bool) -> None:
        self._memory[_OUTDATED] = is_outdated

    def take_call(self, message: bytes) -> None:
        """A further call. One that is too long for this memory is counted, and that is all."""
        length = len(message) if len(message) <= self.SIZE - _CALL else 0
        _CALLS.pack_into(self._memory, _AT, self.calls + 1, length)
        self._memory[_CALL : _CALL + length] = message[:length]

    @property
    def calls(self) -> int:
        """How many were taken after the first."""
        calls: int = _CALLS.unpack_from(self._memory, _AT)[0]
        return calls

    @property
    def latest(self) -> bytes | None:
        """The latest of them, if it was kept."""
        length: int = _CALLS.unpack_from(self._memory, _AT)[1]
        return bytes(self._memory[_CALL : _CALL + length]) if length else None
