"""The estate of an earlier workshop: what was found in a state directory, and what became of it; logged, and noted for
the doctor.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from atoll.protocol.ids import SandboxId
from atoll.telemetry.findings import Area, Check, Outcome, ok, unknown, warning
from atoll.telemetry.log_lines import about

NAME = "found"  # a file in the state directory
NOTED, SHOWN = 100, 10
COUNTED = ("running", "ended", "removed")

logger = logging.getLogger("atoll.supervisor")


class Inherited(msgspec.Struct, frozen=True, kw_only=True):
    """The estate of an earlier workshop, as it was found in a state directory, and what became of it."""

    running: tuple[SandboxId, ...] = ()
    ended: tuple[SandboxId, ...] = ()
    out_of_reach: tuple[SandboxId, ...] = ()  # of another engine, which may be running
    damaged: tuple[SandboxId, ...] = ()
    removed: tuple[SandboxId, ...] = ()
    restored: tuple[SandboxId, ...] = ()  # these are running or ended as well
    set_aside: tuple[str, ...] = ()  # what these disks are called now
    failed: tuple[SandboxId, ...] = ()  # should have been set right, and could not be; the next to open tries again
    problems: tuple[str, ...] = ()  # why


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note of it for the doctor: how many there were of each kind, and the first names of those that matter."""

    at: datetime
    counts: dict[str, int]
    names: dict[str, tuple[str, ...]]


def tell(inherited: Inherited) -> None:
    """Tell whoever runs a server what was found that nobody asked for."""
    for name in inherited.removed:
        told = about(sandbox=name)
        logger.info(
            "sandbox %s: what a server that was killed left half made or half removed is gone", name, extra=told
        )
    for name in inherited.restored:
        logger.warning("the record of sandbox %s was lost or old, and is made anew from what its disk carries", name)
    for disk in inherited.set_aside:
        logger.warning("the disk %s is no sandbox's and is set aside; `atoll ls --lost` says why", disk)
    for name in inherited.out_of_reach:
        logger.warning("sandbox %s was started by another engine and may be running, so it is left alone", name)
    for problem in inherited.problems:
        logger.warning("could not be set right, so the next start tries again: %s", problem)


def write_note(inherited: Inherited, state: Path) -> None:
    found = msgspec.structs.asdict(inherited)
    note = Note(
        at=datetime.now(UTC),
        counts={kind: len(names) for kind, names in found.items() if names},
        names={kind: tuple(map(str, names[:NOTED])) for kind, names in found.items() if names and kind not in COUNTED},
    )
    with suppress(OSError):  # on a full disk the last note stays; the log says the same
        (state / NAME).write_bytes(msgspec.json.encode(note))


def checks(state: Path) -> list[Check]:
    return [Check(Area.DISKS, "last start", partial(check_last_start, state / NAME), needs_root=True)]


def check_last_start(file: Path) -> Outcome:
    """The note of the server that was started last, whether it still runs or not."""
    try:
        note = msgspec.json.decode(file.read_bytes(), type=Note)
    except FileNotFoundError:
        return ok("none yet")
    except (msgspec.MsgspecError, UnicodeDecodeError) as cause:
        return unknown(f"{file} cannot be read: {cause}", "The next start of a server writes it anew.")
    return judge(note)


def judge(note: Note) -> Outcome:
    counted = ", ".join(f"{note.counts[kind]} {_in_words(kind)}" for kind in COUNTED if note.counts.get(kind))
    found = f"{note.at.astimezone():%Y-%m-%d %H:%M}: {counted or 'no sandboxes'}"
    bad = [kind for kind in REMEDIES if note.counts.get(kind)]
    if not bad:
        return ok(found)
    return warning(
        "; ".join([found, *(f"{_in_words(kind)}: {_list(note, kind)}" for kind in bad)]),
        " ".join(REMEDIES[kind] for kind in bad),
    )


REMEDIES = {
    "out_of_reach": "What another engine started is left alone until a server with that engine is there.",
    "damaged": "`atoll inspect` of one that is damaged says how to have it removed.",
    "restored": "What was restored goes on as its disk says; if that comes often, look after the disk of the state "
    "directory.",
    "set_aside": "`atoll ls --lost` says why disks were set aside; `atoll adopt` makes sandboxes of them again.",
    "problems": "What could not be set right is tried again by the next start: remove the cause, and start the server "
    "anew.",
}


def _in_words(kind: str) -> str:
    return kind.replace("_", " ")


def _list(note: Note, kind: str) -> str:
    names = note.names.get(kind, ())
    left = note.counts[kind] - len(names[:SHOWN])
    return ", ".join(names[:SHOWN]) + (f" and {left} more" if left else "")
