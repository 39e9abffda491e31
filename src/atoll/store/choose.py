"""The choice of a store: the one place that knows which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.store.sqlite import examination
from atoll.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.store.base import Store
    from atoll.telemetry.findings import Check


def open_store(state: Path) -> Store:
    """The store of the machine whose state directory this is, made or brought up to date where it must be."""
    return SqliteStore(state)


def checks(state: Path) -> list[Check]:
    """Checks of it, for the doctor."""
    return examination.checks(state)
