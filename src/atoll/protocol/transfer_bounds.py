"""Bounds of a download: bytes, entries, depth. Counted where it is packed, and once more where it arrives."""

from __future__ import annotations

import os

import msgspec

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.names import named

MAX_BYTES = 32 * 2**30
MAX_ENTRIES = 1_000_000
MAX_DEPTH = 256


class Bounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The bounds of a download; None is no bound. Holes in files are no bytes: nothing is sent or written for them."""

    max_bytes: int | None = None
    max_entries: int | None = None
    max_depth: int | None = None  # of an entry: 1 for what is in the directory itself


class Tally:
    """A count of what has come of `path` so far, held to bounds."""

    def __init__(self, bounds: Bounds, path: bytes) -> None:
        self._bounds = bounds
        self._path = path
        self._bytes = 0
        self._entries = 0

    def add_entry(self, depth: int, size: int) -> None:
        """An entry, before anything is done about it."""
        most = self._bounds.max_depth
        if most is not None and depth > most:
            raise too_large("max_depth", most, f"goes {depth:,} directories deep or more", depth, self._path)
        self._entries += 1
        most = self._bounds.max_entries
        if most is not None and self._entries > most:
            raise too_large("max_entries", most, f"has more than {most:,} entries", self._entries, self._path)
        self.add_bytes(size)

    def add_bytes(self, count: int) -> None:
        self._bytes += count
        most = self._bounds.max_bytes
        if most is not None and self._bytes > most:
            raise too_large("max_bytes", most, f"holds {self._bytes:,} bytes or more", self._bytes, self._path)


def too_large(bound: str, most: int, what: str, value: int, path: bytes) -> AtollError:
    option = bound.replace("_", "-")
    return error(
        ErrorCode.DOWNLOAD_TOO_LARGE,
        f"{os.fsdecode(path)!r:.200} {what}, and {bound}={most:,} is what this download may bring",
        remedy=f"If it is what you want, give download() a larger {bound}=, or None for no bound; `atoll cp` takes "
        f"--{option}, and a URL ?{bound}=, which may also be none.",
        bound=bound,
        limit=most,
        value=min(value, 2**63 - 1),
        **named(path=path),
    )
