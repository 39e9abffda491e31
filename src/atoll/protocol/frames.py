"""Frames: everything between the host and an agent travels in them.

    length of payload (4 bytes, big-endian) | kind (1 byte) | payload

Rules:
1. A length above MAX_PAYLOAD is refused when its header arrives, before a byte of payload is kept, so a peer
   that lies about a length costs the other side five bytes.
2. The decoder never holds more than one unfinished frame.
3. A kind outside FrameKind is refused: nothing is skipped, nothing is guessed.
4. Where a frame of content (`CONTENT`) begins and ends means nothing: of one that has not come as a whole, what is
   there may be taken as a frame of its own. So nobody on the way gathers what is large, and nobody waits for its end.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

MAX_PAYLOAD = 2**20
FRAMES = "application/vnd.atoll.frames"  # what HTTP calls a body made of frames
_HEADER = struct.Struct(">IB")
_CALL_NUMBER = struct.Struct(">Q")
HEADER_SIZE = _HEADER.size


class FrameKind(IntEnum):
    CALL = 1  # host → agent: what to do, a message
    INPUT = 2  # host → agent: bytes for the operation; empty means their end
    STDOUT = 16  # agent → host: bytes as they were written
    STDERR = 17
    DATA = 18  # agent → host: bytes that are no command's output: a file, an archive, a terminal
    EVENT = 19  # agent → host: one of several messages of an operation, before its DONE
    WAITING = 20  # agent → host: others of the session come first
    STARTED = 21  # agent → host: its turn has come; only after WAITING
    DONE = 30  # agent → host: the operation's result, a message; the connection is free for the next call
    FAILED = 31  # agent → host: the operation's error, a message; likewise
    LOST = 32  # agent → host: a call by its number, and the error of its operation if it has had no DONE and no FAILED


QUEUEING = frozenset((FrameKind.WAITING, FrameKind.STARTED))
CONTENT = frozenset((FrameKind.INPUT, FrameKind.STDOUT, FrameKind.STDERR, FrameKind.DATA))


class Frame(NamedTuple):
    kind: FrameKind
    payload: bytes


class FrameError(Exception):
    """The peer broke the rules above; the connection is of no further use."""


_KINDS = {int(kind): kind for kind in FrameKind}


def encode_header(kind: FrameKind, length: int) -> bytes:
    """The header before a payload of so many bytes, which are sent apart."""
    return _HEADER.pack(length, kind)


def decode_header(data: bytes | bytearray, start: int = 0) -> tuple[int, FrameKind]:
    """The length that is claimed, and the kind."""
    length, kind = _HEADER.unpack_from(data, start)
    if length > MAX_PAYLOAD:
        raise FrameError(f"a frame claims {length} bytes; {MAX_PAYLOAD} are allowed")
    if kind not in _KINDS:
        raise FrameError(f"{kind} is no kind of frame")
    return length, _KINDS[kind]


def encode_frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a frame holds at most {MAX_PAYLOAD} bytes, not {len(payload)}")
    return _HEADER.pack(len(payload), kind) + payload


def encode_lost(number: int, problem: bytes) -> bytes:
    """The payload of LOST. A connection's calls are counted from 1."""
    return _CALL_NUMBER.pack(number) + problem


def decode_lost(payload: bytes) -> tuple[int, bytes]:
    if len(payload) < _CALL_NUMBER.size:
        raise FrameError(f"a LOST frame of {len(payload)} bytes names no call")
    (number,) = _CALL_NUMBER.unpack_from(payload)
    return number, payload[_CALL_NUMBER.size :]


class FrameDecoder:
    """Bytes in, frames out: those of content in the pieces in which they come, all others whole.

    What is read at once is kept as it came, and frames are cut from it; only a frame that must be whole is gathered.
    """

    def __init__(self) -> None:
        self._buffer: bytes | bytearray = b""
        self._start = 0  # of what has not been popped
        self._kind = FrameKind.DATA  # of the content that is to come
        self._left = 0  # bytes of it

    @property
    def is_mid_frame(self) -> bool:
        return self._left > 0 or len(self._buffer) > self._start

    def feed(self, data: bytes) -> list[Frame]:
        self.push(data)
        frames: list[Frame] = []
        while frame := self.pop():
            frames.append(frame)
        return frames

    def push(self, data: bytes) -> None:
        if not self._buffer:
            self._buffer = data
            return
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(self._buffer)
        self._buffer += data

    def pop(self) -> Frame | None:
        """The next frame, or what is there of its content."""
        there = len(self._buffer) - self._start
        if self._left:
            return self._pop_content(min(self._left, there)) if there else None
        if there < HEADER_SIZE:
            self._keep_rest()
            return None
        length, kind = decode_header(self._buffer, self._start)
        there -= HEADER_SIZE
        if there < length and kind in CONTENT:
            self._start += HEADER_SIZE
            self._kind, self._left = kind, length
            if there:
                return self._pop_content(there)
            self._keep_rest()
            return None
        if there < length:
            self._keep_rest()
            return None
        self._start += HEADER_SIZE
        return Frame(kind, self._take(length))

    def _pop_content(self, length: int) -> Frame:
        self._left -= length
        return Frame(self._kind, self._take(length))

    def _take(self, length: int) -> bytes:
        start, end = self._start, self._start + length
        payload = self._cut(start, end)
        if end == len(self._buffer):
            self._buffer, self._start = b"", 0
        else:
            self._start = end
        return payload

    def _cut(self, start: int, end: int) -> bytes:
        if isinstance(self._buffer, bytes):
            return self._buffer[start:end]
        with memoryview(self._buffer) as view:  # a slice of a bytearray would be one more copy
            return bytes(view[start:end])

    def _keep_rest(self) -> None:
        """Let go of what is before it."""
        if self._start:
            self._buffer, self._start = self._buffer[self._start :], 0

    def take_rest(self) -> bytes:
        """The bytes not popped, for others to decode; of content that was begun, the rest as a frame."""
        rest = self._cut(self._start, len(self._buffer))
        if self._left:
            rest = encode_header(self._kind, self._left) + rest
        self._buffer, self._start, self._left = b"", 0, 0
        return rest
