"""Appending: content that was gathered aside goes to the end of a file, which stays the same file.

Whoever has it open sees it grow, as by any other writer, and what they add meanwhile is kept. Until all of it is here
nothing is added, and before there is room for all of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.agent.files.errors import not_a_file
from atoll.agent.files.writing import write_all

if TYPE_CHECKING:
    from atoll.agent.files.writing import NewFile, Place

PIECE = 1024 * 1024

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_libc = ctypes.CDLL(None, use_errno=True)

_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


def append(file: NewFile, place: Place, *, sync: bool) -> os.stat_result:
    """The state of the file at `place` afterwards, which is made of it if there is none."""
    if place.found is None:
        with suppress(FileExistsError):  # somebody has made it meanwhile
            file.appear(exclusive=True, sync=sync)
            return os.fstat(file.fd)
    fd = os.open(place.name, _APPENDING, dir_fd=place.directory)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise not_a_file(place.path, "device")
        _add(file.fd, fd)
        if sync:
            os.fsync(fd)
        return os.fstat(fd)
    finally:
        os.close(fd)


def _add(source: int, target: int) -> None:
    """The kernel's own ways to copy refuse a file that is open for appending.

    Room is taken first: on a disk that is full, what was begun could not even be taken back.
    """
    _take_room(target, os.fstat(source).st_size)
    os.lseek(source, 0, os.SEEK_SET)
    while data := os.read(source, PIECE):
        write_all(target, data)


def _take_room(target: int, count: int) -> None:
    """Behind the end of the file, which stays where it is."""
    end = os.fstat(target).st_size
    while count and _libc.fallocate(target, _KEEP_SIZE, ctypes.c_long(end), ctypes.c_long(count)):
        number = ctypes.get_errno()
        if number == errno.EINTR:
            continue
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        with suppress(OSError):
            os.ftruncate(target, end)  # gives back what was taken of it
        raise OSError(number, os.strerror(number))
