"""A call made ready for its frame, or a typed error that says why it cannot be."""

from __future__ import annotations

import msgspec

from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.frames import MAX_PAYLOAD
from atoll.protocol.messages import Call, encode_message


def encode_call(call: Call) -> bytes:
    try:
        message = encode_message(call)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError) as cause:
        remedy = "Use text that is valid UTF-8."
        raise error(ErrorCode.INVALID_COMMAND, f"the command cannot be sent: {cause}", remedy=remedy) from cause
    if len(message) > MAX_PAYLOAD:
        raise error(
            ErrorCode.INVALID_COMMAND,
            f"the command with its environment takes {len(message)} bytes; {MAX_PAYLOAD} are allowed",
            remedy="Pass what is large on standard input or in a file.",
        )
    return message
