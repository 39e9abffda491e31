"""Examination of this machine's own system: whether it can be an image."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from atoll.images.host import check_layout, system_name
from atoll.telemetry.findings import Area, Check, Outcome, ok, warning


def checks() -> list[Check]:
    return [Check(Area.IMAGE, "host image", partial(check_host, Path("/")))]


def check_host(host: Path) -> Outcome:
    check_layout(host)
    system = system_name(host)
    if not (host / "var/lib/dpkg/status").exists():
        return warning(
            f"{system}, which has no dpkg: which files of /etc are public is not known, and most stay out",
            "Use a Debian or a relative of it, or another image.",
        )
    return ok(system)
