"""Findings about a machine: one per question, and for what is wrong, what to do about it.

Each part asks what it knows to ask, as a list of checks; whoever wants the findings calls `examine` on each.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from atoll.protocol.errors import AtollError
from atoll.protocol.printable import is_printable

FULL = (errno.ENOSPC, errno.EDQUOT)
FREE_SPACE = "Free space, or remove files, on the disk of the state directory, and ask again."


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # sandboxes run, but fewer, slower, or with a limit that does not hold
    MISSING = "missing"  # no sandbox can be made
    UNKNOWN = "unknown"  # could not be asked


class Area(StrEnum):
    MACHINE = "machine"
    ISOLATION = "isolation"
    LIMITS = "limits"
    CAPACITY = "capacity"
    DISKS = "disks"
    IMAGE = "image"
    TRIAL = "trial"


class Outcome(NamedTuple):
    """The outcome of a check: what it found, and for what is wrong, what to do about it."""

    status: Status
    found: str
    remedy: str = ""


class Check(NamedTuple):
    """A question: `probe` tries the thing itself where that can be done."""

    area: Area
    name: str
    probe: Callable[[], Outcome]
    needs_root: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A check and its outcome. Names and areas are stable; a program may look for them."""

    area: Area
    name: str
    status: Status
    found: str
    remedy: str = ""


def ok(found: str) -> Outcome:
    return Outcome(Status.OK, found)


def warning(found: str, remedy: str) -> Outcome:
    return Outcome(Status.WARNING, found, remedy)


def missing(found: str, remedy: str) -> Outcome:
    return Outcome(Status.MISSING, found, remedy)


def unknown(found: str, remedy: str = "") -> Outcome:
    return Outcome(Status.UNKNOWN, found, remedy)


def examine(check: Check, *, is_root: bool) -> Finding:
    """The finding of one check; whatever goes wrong in asking is an outcome too."""
    outcome = _ask(check.probe) if is_root or not check.needs_root else unknown("can be seen by root only")
    return Finding(
        area=check.area,
        name=check.name,
        status=outcome.status,
        found=_printable(outcome.found),
        remedy=_printable(outcome.remedy),
    )


def _ask(probe: Callable[[], Outcome]) -> Outcome:
    try:
        return probe()
    except AtollError as problem:
        return missing(problem.message, problem.remedy)
    except OSError as cause:
        remedy = FREE_SPACE if cause.errno in FULL else "Remove what is in the way, and ask again."
        return unknown(f"could not be examined: {cause}", remedy)
    except Exception as cause:  # a check is wrong: the others still have their say
        return unknown(
            f"could not be examined: {type(cause).__name__}: {cause}", "This is a mistake in Atoll: report it."
        )


def _printable(text: str) -> str:
    """Paths may hold anything; a terminal and a JSON document may not."""
    return "".join(character if is_printable(character) else "\N{REPLACEMENT CHARACTER}" for character in text)
