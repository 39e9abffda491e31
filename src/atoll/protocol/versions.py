"""Versions of what the parts say to each other, and which calls came with which.

An agent is as old as its sandbox, and outlives servers; an SDK may be older or newer than its server. So whoever speaks
learns what the other understands, and says nothing else. Rules for what comes later:

1. What is answered may have new fields, with a default: nobody minds those they do not know.
2. A new call, or a new field of one, stands in SINCE with its version, and PROTOCOL_VERSION is no lower than that. A
   field is not sent while it has its default, so only who uses it needs the version.
3. Nothing goes, and nothing gets another meaning.
"""

from __future__ import annotations

from typing import Any

import msgspec

FIRST = 1
PROTOCOL_VERSION = 1
SINCE: dict[str, int] = {}  # by the tag of a call, or "tag.field"


def version_needed(message: bytes) -> int:
    """By a call as it travels. What cannot be read needs none: whoever gets it will say so."""
    if not SINCE:
        return FIRST
    try:
        call = msgspec.msgpack.decode(message, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return FIRST
    tag = call.get("type")
    return max(SINCE.get(what, FIRST) for what in (str(tag), *(f"{tag}.{field}" for field in call)))
