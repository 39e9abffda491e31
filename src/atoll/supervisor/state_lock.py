"""The lock of a state directory, which belongs to one workshop at a time.

Since nobody else makes anything in it, what no record names may be called left over, and be removed.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error


class StateLock:
    """Held from construction to `release`, or to the end of this process, however it ends.

    No program that this process starts inherits it, so a sandbox that lives on keeps nobody out.
    """

    def __init__(self, state: Path) -> None:
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as cause:
            raise cannot_write(str(state), cause) from cause
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            holder = self._read_holder()
            self.release()
            raise _in_use(state, holder) from cause
        self._write_holder()

    def release(self) -> None:
        os.close(self._fd)

    def _write_holder(self) -> None:
        """For the message to whoever comes second. It is the lock that counts, so a full disk is no reason to fail."""
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def _read_holder(self) -> int | None:
        content = os.pread(self._fd, 32, 0).strip()
        return int(content) if content.isdigit() else None


def _in_use(state: Path, holder: int | None) -> AtollError:
    return error(
        ErrorCode.STATE_DIRECTORY_IN_USE,
        f"{state} is in use by {f'process {holder}' if holder else 'another process'}",
        remedy="Use that process, stop it, or choose another state directory.",
        path=str(state),
        pid=holder,
    )
