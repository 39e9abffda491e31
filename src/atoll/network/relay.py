"""The relay between a sandbox and whom it reached: bytes both ways, each as fast as the slower side takes them.

What cannot be passed on yet is held, and no more is read meanwhile. What the sandbox says first is looked at before it
is passed on; what the other side says is not kept waiting, since in some protocols that one speaks first.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from enum import Enum

from atoll.network.turnstile import READ, WRITE, Turnstile

CHUNK = 1 << 17
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: what is not sent is dropped, and the peer told so

# One for all: what was read is passed on, or copied, before anything else is read.
_buffer = memoryview(bytearray(CHUNK))


class Look(Enum):
    """The outcome of a look at what was said so far."""

    PASS = "pass"
    MORE = "more"
    REFUSE = "refuse"


class _Side:
    __slots__ = ("events", "has_ended", "held", "is_shut", "peer")

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.held = b""  # to be sent to it
        self.has_ended = False  # it says no more
        self.is_shut = False  # it is told no more


class Relay:
    """From `inner`, which is in the sandbox, to `outer` and back. It closes both, and then calls `on_end` once."""

    def __init__(
        self,
        turnstile: Turnstile,
        inner: socket.socket,
        outer: socket.socket,
        look: Callable[[bytearray], Look],
        on_end: Callable[[], None],
    ) -> None:
        self.sent = self.received = 0
        self._turnstile = turnstile
        self._inner, self._outer = _Side(inner), _Side(outer)
        self._look, self._on_end = look, on_end
        self._said: bytearray | None = bytearray()  # while it is looked at
        self._has_ended = False
        for side, other in ((self._inner, self._outer), (self._outer, self._inner)):
            self._want(side, other)

    @property
    def is_undecided(self) -> bool:
        """Something was said, and it is not known yet what it is."""
        return bool(self._said)

    def reset(self) -> None:
        """End it at once. Twice is fine."""
        for side in (self._inner, self._outer):
            if side.peer.fileno() >= 0:
                side.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._end()

    def _want(self, side: _Side, other: _Side) -> None:
        """Be told of what can be done with it: read while nothing is held for the other, written while something is."""
        wanted = (0 if side.has_ended or other.held else READ) | (WRITE if side.held else 0)
        self._turnstile.watch(side.peer, wanted, lambda ready: self._on_ready(side, other, ready))

    def _on_ready(self, side: _Side, other: _Side, ready: int) -> None:
        try:
            if ready & WRITE and side.held:
                self._send_held(side, other)
            if ready & READ and not side.has_ended and not other.held:
                self._pass_on(side, other)
        except OSError:
            self.reset()
            return
        if self._inner.is_shut and self._outer.is_shut:
            self._end()

    def _pass_on(self, side: _Side, other: _Side) -> None:
        try:
            count = side.peer.recv_into(_buffer)
        except BlockingIOError:
            return
        if not count:
            self._finish(side, other)
        elif side is self._outer:
            self.received += count
            self._send(other, side, _buffer[:count])
        elif self._said is None:
            self.sent += count
            self._send(other, side, _buffer[:count])
        else:
            self._said += _buffer[:count]
            self._judge(self._said)

    def _judge(self, said: bytearray) -> None:
        match self._look(said):
            case Look.PASS:
                self._said = None
                self.sent += len(said)
                self._send(self._outer, self._inner, memoryview(said))
            case Look.REFUSE:
                self.reset()

    def _finish(self, side: _Side, other: _Side) -> None:
        """End one direction: when all is passed on, the other side learns that no more comes."""
        if side is self._inner and self._said:  # a beginning that could not be judged
            self.reset()
            return
        side.has_ended = True
        self._want(side, other)
        self._shut(other)

    def _shut(self, side: _Side) -> None:
        if not side.held:
            side.is_shut = True
            side.peer.shutdown(socket.SHUT_WR)

    def _send(self, side: _Side, source: _Side, data: memoryview) -> None:
        try:
            count = side.peer.send(data)
        except BlockingIOError:
            count = 0
        if count < len(data):
            side.held = bytes(data[count:])
            self._want(side, source)
            self._want(source, side)

    def _send_held(self, side: _Side, other: _Side) -> None:
        try:
            side.held = side.held[side.peer.send(side.held) :]
        except BlockingIOError:
            return
        if not side.held:
            self._want(side, other)
            self._want(other, side)
            if other.has_ended:
                self._shut(side)

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        for side in (self._inner, self._outer):
            self._turnstile.forget(side.peer)
            side.peer.close()
        self._on_end()
