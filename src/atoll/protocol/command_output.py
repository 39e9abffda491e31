"""What a command writes and how it ends, from the frames of its answer. Values, no I/O.

1. Each of its two streams brings as many bytes as its call allows, in frames that have some.
2. A command of a session may have to wait for its turn. It says so once, before all else, and then that it begins; in
   between comes nothing but its end.
3. An agent that does otherwise has misbehaved, and nothing more of it is taken.
4. Bytes are kept or passed on as they came. Text is made of them once, and only if somebody wants it (`Characters`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from atoll.protocol.answers import misbehaved, result
from atoll.protocol.characters import Characters
from atoll.protocol.commands import Exec, ExecDone, ExecShell
from atoll.protocol.frames import Frame, FrameKind

STDOUT, STDERR = "stdout", "stderr"
LARGE = 4096  # bytes of a piece that is kept by itself
_STREAMS = {FrameKind.STDOUT: STDOUT, FrameKind.STDERR: STDERR}
_ENDS = (FrameKind.DONE, FrameKind.FAILED)


class CommandOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished command with all it wrote."""

    stdout: bytes
    stderr: bytes
    done: ExecDone


class Piece(NamedTuple):
    """Some bytes of one stream, as they were written."""

    stream: str
    data: bytes


class CommandFold:
    """The answer to a command. If it `keeps` what comes, `output` has all of it in the end."""

    def __init__(self, call: Exec | ExecShell, *, keeps: bool = True) -> None:
        self.done: ExecDone | None = None
        self._call = call
        self._left = dict.fromkeys(_STREAMS.values(), call.max_output)
        self._kept = {STDOUT: Kept(), STDERR: Kept()} if keeps else None

    def take(self, frame: Frame) -> Piece | None:
        """What a frame brings; None if it is the end, and `done` says how."""
        stream = _STREAMS.get(frame.kind)
        if stream is None:
            self.done = result(self._call, frame)
            return None
        if not frame.payload:  # it costs nothing to send, and would be read for ever
            raise misbehaved(f"a {frame.kind.name} frame came without a byte in it")
        left = self._left[stream]
        if left is not None:
            self._left[stream] = left = left - len(frame.payload)
            if left < 0:
                raise misbehaved("more output came than was allowed")
        if self._kept:
            self._kept[stream].add(frame.payload)
        return Piece(stream, frame.payload)

    @property
    def output(self) -> CommandOutput:
        assert self.done and self._kept, "asked of a command that has ended, and was kept"
        return CommandOutput(stdout=self._kept[STDOUT].joined(), stderr=self._kept[STDERR].joined(), done=self.done)


class Kept:
    """Bytes of a stream. Large pieces stay as they came; many small ones would take many times the memory."""

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []

    def add(self, data: bytes) -> None:
        if len(data) >= LARGE or not self._pieces:
            self._pieces.append(data)
            return
        last = self._pieces[-1]
        if isinstance(last, bytearray):
            last += data
        else:
            self._pieces.append(bytearray(data))

    def joined(self) -> bytes:
        return b"".join(self._pieces)


class CommandText:
    """What can be made text of both streams of a command, as it comes."""

    def __init__(self) -> None:
        self._characters = {STDOUT: Characters(), STDERR: Characters()}

    def take(self, piece: Piece) -> bytes:
        """What is whole by now: without the beginning of a character that is cut, with that of the one before."""
        return self._characters[piece.stream].take(piece.data)

    def rest(self) -> list[Piece]:
        """Beginnings of characters that never became whole."""
        rest = (Piece(stream, characters.rest()) for stream, characters in self._characters.items())
        return [piece for piece in rest if piece.data]


class Turn:
    """Where a command is that may have to wait for others of its session."""

    def __init__(self, *, may_wait: bool) -> None:
        self.is_waiting = False
        self._may_wait = may_wait

    def take(self, kind: FrameKind) -> None:
        """What comes next, in this order or not at all."""
        if kind is FrameKind.WAITING:
            if not self._may_wait:
                raise misbehaved("a command was said to wait that does not")
            self.is_waiting = True
        elif kind is FrameKind.STARTED:
            if not self.is_waiting:
                raise misbehaved("a command was said to begin that had not waited")
            self.is_waiting = False
        elif self.is_waiting and kind not in _ENDS:
            raise misbehaved(f"a {kind.name} frame came of a command that waits")
        self._may_wait = False
