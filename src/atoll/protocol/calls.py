"""Calls: what a host asks of an agent. Each names the type of its answer, and is made ready for its frame here."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from atoll.protocol.arguments import MAX_NUMBER, wrong_argument
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import MAX_PAYLOAD

_UNSENDABLE = (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError)

Answer = TypeVar("Answer", covariant=True)


class Call(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `Call[Sessions]` is answered with Sessions, in the DONE frame that ends it (`protocol/answers.py`).

    Frames that come before that one, if there are such, its documentation tells.
    """

    @property
    def patience(self) -> float | None:
        """For how many seconds its agent is waited for, besides a grace; None for as long as it takes."""
        return 0.0


def encode_call(call: Call[Any]) -> bytes:
    """The payload of its frame, or a typed error that says why it cannot be sent."""
    try:
        message = _encode(call)
    except _UNSENDABLE as cause:
        raise _cannot_be_sent(call) from cause
    if len(message) > MAX_PAYLOAD:
        raise error(
            ErrorCode.INVALID_COMMAND,
            f"the command with its environment takes {len(message)} bytes; {MAX_PAYLOAD} are allowed",
            remedy="Pass what is large on standard input or in a file.",
            size=len(message),
            limit=MAX_PAYLOAD,
        )
    return message


def _cannot_be_sent(call: Call[Any]) -> AtollError:
    for field, value in msgspec.structs.asdict(call).items():
        try:
            _encode(value)
        except _UNSENDABLE as cause:
            is_large = isinstance(cause, OverflowError)
            remedy = f"Give {MAX_NUMBER} at most." if is_large else "Use text that is valid UTF-8."
            return wrong_argument(field, value, f"cannot be sent: {cause}", remedy, ErrorCode.INVALID_COMMAND)
    raise AssertionError("what can be sent in parts can be sent as a whole")


_encode = msgspec.msgpack.Encoder().encode
