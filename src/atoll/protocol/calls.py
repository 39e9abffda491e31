"""A call made ready for its frame, or a typed error that says why it cannot be."""

from __future__ import annotations

import msgspec

from atoll.protocol.arguments import MAX_NUMBER, wrong_argument
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import MAX_PAYLOAD
from atoll.protocol.messages import Call, encode_message

_UNSENDABLE = (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError)


def encode_call(call: Call) -> bytes:
    try:
        message = encode_message(call)
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


def _cannot_be_sent(call: Call) -> AtollError:
    for field, value in msgspec.structs.asdict(call).items():
        try:
            encode_message(value)
        except _UNSENDABLE as cause:
            is_large = isinstance(cause, OverflowError)
            remedy = f"Give {MAX_NUMBER} at most." if is_large else "Use text that is valid UTF-8."
            return wrong_argument(field, value, f"cannot be sent: {cause}", remedy, ErrorCode.INVALID_COMMAND)
    raise AssertionError("what can be sent in parts can be sent as a whole")
