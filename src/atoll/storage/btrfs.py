"""The btrfs calls that storage needs, straight to the kernel: the btrfs program takes 5 ms where these take 0.1."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

ROOT_OF_SUBVOLUME = 256  # its inode number, in every subvolume

_READ, _WRITE = 2, 1
_QUOTA_ENABLE, _QUOTA_ENABLE_SIMPLE = 1, 4
_LIMIT_REFERENCED = 1
_METADATA = 4


def _request(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


_RESIZE = _request(_WRITE, 3, 4096)
_SUBVOLUME_CREATE = _request(_WRITE, 14, 4096)
_SUBVOLUME_DESTROY = _request(_WRITE, 15, 4096)
_INODE_LOOKUP = _request(_READ | _WRITE, 18, 4096)
_START_COMMIT = _request(_READ, 24, 8)
_BALANCE = _request(_READ | _WRITE, 32, 1024)
_QUOTA_CONTROL = _request(_READ | _WRITE, 40, 16)
_QGROUP_LIMIT = _request(_READ, 43, 48)
_SUBVOLUME_INFO = _request(_READ, 60, 504)
_CHANGED_AND_MADE = struct.Struct("344xQQ")  # in the answer: the transactions of its last change and of its making
_TRIM = 0xC018_5879  # every file system's, not btrfs's own


def enable_quota(root: int) -> None:
    """Simple quotas where the kernel has them (6.7): they count as they go and never scan. Twice is fine."""
    for command in (_QUOTA_ENABLE_SIMPLE, _QUOTA_ENABLE):
        try:
            fcntl.ioctl(root, _QUOTA_CONTROL, bytearray(struct.pack("QQ", command, 0)))
        except OSError as cause:
            if cause.errno == errno.EEXIST:
                return
            if cause.errno != errno.EINVAL or command == _QUOTA_ENABLE:
                raise
        else:
            return


def create_subvolume(directory: int, name: str) -> None:
    fcntl.ioctl(directory, _SUBVOLUME_CREATE, _named(name))


def destroy_subvolume(directory: int, name: str) -> None:
    """At once, whatever its size; the kernel frees the space later."""
    fcntl.ioctl(directory, _SUBVOLUME_DESTROY, _named(name))


def limit(root: int, subvolume: int, size: int) -> None:
    """Let the subvolume of that number hold at most `size` bytes."""
    request = struct.pack("QQQQQQ", subvolume, _LIMIT_REFERENCED, size, 0, 0, 0)
    fcntl.ioctl(root, _QGROUP_LIMIT, bytearray(request))


def grow_to_device(root: int) -> None:
    fcntl.ioctl(root, _RESIZE, _named("max"))


def shrink(root: int, size: int) -> None:
    """To `size` bytes; what lies beyond is moved, which takes its time."""
    fcntl.ioctl(root, _RESIZE, _named(str(size)))


def is_in_one_transaction(subvolume: int) -> bool:
    """Whether its making and its latest change are committed together, and by any sync of a file in it."""
    answer = bytearray(504)
    fcntl.ioctl(subvolume, _SUBVOLUME_INFO, answer)
    changed, made = _CHANGED_AND_MADE.unpack_from(answer)
    return bool(changed == made)


def start_commit(root: int) -> None:
    """Of all that was done until now. What is synced later is on the platter no earlier."""
    fcntl.ioctl(root, _START_COMMIT, bytearray(8))


def is_given_up(root: int) -> bool:
    """Whether the kernel lets nobody write any more, after an error and for as long as it is mounted. One that somebody
    mounted read-only is not: it begins a commit of nothing, where this kind refuses.
    """
    if not os.fstatvfs(root).f_flag & os.ST_RDONLY:
        return False
    try:
        start_commit(root)
    except OSError as cause:
        return cause.errno == errno.EROFS
    return False


def move_metadata(root: int) -> None:
    """All of it, to chunks that are as large as the kernel makes them for a file system of this size."""
    fcntl.ioctl(root, _BALANCE, bytearray(struct.pack("Q1016x", _METADATA)))


def trim(root: int) -> None:
    """Give back to the device what is not in use."""
    everything, at_least = 2**64 - 1, 0
    fcntl.ioctl(root, _TRIM, bytearray(struct.pack("QQQ", 0, everything, at_least)))


def id_of(subvolume: int) -> int:
    """The number of the subvolume, which is also that of its quota."""
    answer = bytearray(struct.pack("QQ4080x", 0, ROOT_OF_SUBVOLUME))
    fcntl.ioctl(subvolume, _INODE_LOOKUP, answer)
    return int(struct.unpack_from("Q", answer)[0])


def _named(name: str) -> bytearray:
    return bytearray(struct.pack("q4088s", 0, os.fsencode(name)))
