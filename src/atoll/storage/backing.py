"""The pool's file, every block of which the host has given before the file system in it may write there.

A btrfs that meets a full disk below it lets nobody write any more, for good. So its device never has a hole: it begins
small, and grows by blocks that were allocated first. It is mounted to discard nothing, or holes would come back; those
that an operator's `fstrim` makes are filled again (`headroom`).

Beyond the end of the file lie blocks for an emergency (`set_aside`): metadata that finds no room otherwise.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from contextlib import suppress

SECTOR = 512

_KEEP_SIZE = 1
_SET_CAPACITY = 0x4C07
_GET_FLAGS, _SET_FLAGS, _NO_COPY_ON_WRITE = 0x8008_6601, 0x4008_6602, 0x0080_0000

_libc = ctypes.CDLL(None, use_errno=True)


def allocate(file: int, size: int) -> None:
    """Make it `size` bytes at least, and have the host give every block of them, or raise OSError.

    On a file system that cannot promise blocks it only gets the size.
    """
    try:
        _fallocate(file, 0, 0, size)
    except OSError as cause:
        if cause.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)


def set_aside(file: int, size: int) -> bool:
    """Whether the host gave `size` more bytes beyond the end of the file."""
    try:
        _fallocate(file, _KEEP_SIZE, os.fstat(file).st_size, size)
    except OSError:
        return False
    return True


def taken(file: int) -> int:
    """Bytes that the host has given."""
    return os.fstat(file).st_blocks * SECTOR


def write_in_place(file: int) -> None:
    """On a host whose file system writes each block anew, allocated blocks are worth something only without that."""
    with suppress(OSError):  # the others know no such thing
        flags = bytearray(fcntl.ioctl(file, _GET_FLAGS, bytes(8)))
        value = int.from_bytes(flags, "little") | _NO_COPY_ON_WRITE
        fcntl.ioctl(file, _SET_FLAGS, value.to_bytes(8, "little"))


def follow_size(device: str) -> None:
    """Have the loop device be as large as its file."""
    fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SET_CAPACITY)
    finally:
        os.close(fd)


def _fallocate(file: int, mode: int, start: int, size: int) -> None:
    # Not posix_fallocate, which writes every block itself where the file system has no such call.
    if _libc.fallocate(file, mode, ctypes.c_int64(start), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
