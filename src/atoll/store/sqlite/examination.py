"""Examination of a database: whether a server can use it, asked without changing anything."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from atoll.store.sqlite.database import MIGRATIONS, NAME, look_at, newer, unusable
from atoll.telemetry.findings import Area, Check, Outcome, ok


def checks(state: Path) -> list[Check]:
    return [Check(Area.DISKS, "database", partial(check_database, state / NAME), needs_root=True)]


def check_database(path: Path) -> Outcome:
    if not path.exists():
        return ok("none yet; the first server makes one")
    seen = look_at(path)
    if seen.version > len(MIGRATIONS):
        raise newer(path, seen.version)
    if seen.damage:
        raise unusable(path, ValueError(seen.damage))
    earlier = (
        "" if seen.version == len(MIGRATIONS) else ", of an earlier version, which the next server brings up to date"
    )
    return ok(f"{path}, whole{earlier}")
