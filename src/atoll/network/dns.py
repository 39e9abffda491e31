"""DNS messages: questions of sandboxes and our answers, our questions to the host's name servers and theirs (RFC 1035).

A codec of our own, for the little that is needed: one question, and addresses. It is what hostile bytes meet first, so
every read has its bound, and a name that points in a circle ends after so many steps.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address

import msgspec

from atoll.network.addresses import Address

MAX_DATAGRAM = 1_232  # of an answer to us: what passes every link whole
MAX_MESSAGE = 65_535
MAX_RECORDS = 256  # looked at of an answer
MAX_NAME = 255  # with a length before each label
MAX_JUMPS = 32
INTERNET, ANY_CLASS = 1, 255
PORT = 53

_HEADER = struct.Struct("!HHHHHH")  # id, flags, and how many questions, answers, authorities, others
_QUESTION = struct.Struct("!HH")  # type, class
_RECORD = struct.Struct("!HHIH")  # type, class, seconds to live, length
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _RECURSE, _CAN_RECURSE = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
_OPERATION, _RESULT = 0x7800, 0x000F
_POINTER = 0xC0
_TO_QUESTION = b"\xc0\x0c"  # a pointer to the name in the question


class Type(IntEnum):
    A = 1
    CNAME = 5
    AAAA = 28
    ANY = 255


class Result(IntEnum):
    DONE = 0
    BAD_FORMAT = 1
    FAILED = 2
    NO_NAME = 3
    NOT_IMPLEMENTED = 4
    REFUSED = 5


class BadMessage(ValueError):
    """Bytes that are no message of DNS, or none of those expected here."""


class Question(msgspec.Struct, frozen=True):
    """A question. `name` is in lower case, without a dot at its end; `raw` is how it came, to be sent back."""

    id: int
    flags: int
    name: str
    type: int
    cls: int
    raw: bytes


class Answer(msgspec.Struct, frozen=True):
    """An answer of a name server: addresses, and for how many seconds they hold."""

    result: int
    addresses: tuple[Address, ...] = ()
    seconds: int = 0
    is_truncated: bool = False


def read_question(message: bytes) -> Question:
    """A question that a client asks."""
    identity, flags, questions, *_ = _header(message)
    if flags & _RESPONSE or questions != 1:
        raise BadMessage("it is not one question")
    name, end = _read_name(message, _HEADER.size)
    kind, cls = _unpack(_QUESTION, message, end)
    raw = message[_HEADER.size : end + _QUESTION.size]
    return Question(identity, flags, name.lower(), kind, cls, raw)


def answer(question: Question, result: Result, addresses: tuple[IPv4Address, ...] = (), seconds: int = 0) -> bytes:
    flags = _RESPONSE | _AUTHORITATIVE | _CAN_RECURSE | (question.flags & (_OPERATION | _RECURSE)) | result
    head = _HEADER.pack(question.id, flags, 1, len(addresses), 0, 0)
    records = (_TO_QUESTION + _RECORD.pack(Type.A, INTERNET, seconds, 4) + address.packed for address in addresses)
    return head + question.raw + b"".join(records)


def refusal(message: bytes) -> bytes | None:
    """The answer to what is no question; None if it cannot be answered."""
    if len(message) < _HEADER.size or message[2] & 0x80:
        return None
    return message[:2] + struct.pack("!HHHHH", _RESPONSE | Result.BAD_FORMAT, 0, 0, 0, 0)


def is_query(question: Question) -> bool:
    """And not an order to change something, say."""
    return not question.flags & _OPERATION


def ask(identity: int, name: str, kind: Type) -> bytes:
    """A question to a name server."""
    labels = name.encode("ascii").split(b".")
    if not all(0 < len(label) < 64 for label in labels):
        raise BadMessage(f"{name:.100} is no name")
    encoded = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return _HEADER.pack(identity, _RECURSE, 1, 0, 0, 0) + encoded + _QUESTION.pack(kind, INTERNET)


def read_answer(message: bytes, asked: bytes) -> Answer:
    """The answer of a name server to that very question: its addresses of that type, at the end of whatever chain."""
    identity, flags, questions, answers, *_ = _header(message)
    expected = read_question(asked)
    if identity != expected.id or not flags & _RESPONSE or questions != 1:
        raise BadMessage("it answers another question")
    name, offset = _read_name(message, _HEADER.size)
    if (name.lower(), *_unpack(_QUESTION, message, offset)) != (expected.name, expected.type, expected.cls):
        raise BadMessage("it answers another question")
    if flags & _TRUNCATED:
        return Answer(flags & _RESULT, is_truncated=True)
    return _read_records(message, offset + _QUESTION.size, min(answers, MAX_RECORDS), expected, flags & _RESULT)


def _read_records(message: bytes, offset: int, count: int, asked: Question, result: int) -> Answer:
    owners, found, lives = {asked.name}, [], []
    for _ in range(count):
        owner, offset = _read_name(message, offset)
        kind, cls, seconds, length = _unpack(_RECORD, message, offset)
        offset += _RECORD.size
        data = message[offset : offset + length]
        if len(data) != length:
            raise BadMessage("it ends within a record")
        if cls == INTERNET and owner.lower() in owners:
            if kind == Type.CNAME:
                owners.add(_read_name(message, offset)[0].lower())
                lives.append(seconds)
            elif kind == asked.type and length == _LENGTHS.get(kind):
                found.append(IPv4Address(data) if kind == Type.A else IPv6Address(data))
                lives.append(seconds)
        offset += length
    return Answer(result, tuple(found), min(lives, default=0))


_LENGTHS = {int(Type.A): 4, int(Type.AAAA): 16}


def _header(message: bytes) -> tuple[int, ...]:
    return _unpack(_HEADER, message, 0)


def _unpack(layout: struct.Struct, message: bytes, offset: int) -> tuple[int, ...]:
    if offset + layout.size > len(message):
        raise BadMessage("it is cut short")
    return layout.unpack_from(message, offset)


def _read_name(message: bytes, offset: int) -> tuple[str, int]:
    """A name, and where what follows it begins. Bytes that are no ASCII stay what they are: such a name is nobody's."""
    labels: list[bytes] = []
    end, length, jumps = 0, 0, 0
    while True:
        if offset >= len(message):
            raise BadMessage("it ends within a name")
        size = message[offset]
        if size & _POINTER == _POINTER:
            if offset + 2 > len(message) or jumps == MAX_JUMPS:
                raise BadMessage("a name leads nowhere")
            end, jumps = end or offset + 2, jumps + 1
            offset = (size & ~_POINTER) << 8 | message[offset + 1]
        elif size & _POINTER:
            raise BadMessage("a name has a label of no known kind")
        elif size == 0:
            return b".".join(labels).decode("latin-1"), end or offset + 1
        else:
            labels.append(message[offset + 1 : offset + 1 + size])
            length += size + 1
            if length >= MAX_NAME or len(labels[-1]) != size:
                raise BadMessage("a name is too long, or cut short")
            if b"." in labels[-1]:
                labels[-1] = labels[-1].replace(b".", b"\\.")
            offset += size + 1
