"""The choice of the engine that makes the sandboxes: the one place that knows those there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.engine.base import EngineKind


def chosen_engine() -> EngineKind:
    """The engine of this machine."""
    from atoll.engine.native.kind import NativeKind  # only when it is chosen: it is of Linux

    return NativeKind()
