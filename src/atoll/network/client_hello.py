"""The first message of TLS, read for the server name that the client asks for (RFC 8446 and 6066).

Bytes come in as they come, and are kept by whoever reads them: this says whether there are enough, and what they say.
"""

from __future__ import annotations

from enum import Enum

import msgspec

MAX_HELLO = 32_768  # with the most that clients put into one; a longer one is refused
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _HOST_NAME = 0, 0
_RECORD_HEADER, _MESSAGE_HEADER = 5, 4
_MAX_RECORD = 1 << 14


class Incomplete(Enum):
    """A beginning like that of TLS, which goes on."""

    INCOMPLETE = "incomplete"


class NoTls(Enum):
    """Something else."""

    NO_TLS = "no TLS"


class Hello(msgspec.Struct, frozen=True):
    """A whole one. The name is in lower case; None if there is none."""

    server_name: str | None


class BadHello(ValueError):
    """A beginning like that of TLS which is none, or is larger than any is."""


def read_hello(data: bytes | bytearray) -> Hello | Incomplete | NoTls:
    """The hello with which a stream begins, or what it begins with instead."""
    if not data:
        return Incomplete.INCOMPLETE
    if data[0] != _HANDSHAKE or (len(data) > 1 and data[1] != 3):
        return NoTls.NO_TLS
    message = _handshake_message(data)
    if message is None:
        if len(data) >= MAX_HELLO:
            raise BadHello(f"its first message has more than {MAX_HELLO} bytes")
        return Incomplete.INCOMPLETE
    return Hello(_server_name(_Reader(message)))


def _handshake_message(data: bytes | bytearray) -> bytes | None:
    """The first message, which may be spread over many records; None if some of it is missing."""
    message, offset = bytearray(), 0
    while True:
        if len(message) >= _MESSAGE_HEADER:
            if message[0] != _CLIENT_HELLO:
                raise BadHello("its first message is no hello of a client")
            length = _MESSAGE_HEADER + int.from_bytes(message[1:_MESSAGE_HEADER])
            if length > MAX_HELLO:
                raise BadHello(f"its first message has {length} bytes")
            if len(message) >= length:
                return bytes(message[_MESSAGE_HEADER:length])
        if len(data) - offset < _RECORD_HEADER:
            return None
        if data[offset] != _HANDSHAKE or data[offset + 1] != 3:
            raise BadHello("something else comes amid its first message")
        size = int.from_bytes(data[offset + 3 : offset + _RECORD_HEADER])
        if not 0 < size <= _MAX_RECORD:
            raise BadHello(f"a record of {size} bytes")
        message += data[offset + _RECORD_HEADER : offset + _RECORD_HEADER + size]
        if len(data) - offset - _RECORD_HEADER < size:
            offset = len(data)  # what there is of it was taken, and decides whether it is a hello at all
        else:
            offset += _RECORD_HEADER + size


class _Reader:
    """Fields one after the other, none of them beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def __bool__(self) -> bool:
        return self._offset < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._offset : self._offset + count]
        if len(taken) != count:
            raise BadHello("its first message is cut short")
        self._offset += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> _Reader:
        """A field with its length before it, which takes so many bytes."""
        return _Reader(self.take(self.number(size)))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._offset)


def _server_name(hello: _Reader) -> str | None:
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression
    if not hello:
        return None
    extensions, found = hello.vector(2), []
    while extensions:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            found.append(_host_name(content))
    if len(found) > 1:  # servers may take either
        raise BadHello("it asks for more than one name")
    return found[0] if found else None


def _host_name(content: _Reader) -> str:
    names = content.vector(2)
    kind, name = names.number(1), names.vector(2).rest()
    if kind != _HOST_NAME or names:
        raise BadHello("it asks for something that is no name of a host")
    return name.decode("latin-1").lower().removesuffix(".")
