"""Settings of a server."""

from __future__ import annotations

from pathlib import Path

import msgspec

from atoll.network.control import Upstream
from atoll.preview.settings import PreviewSettings
from atoll.supervisor.promised_memory import OVERCOMMIT

SOCKET = "server.sock"
IDLE_EXIT_SECONDS = 60.0
KEEP_LOST_SECONDS = 30 * 86400.0  # of disks that were set aside, and nobody asked for


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`host` and `port` are None for a server on its Unix socket alone. An embedded one ends when nobody needs it."""

    state: Path
    runtime: Path
    host: str | None = None
    port: int | None = None
    is_embedded: bool = False
    idle_exit: float = IDLE_EXIT_SECONDS
    allowed_hosts: tuple[str, ...] = ()
    disk_overcommit: float | None = None  # how often the pool may be promised; None: as often as what is in use allows
    memory_overcommit: float = OVERCOMMIT
    keep_file_max: bool = False  # fs.file-max as it is, although one sandbox can then open all that the machine may
    keep_lost: float = KEEP_LOST_SECONDS
    upstream: Upstream | None = None  # without one, sandboxes reach nobody
    has_access_log: bool = False  # a line of the log for every request
    has_audit_log: bool = False  # one of the log of its own for every change, and everything that was refused
    previews: PreviewSettings = PreviewSettings()

    @property
    def socket(self) -> Path:
        return self.runtime / SOCKET

    @property
    def socket_put_away(self) -> Path:
        """Where nobody looks for it."""
        return self.runtime / f"{SOCKET}.leaving"
