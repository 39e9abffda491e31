"""Names of files as text, for JSON and for errors.

A name is bytes. As text it has U+FFFD where they are not UTF-8; then they come along, exactly, in base64.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping

MAX_SHOWN = 4096  # bytes of a name; the kernel takes none that is longer


def to_shown(raw: bytes) -> tuple[str, str | None]:
    """A name as text; and in base64 if that is not all there is to it."""
    try:
        return raw.decode(), None
    except UnicodeDecodeError:
        return raw.decode(errors="replace"), base64.b64encode(raw).decode()


def named(**names: bytes) -> dict[str, str]:
    """Names for the context of an error. One that is too long to be a name is cut short, and ends with an ellipsis."""
    shown = {}
    for key, raw in names.items():
        if len(raw) > MAX_SHOWN:
            shown[key] = raw[:MAX_SHOWN].decode(errors="replace") + "…"
            continue
        shown[key], exact = to_shown(raw)
        if exact is not None:
            shown[f"{key}_base64"] = exact
    return shown


def name_in(context: Mapping[str, object], key: str) -> str | None:
    """The way back, to a name as Python's `os` has it. Whoever sent the context may have put anything there."""
    exact, shown = context.get(f"{key}_base64"), context.get(key)
    if isinstance(exact, str):
        try:
            return os.fsdecode(base64.b64decode(exact, validate=True))
        except (binascii.Error, ValueError):
            pass
    return shown if isinstance(shown, str) else None
