"""Strays: sandboxes that run on and that nobody knows any more, found by their agents' sockets and ended.

A sandbox is told to live on once it is on record. One whose records are lost, in the database and on its disk, can be
reached by nobody; on its disk, which is set aside and may be taken back, a second one would be started beside it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_ACCEPTS = "00010000"  # what /proc/net/unix says of a socket that somebody listens on


def end_strays(sockets: Collection[Path]) -> list[int]:
    """The processes that listened on `sockets`, now ended. The first of a sandbox takes the rest of it along."""
    inodes = {f"socket:[{inode}]" for inode in listening({path.name for path in sockets})}
    return [pid for pid in holders(inodes) if _end(pid, inodes)]


def listening(names: Collection[str]) -> list[int]:
    """The inodes of Unix sockets of these names, which are random; a nursery sees their directory elsewhere."""
    found = []
    for line in (PROC / "net/unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[3] == _ACCEPTS and Path(fields[7]).name in names:
            found.append(int(fields[6]))
    return found


def holders(inodes: Collection[str]) -> list[int]:
    return [pid for pid in map(int, filter(str.isdigit, os.listdir(PROC))) if inodes and _holds(pid, inodes)]


def _holds(pid: int, inodes: Collection[str]) -> bool:
    directory = PROC / str(pid) / "fd"
    with suppress(OSError):  # it ends just now
        for name in os.listdir(directory):
            with suppress(OSError):
                if os.readlink(directory / name) in inodes:
                    return True
    return False


def _end(pid: int, inodes: Collection[str]) -> bool:
    """The number may be another process by now, so it is looked at again once it is held."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            if _holds(pid, inodes):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return True
        finally:
            os.close(pidfd)
    return False
