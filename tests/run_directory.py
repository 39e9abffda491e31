"""The directory that a run of tests has for its files: its own, so that no run meets what another has left behind.

Pytest would keep those of several runs side by side, and remove old ones of whoever has our name. What somebody else
still has mounted there, or removes at the same moment, would then fail a run in which every test has passed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

PREFIX = "atoll-tests-"
KEPT = 3  # of runs that failed or were killed, for whoever wants to look

_chosen = pytest.StashKey[Path]()


def choose(config: pytest.Config) -> None:
    """Unless somebody else has: the user, or the run whose worker we are."""
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
        config.stash[_chosen] = Path(config.option.basetemp)


def remove(config: pytest.Config, *, has_failed: bool) -> None:
    """That of this run, unless it failed; and the oldest of those that did."""
    if (chosen := config.stash.get(_chosen, None)) is None:
        return
    left = sorted(filter(_is_left, chosen.parent.glob(f"{PREFIX}*")), key=_begun)
    for path in [*left[:-KEPT], *([] if has_failed else [chosen])]:
        if not _is_in_use(path):
            shutil.rmtree(path, ignore_errors=True)  # another run may be doing the same


def _is_left(path: Path) -> bool:
    """Whether the run that made it is over."""
    return not Path("/proc", path.name.removeprefix(PREFIX).partition("-")[0]).exists()


def _is_in_use(path: Path) -> bool:
    """Whether something is mounted below, which may be the host's own."""
    return f" {path}/" in Path("/proc/mounts").read_text()


def _begun(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0
