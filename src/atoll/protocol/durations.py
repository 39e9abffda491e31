"""Durations and moments: spans as users write and read them, moments as they travel."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, SupportsFloat, SupportsIndex

import msgspec

from atoll.protocol.arguments import to_number, wrong_argument

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_PLAIN = re.compile(_NUMBER)
# "1h30m": from the largest unit to the smallest, each once.
_SPELLED = re.compile(r"\s*".join(rf"(?:({_NUMBER})\s*{unit}(?![a-z]))?" for unit in _UNITS))
MAX_SECONDS = 10**7

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Duration = float | str | timedelta | SupportsFloat | SupportsIndex


def parse_duration(value: Duration, what: str = "timeout") -> float:
    """Seconds, from a number of them, a timedelta, or text."""
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        remedy = f'Give 0 to {MAX_SECONDS} seconds, a timedelta, or a text such as "30s", "5m" or "1h30m".'
        raise wrong_argument(what, value, "is not a time", remedy=remedy)
    return seconds


def in_words(seconds: float) -> str:
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def _seconds(value: object) -> float | None:
    if isinstance(value, str):
        return _spelled(value.strip())
    if isinstance(value, timedelta):
        return value.total_seconds()
    return to_number(value)


def _spelled(text: str) -> float | None:
    if _PLAIN.fullmatch(text):
        return float(text)
    match = _SPELLED.fullmatch(text) if text else None
    if not match:
        return None
    return sum(float(number) * _UNITS[unit] for unit, number in zip(_UNITS, match.groups(), strict=True) if number)
