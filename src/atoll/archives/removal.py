"""Removal: a directory taken away with all that is in it. No link is followed, and no depth is too much."""

from __future__ import annotations

import os

from atoll.archives.descent import OPEN_DIRECTORY, Descent


def remove_tree(directory: int, name: bytes) -> int:
    """Remove `name` in an open directory; how much that was. An error has in `filename` where it was, from there."""
    removed = 1
    with Descent(os.open(name, OPEN_DIRECTORY, dir_fd=directory)) as descent:
        try:
            unfinished: list[list[bytes]] = []
            while True:
                count, directories = _unlink_files(descent.fd)
                removed += count
                unfinished.append(directories)
                while not unfinished[-1] and descent.names:
                    unfinished.pop()
                    os.rmdir(descent.leave(), dir_fd=descent.fd)
                    removed += 1
                if not unfinished[-1]:
                    break
                descent.enter(unfinished[-1].pop())
        except OSError as cause:
            entry = (cause.filename,) if isinstance(cause.filename, bytes) else ()
            raise OSError(cause.errno, cause.strerror, b"/".join((name, *descent.names, *entry))) from cause
    os.rmdir(name, dir_fd=directory)
    return removed


def _unlink_files(directory: int) -> tuple[int, list[bytes]]:
    """Remove what is no directory: how many, and the directories that are left."""
    removed, directories = 0, []
    with os.scandir(directory) as entries:
        found = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if is_directory:
            directories.append(name)
            continue
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            continue  # somebody else was quicker
        removed += 1
    return removed, directories
