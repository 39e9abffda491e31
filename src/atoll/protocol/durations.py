"""Durations and moments: spans as users write and read them, moments as they travel."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

import msgspec

from atoll.protocol.arguments import wrong_argument

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)?")
MAX_SECONDS = 10**7

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def parse_duration(value: float | str, what: str = "timeout") -> float:
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        remedy = f'Give 0 to {MAX_SECONDS} seconds, or a text such as "30s", "5m" or "1h".'
        raise wrong_argument(what, value, "is not a time", remedy=remedy)
    return seconds


def in_words(seconds: float) -> str:
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def _seconds(value: float | str) -> float | None:
    if isinstance(value, str):
        match = _TEXT.fullmatch(value.strip())
        return float(match[1]) * _UNITS[match[2] or ""] if match else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        return None  # before it is made a float, which the largest numbers cannot be
    return float(value)
