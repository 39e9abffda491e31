"""Settings of previews: where they are served, and what visitors see of that."""

from __future__ import annotations

from pathlib import Path

import msgspec

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 7071
DEFAULT_DOMAIN = "localhost"


class PreviewSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where previews are served. Without a `port` it is the usual one, or any that is free.

    `domain` is what visitors see: a name, with a scheme and a port if those are not the ones listened with, as behind a
    reverse proxy.
    """

    host: str = DEFAULT_HOST
    port: int | None = None
    domain: str = DEFAULT_DOMAIN
    by_path: bool = False
    certificate: Path | None = None
    key: Path | None = None
