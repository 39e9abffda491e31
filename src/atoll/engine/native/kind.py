"""The native engine before it is opened: what it needs, and what the doctor asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.engine.base import DiskKind
from atoll.engine.native import examination
from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.host_share import raise_file_max
from atoll.engine.native.preflight import check_machine

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.engine.base import EngineSettings
    from atoll.telemetry.findings import Check


class NativeKind:
    disks = DiskKind.LOCAL_DIRECTORY

    def check(self) -> None:
        check_machine()

    def checks(self, ground: Path) -> list[Check]:
        return examination.checks(str(ground))

    def open(self, settings: EngineSettings) -> NativeEngine:
        engine = NativeEngine(settings.state, settings.runtime)
        if not settings.keep_host_settings:
            raise_file_max()
        return engine
