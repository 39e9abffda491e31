"""Room for the database on a disk that somebody else fills: blocks that are its own before it needs them.

They lie beyond the ends of its files, where what is appended comes to lie. So the removal of a sandbox is put on record
on a disk without a free block, and some thousand more changes with it; then NO_SPACE is the answer.

A program of its own asks for them. SQLite's locks are a process's, and go when it closes any descriptor of the file:
the next to close the database would take itself for the last, and put away a log that we still write to.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

LOG_BYTES = 8 * 2**20
TABLE_BYTES = 2 * 2**20


def reserve_room(database: Path) -> None:
    """As far as the disk can; again after the log was cut, which gives its blocks away."""
    for path, size in ((database, TABLE_BYTES), (database.with_name(f"{database.name}-wal"), LOG_BYTES)):
        with suppress(OSError):  # a log that is not there yet, or no longer; no such program
            at_least = max(size, path.stat().st_size * 3 // 2)
            command = ("fallocate", "--keep-size", "--length", str(at_least), "--", path)
            subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True)
