"""Whole directories: looked through, removed, copied. No link is followed, and no depth is too much."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from atoll.agent.files.errors import file_error
from atoll.agent.files.writing import copy_content
from atoll.archives.descent import OPEN_DIRECTORY, Descent, identity
from atoll.archives.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.files.writing import Place

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def delete_tree(directory: int, name: bytes, path: bytes) -> int:
    """Remove a directory, which is called `path`, with all that is in it; how much that was."""
    try:
        return remove_tree(directory, name)
    except OSError as cause:
        below = cause.filename[len(name) :] if isinstance(cause.filename, bytes) else b""
        raise file_error(OSError(cause.errno, cause.strerror), path + below) from cause


def delete_anything(directory: int, name: bytes, path: bytes) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        delete_tree(directory, name, path)


def is_below(directory: int, above: os.stat_result) -> bool:
    """Whether `directory` is `above`, or somewhere in it."""
    here = os.dup(directory)
    try:
        while True:
            status = os.fstat(here)
            if identity(status) == identity(above):
                return True
            parent = os.open(b"..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = parent
            if identity(os.fstat(here)) == identity(status):
                return False  # the root, which is above itself
    finally:
        os.close(here)


def copy_tree(source: Place, target: Place, name: bytes) -> None:
    """Copy `source` to `name` in the target's directory, with modes, owners, times and links."""
    status = os.stat(source.name, dir_fd=source.directory, follow_symlinks=False)
    _copy_one(source.name, source.directory, name, target.directory, status)
    if not stat.S_ISDIR(status.st_mode):
        return
    ours = Descent(os.open(source.name, OPEN_DIRECTORY, dir_fd=source.directory))
    with ours, Descent(os.open(name, OPEN_DIRECTORY, dir_fd=target.directory)) as theirs:
        unfinished: list[list[bytes]] = []
        while True:
            unfinished.append(_copy_entries(ours.fd, theirs.fd))
            while not unfinished[-1]:
                unfinished.pop()
                _keep_attributes(theirs.fd, os.fstat(ours.fd))  # last: to fill a directory changes its time
                if not unfinished:
                    return
                ours.leave()
                theirs.leave()
            below = unfinished[-1].pop()
            ours.enter(below)
            theirs.enter(below)


def _copy_entries(source: int, target: int) -> list[bytes]:
    """Everything in one directory; the names of the directories, which are made and still empty."""
    directories = []
    for text in os.listdir(source):
        name = os.fsencode(text)
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        _copy_one(name, source, name, target, status)
        if stat.S_ISDIR(status.st_mode):
            directories.append(name)
    return directories


def _copy_one(name: bytes, source: int, new_name: bytes, target: int, status: os.stat_result) -> None:
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFDIR:
            os.mkdir(new_name, 0o700, dir_fd=target)
        case stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), new_name, dir_fd=target)
        case stat.S_IFREG:
            with (
                _opened(os.open(name, _READING, dir_fd=source)) as file,
                _opened(os.open(new_name, _NEW, 0o600, dir_fd=target)) as copy,
            ):
                copy_content(file, copy, status.st_size)
                _keep_attributes(copy, status)
        case _:
            os.mknod(new_name, status.st_mode, status.st_rdev, dir_fd=target)


@contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _keep_attributes(fd: int, status: os.stat_result) -> None:
    if (status.st_uid, status.st_gid) != (0, 0):
        os.fchown(fd, status.st_uid, status.st_gid)
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
