"""Limits: how much of the machine one sandbox may use."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, SupportsIndex

from atoll.protocol import transfer_bounds
from atoll.protocol.arguments import MAX_NUMBER, to_number, to_whole, wrong_argument
from atoll.protocol.errors import AtollError, ErrorCode, error, shown

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_CPUS = re.compile(r"\d{1,6}(\.\d{1,20})?(e-\d{1,2})?|\d{1,6}/\d{1,6}")  # 2, 0.25, 6.25e-02, 1/4

MIB = 2**20
MIN_MEMORY = 24 * MIB  # less than this, and the kernel would kill the agent before small programs
MIN_DISK = 1 * MIB
MIN_PIDS = 8  # the agent, a shell and a short pipeline
MAX_PIDS = 2**22  # the kernel's own bound on pids
MAX_BYTES = 2**60
MIN_CPUS, MAX_CPUS = Fraction(1, 100), Fraction(4096)


@dataclass(frozen=True, init=False, kw_only=True)
class Limits:
    """Validated limits, in cpus and bytes. Written by hand they also take "512MiB", "4GB" and "1/4"."""

    cpus: float
    memory: int
    disk: int
    pids: int

    def __init__(
        self, *, cpus: float | str = 2, memory: int | str = "2GiB", disk: int | str = "4GiB", pids: int = 1024
    ) -> None:
        values = {"cpus": cpus, "memory": memory, "disk": disk, "pids": pids}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(
        self,
    ) -> None:  # also what msgspec calls, which makes Limits from a message without __init__
        object.__setattr__(self, "cpus", _cpus(self.cpus))
        object.__setattr__(self, "memory", _bytes("memory", self.memory, MIN_MEMORY))
        object.__setattr__(self, "disk", _bytes("disk", self.disk, MIN_DISK))
        object.__setattr__(self, "pids", _pids(self.pids))


def parse_limits(value: Limits | str | dict[str, Any] | None) -> Limits:
    """Limits from what a user may write: nothing, a size's name, or the fields."""
    match value:
        case None:
            return USUAL
        case Limits():
            return value
        case str() if value in SIZES:
            return SIZES[value]
        case dict() if value.keys() <= _FIELDS:
            return Limits(**value)
        case dict():
            unknown = sorted(str(key) for key in value.keys() - _FIELDS)
            raise _invalid("limits", unknown, f"Use {', '.join(sorted(_FIELDS))}.")
        case _:
            raise _invalid("limits", value, f"Use Limits(...), or one of {', '.join(SIZES)}.")


def limit_in_use(name: str, asked: int, used: int, sandbox: str) -> AtollError:
    """For a limit that is lower than what is in use, of which nothing can be taken away."""
    return error(
        ErrorCode.LIMIT_IN_USE,
        f"sandbox {sandbox!r} uses {format_size(used)} of {name}, and cannot be limited to {format_size(asked)}",
        remedy="Nothing was changed. Have it use less first, or give it a higher limit.",
        limit=name,
        asked=asked,
        used=used,
        sandbox=sandbox,
    )


def _cpus(value: object) -> float:
    remedy = f"Give a number of cpus from {float(MIN_CPUS)} to {MAX_CPUS}, or a fraction such as '1/4'."
    text = _as_text(value)
    if text is None or not _CPUS.fullmatch(text):
        raise _invalid("cpus", value, remedy)
    try:
        cpus = Fraction(text)
    except ZeroDivisionError as cause:
        raise _invalid("cpus", value, remedy) from cause
    if not MIN_CPUS <= cpus <= MAX_CPUS:
        raise _invalid("cpus", value, remedy)
    return float(cpus)


def _as_text(value: object) -> str | None:
    """A number as Python writes it, whatever number it is."""
    if isinstance(value, str):
        return value
    if (whole := to_whole(value)) is not None:
        return shown(whole)
    return None if (number := to_number(value)) is None else shown(number)


def _bytes(name: str, value: object, least: int) -> int:
    remedy = f"Give bytes, or text such as '512MiB' or '4GB'; at least {least // MIB}MiB."
    number = _to_bytes(value)
    if number is None or not least <= number <= MAX_BYTES:
        raise _invalid(name, value, remedy)
    return number


def _to_bytes(value: object) -> int | None:
    """A number, or text such as "4GB"; None for what is neither."""
    if isinstance(value, str) and len(value) < 40 and (match := _SIZE.fullmatch(value.strip())):
        return math.floor(Fraction(match[1]) * _UNITS[(match[2] or "").lower()])
    return to_whole(value)


def parse_bounds(
    max_bytes: SupportsIndex | str | None = transfer_bounds.MAX_BYTES,
    max_entries: SupportsIndex | str | None = transfer_bounds.MAX_ENTRIES,
    max_depth: SupportsIndex | str | None = transfer_bounds.MAX_DEPTH,
) -> transfer_bounds.Bounds:
    """The bounds of a download from what a user may write: numbers, text such as "64GiB", None or "none"."""
    return transfer_bounds.Bounds(
        max_bytes=_bound("max_bytes", max_bytes),
        max_entries=_bound("max_entries", max_entries),
        max_depth=_bound("max_depth", max_depth),
    )


def format_size(size: int) -> str:
    """Bytes for people, such as "23.5 GiB"."""
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"


def _bound(name: str, given: object) -> int | None:
    if given is None or (isinstance(given, str) and given.lower() == "none"):
        return None
    number = _to_bytes(given)
    if number is None or not 0 <= number <= MAX_NUMBER:
        example = "bytes, or text such as '64GiB'" if name == "max_bytes" else "a whole number from 0 on"
        raise wrong_argument(name, given, "is not a bound", remedy=f"Give {example}; None for no bound.")
    return number


def _pids(value: object) -> int:
    number = to_whole(value)
    if number is None or not MIN_PIDS <= number <= MAX_PIDS:
        raise _invalid("pids", value, f"Give a whole number of processes from {MIN_PIDS} to {MAX_PIDS}.")
    return number


def _invalid(name: str, value: object, remedy: str) -> AtollError:
    return wrong_argument(name, value, "is not a limit", remedy=remedy, code=ErrorCode.INVALID_LIMITS)


_FIELDS = {field.name for field in fields(Limits)}

USUAL = Limits()
SIZES: dict[str, Limits] = {
    "lite": Limits(cpus=1 / 16, memory="256MiB", disk="2GB"),
    "basic": Limits(cpus=1 / 4, memory="1GiB", disk="4GB"),
    "standard-1": Limits(cpus=1 / 2, memory="4GiB", disk="8GB"),
    "standard-2": Limits(cpus=1, memory="6GiB", disk="12GB"),
    "standard-3": Limits(cpus=2, memory="8GiB", disk="16GB"),
    "standard-4": Limits(cpus=4, memory="12GiB", disk="20GB"),
}
