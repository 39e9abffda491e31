"""Ranges of user ids: 65,536 per sandbox, unique on the whole machine.

A range is taken by locking its byte of one file, and the lock belongs to the open file that the sandbox's first
process inherits. So it is given back by the kernel when that process ends, however it ends, and needs no list that
could be wrong: several servers, a killed server and a killed nursery all agree.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct

from atoll.protocol.errors import ErrorCode, error

LOCK_FILE = "/run/atoll-machine/uid-ranges"  # fixed: it is the machine's, not a server's; only root writes to /run
RANGE_SIZE = 65_536
FIRST_BASE = 0x7000_0000  # above what systemd and /etc/subuid hand out, below the sign bit
RANGES = 4_094  # up to 0x7FFE0000

_F_OFD_SETLK = 37
_FLOCK = struct.Struct("hhqqi4x")


class UidRanges:
    """Hands out ranges in turn, so that one just given back is the last to be used again."""

    def __init__(self, path: str = LOCK_FILE) -> None:
        directory, self._name = os.path.split(path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._next = random.SystemRandom().randrange(RANGES)
        os.close(self._open())

    def take(self) -> tuple[int, int]:
        """(first uid, descriptor that holds the range). Closing every copy of the descriptor gives it back."""
        holder = self._open()
        for offset in range(RANGES):
            index = (self._next + offset) % RANGES
            if _lock_byte(holder, index):
                self._next = index + 1
                return FIRST_BASE + index * RANGE_SIZE, holder
        os.close(holder)
        raise error(
            ErrorCode.UID_RANGES_EXHAUSTED,
            f"all {RANGES} ranges of user ids on this machine are in use",
            remedy="Stop or destroy some sandboxes.",
        )

    def bases(self) -> range:
        return range(FIRST_BASE, FIRST_BASE + RANGES * RANGE_SIZE, RANGE_SIZE)

    def is_free(self, base: int) -> bool:
        """Whether nobody holds the range at this moment."""
        holder = self._open()
        try:
            return _lock_byte(holder, (base - FIRST_BASE) // RANGE_SIZE)
        finally:
            os.close(holder)

    def close(self) -> None:
        """Ranges stay with whoever holds them."""
        os.close(self._directory)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._name, flags, 0o600, dir_fd=self._directory)


def _lock_byte(fd: int, index: int) -> bool:
    try:
        fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0))
    except BlockingIOError:
        return False
    except PermissionError:  # POSIX lets a system say EACCES for a lock that is held
        return False
    return True
