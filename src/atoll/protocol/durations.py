"""Times as users write them: seconds, or "30s", "5m", "1h"."""

from __future__ import annotations

import math
import re

from atoll.protocol.errors import ErrorCode, error

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)?")
MAX_SECONDS = 10**7


def parse_duration(value: float | str, what: str = "timeout") -> float:
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        raise error(
            ErrorCode.INVALID_REQUEST,
            f"{what}={value!r:.50} is not a time",
            remedy=f'Give 0 to {MAX_SECONDS} seconds, or a text such as "30s", "5m" or "1h".',
        )
    return seconds


def _seconds(value: float | str) -> float | None:
    if isinstance(value, str):
        match = _TEXT.fullmatch(value.strip())
        return float(match[1]) * _UNITS[match[2] or ""] if match else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
