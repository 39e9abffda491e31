"""Files of control groups, by the descriptor of a tree: as the nursery leaves the host's, no path leads to one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

PARENT = "atoll"
AGENT, COMMANDS = "agent", "commands"  # below a sandbox's group
FREEZE_ATTEMPTS, FREEZE_PAUSE_SECONDS = 4_000, 0.0005


def group_name(uid_base: int) -> str:
    return f"sandbox-{uid_base}"


def parse_keyed(text: str) -> dict[str, int]:
    """Files of the form "name number" per line."""
    return {name: int(value) for name, value in (line.split() for line in text.splitlines()) if value.isdigit()}


def open_parent(path: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(path)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_file(tree: int, path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, dir_fd=tree)


def directories(tree: int) -> list[str]:
    with os.scandir(tree) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def write(tree: int, path: str, value: int | str) -> None:
    with _opened(tree, path, os.O_WRONLY) as fd:
        os.write(fd, str(value).encode())


def read(tree: int, path: str) -> str:
    with _opened(tree, path, os.O_RDONLY) as fd:
        return os.read(fd, 65_536).decode()


@contextmanager
def _opened(tree: int, path: str, flags: int) -> Iterator[int]:
    """A group may be removed before its file is opened, while it is, or after: always FileNotFoundError."""
    fd = -1
    try:
        fd = open_file(tree, path, flags)
        yield fd
    except OSError as cause:
        if cause.errno == errno.ENODEV:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from cause
        raise
    finally:
        if fd >= 0:
            os.close(fd)


def make(tree: int, name: str, below: Iterable[str]) -> None:
    try:
        os.mkdir(name, dir_fd=tree)
    except FileExistsError:  # left by a sandbox of ours that is gone: its range of ids was free
        if remove(tree, name):  # with its limits, which could be in the way of others
            os.mkdir(name, dir_fd=tree)
    for group in below:
        with suppress(FileExistsError):
            os.mkdir(f"{name}/{group}", dir_fd=tree)


def remove(tree: int, name: str) -> bool:
    """With those below."""
    remaining = [group for group in (AGENT, COMMANDS) if not _remove_one(tree, f"{name}/{group}")]
    return not remaining and _remove_one(tree, name)


def _remove_one(tree: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=tree)
    except FileNotFoundError:
        return True
    except OSError as cause:
        if cause.errno == errno.EBUSY:  # the last process leaves its group a moment after its end is seen
            return False
        raise
    return True
