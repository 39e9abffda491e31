"""Room for the database on a disk that somebody else fills: blocks that are its own before it needs them.

They lie beyond the ends of its files, where what is appended comes to lie. So the removal of a sandbox is put on record
on a disk without a free block, and some thousand more changes with it; then NO_SPACE is the answer.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

LOG_BYTES = 8 * 2**20
TABLE_BYTES = 2 * 2**20

_KEEP_SIZE = 1
_libc = ctypes.CDLL(None, use_errno=True)


def reserve_room(database: Path) -> None:
    """As far as the disk can; again after the log was cut, which gives its blocks away."""
    for path, size in ((database, TABLE_BYTES), (database.with_name(f"{database.name}-wal"), LOG_BYTES)):
        with suppress(OSError):  # a log that is not there yet, or no longer
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                at_least = max(size, os.fstat(file).st_size + size // 2)
                _libc.fallocate(file, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(at_least))
            finally:
                os.close(file)
