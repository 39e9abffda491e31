"""The kernel's inotify, which Python has no module for."""

from __future__ import annotations

import ctypes
import os
import struct
from enum import IntFlag
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_SIZE = 64 * 1024
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_libc = ctypes.CDLL(None, use_errno=True)


class Mask(IntFlag):
    MODIFY = 0x2
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000
    DONT_FOLLOW = 0x2000000
    ISDIR = 0x40000000


class RawEvent(NamedTuple):
    watch: int
    mask: int
    cookie: int  # the same for both halves of a move
    name: bytes


class Inotify:
    def __init__(self) -> None:
        self.fd = _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        os.close(self.fd)

    def watch_here(self, mask: Mask) -> int:
        """Watch the current directory; the number of the watch. By a path, somebody could be quicker to replace it."""
        return _check(_libc.inotify_add_watch(self.fd, b".", ctypes.c_uint32(mask)))

    def forget(self, watch: int) -> None:
        _libc.inotify_rm_watch(self.fd, watch)  # if it is gone already, that is fine

    def read(self) -> list[RawEvent]:
        try:
            return list(parse(os.read(self.fd, READ_SIZE)))
        except BlockingIOError:
            return []


def parse(data: bytes) -> Iterator[RawEvent]:
    position = 0
    while position < len(data):
        watch, mask, cookie, length = _EVENT.unpack_from(data, position)
        position += _EVENT.size
        yield RawEvent(watch, mask, cookie, data[position : position + length].rstrip(b"\0"))
        position += length


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
