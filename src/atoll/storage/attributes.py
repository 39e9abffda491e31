"""Attributes that a disk carries about itself, which its sandbox neither sees nor changes.

An attribute is committed with the directory it is on, where a file's content comes later, when somebody asks for it or
the kernel finds the time. So what is written here waits for no disk, and is on the platter as soon as anything that was
committed after it.

1. An attribute holds so much and no more. What is longer is in parts, with a head that names them: they are there
   before the head is, and those of an earlier head go once it is replaced.
2. Where the file system takes none, or none so long (on ext4 4 KiB for all of them), there is a file, which is synced.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

PREFIX = "user.atoll."
PART = 8_000  # bytes; a btrfs keeps an attribute in one node of 16 KiB
WHOLE, IN_PARTS = b"0", b"1"  # what a head begins with
NOT_TAKEN = {errno.ENOTSUP, errno.ENOSPC, errno.E2BIG, errno.ERANGE}


class Parts(NamedTuple):
    """Where the parts of a content are. `slot` is 0 or 1: new ones never take the place of those that count."""

    slot: int
    number: int
    checksum: int

    def names(self, name: str) -> list[str]:
        return [f"{PREFIX}{name}.{self.slot}.{part}" for part in range(self.number)]


def write(disk: Path, name: str, content: bytes) -> None:
    head = _head(disk, name)
    try:
        _write_attribute(disk, name, content, _parts_of(head))
    except OSError as cause:
        if cause.errno not in NOT_TAKEN:
            raise
        _write_file(_file(disk, name), content)
        with suppress(OSError):  # what is in the file counts where there is no attribute
            os.removexattr(disk, PREFIX + name)
    else:
        if head is None:  # else a file was not what counted before either
            _file(disk, name).unlink(missing_ok=True)


def begin(disk: Path | int, name: str, content: bytes) -> None:
    """The first content of a new disk, on a file system that takes attributes. `disk` may be open as a directory."""
    _write_attribute(disk, name, content, None)


def read(disk: Path, name: str) -> bytes | None:
    """None if there is no such attribute, or not all of it."""
    head = _head(disk, name)
    if head is None:
        with suppress(OSError):
            return _file(disk, name).read_bytes()
        return None
    if head[:1] == WHOLE:
        return head[1:]
    with suppress(OSError):
        if parts := _parts_of(head):
            content = b"".join(os.getxattr(disk, part) for part in parts.names(name))
            return content if crc32(content) == parts.checksum else None
    return None


def _write_attribute(disk: Path | int, name: str, content: bytes, before: Parts | None) -> None:
    if len(content) < PART:
        os.setxattr(disk, PREFIX + name, WHOLE + content)
    else:
        pieces = [content[at : at + PART] for at in range(0, len(content), PART)]
        parts = Parts(1 - before.slot if before else 0, len(pieces), crc32(content))
        for part, piece in zip(parts.names(name), pieces, strict=True):
            os.setxattr(disk, part, piece)
        os.setxattr(disk, PREFIX + name, IN_PARTS + b"%d %d %d" % parts)
    for part in before.names(name) if before else ():
        with suppress(OSError):
            os.removexattr(disk, part)


def _head(disk: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(disk, PREFIX + name)
    except OSError:
        return None


def _parts_of(head: bytes | None) -> Parts | None:
    if head is None or head[:1] != IN_PARTS:
        return None
    try:
        return Parts(*map(int, head[1:].split()))
    except (ValueError, TypeError):
        return None


def _file(disk: Path, name: str) -> Path:
    return disk / f".atoll-{name}"


def _write_file(path: Path, content: bytes) -> None:
    """A new one takes the place of an old one once it is whole."""
    work = path.with_suffix(".new")
    with work.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    work.rename(path)
