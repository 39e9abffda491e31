"""Versions of what the parts say to each other, and which calls came with which.

An agent is as old as its sandbox, and outlives servers; an SDK may be older or newer than its server. So whoever speaks
learns what the other understands, and says nothing else. Rules for what comes later:

1. What is answered may have new fields, with a default: nobody minds those they do not know.
2. A new call says which version it `came_with`, and a call of which of its fields came later. The highest of them is
   PROTOCOL_VERSION. A field is not sent while it has its default, so only who uses it needs the version.
3. Nothing goes, and nothing gets another meaning.
"""

from __future__ import annotations

from typing import Any

import msgspec

from atoll.protocol.calls import FIRST, Call
from atoll.protocol.kinds import KINDS


def _since(kind: type[Call[Any]]) -> dict[str, int]:
    """The versions that a call and its fields came with, as far as that was after the first."""
    tag = kind.__struct_config__.tag
    fields = {f"{tag}.{field}": version for field, version in kind.fields_came_with.items()}
    return fields if kind.came_with == FIRST else {str(tag): kind.came_with, **fields}


SINCE = {what: version for kind in KINDS for what, version in _since(kind).items()}  # by "tag" or "tag.field"
PROTOCOL_VERSION = max([FIRST, *SINCE.values()])


def may_need_later(call: Call[Any]) -> bool:
    """Whether something of such calls came after the first version, so that it is worth a look what this one has."""
    tag = str(call.__struct_config__.tag)
    return any(what == tag or what.startswith(f"{tag}.") for what in SINCE)


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
