"""Watches: changes in a directory, with all below it if need be.

Rules:
1. Each directory has a watch of its own. A new one is watched and then looked through, so that what was put into it
   before is told as well; what is told by both is told once.
2. What happens within a moment is told together: many changes of a file as one, both halves of a move as a move.
3. What cannot be told is said not to be known (OVERFLOW): more events than the kernel holds for us, more directories
   than may be watched.
4. The temporary names of our own writes are nobody's business: such a write is a change of the file.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import select
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from atoll.agent.files.errors import is_not_a_directory
from atoll.agent.files.inotify import Inotify, Mask, RawEvent
from atoll.archives.descent import OPEN_DIRECTORY, Descent, go_on
from atoll.protocol.files import MAX_TOGETHER, ChangeType, FileChange, FileChanges, FileDone
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.files.host_port import HostPort
    from atoll.protocol.files import WatchFiles

MAX_DIRECTORIES = 8192
MAX_HELD = 20_000  # changes; beyond that, they are said not to be known
MAX_BYTES_TOGETHER = 128 * 1024
TOGETHER_SECONDS = 0.05

_MASK = (
    Mask.CREATE
    | Mask.MODIFY
    | Mask.DELETE
    | Mask.MOVED_FROM
    | Mask.MOVED_TO
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ONLYDIR
    | Mask.DONT_FOLLOW
)
_NUMBERED = re.compile(rb"#[0-9]+")
_TEMPORARY = re.compile(rb"\.atoll-[0-9a-f]{16}")


class Filter:
    """The paths that are told of. Both lists are shell patterns for a path from the watched directory, or a name."""

    def __init__(self, include: list[bytes], exclude: list[bytes]) -> None:
        self._include, self._exclude = (re.compile(_any_of(patterns)) for patterns in (include, exclude))
        self._includes_all = not include

    def excludes(self, path: bytes) -> bool:
        return self._matches(self._exclude, path)

    def admits(self, path: bytes) -> bool:
        is_included = self._includes_all or self._matches(self._include, path)
        return is_included and not any(self.excludes(above) for above in _with_those_above(path))

    def _matches(self, pattern: re.Pattern[bytes], path: bytes) -> bool:
        return bool(pattern.match(path) or pattern.match(path.rpartition(b"/")[2]))


def _any_of(patterns: list[bytes]) -> bytes:
    """An expression for all of them; one that fits nothing if there are none."""
    translated = [fnmatch.translate(pattern.decode("latin-1")).encode("latin-1") for pattern in patterns]
    return b"|".join(translated) or rb"(?!)"


def _with_those_above(path: bytes) -> Iterator[bytes]:
    while path:
        yield path
        path = path.rpartition(b"/")[0]


class Changes:
    """The changes of a moment, made shorter. Paths count from the watched directory. No I/O."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted
        self._changes: list[FileChange] = []
        self._moves: dict[int, tuple[int, bytes, bool]] = {}  # by cookie: where in the list, from where, a directory
        self._last: dict[bytes, ChangeType] = {}
        self._is_overflown = False

    def __len__(self) -> int:
        return len(self._changes)

    def directories_that_left(self) -> list[bytes]:
        """Moves of directories of which the other half was not seen."""
        return [path for _, path, is_directory in self._moves.values() if is_directory]

    def add(self, kind: ChangeType, path: bytes, *, is_directory: bool = False, old: bytes | None = None) -> bool:
        """Whether it will be told; otherwise there is too much already."""
        if len(self._changes) >= MAX_HELD:
            self.overflow()
            return False
        last = self._last.get(path)
        if kind is ChangeType.MODIFY and last in (ChangeType.MODIFY, ChangeType.CREATE):
            return True
        if kind is ChangeType.CREATE and last is ChangeType.CREATE:
            return True
        self._last[path] = kind
        if old is not None:
            self._last[old] = ChangeType.DELETE
        self._changes.append(FileChange(type=kind, raw_path=path, is_directory=is_directory, raw_old_path=old))
        return True

    def overflow(self) -> None:
        if not self._is_overflown:
            self._is_overflown = True
            self._changes.append(FileChange(type=ChangeType.OVERFLOW, raw_path=b"", is_directory=True))

    def moved_from(self, cookie: int, path: bytes, is_directory: bool) -> None:
        """Told as gone, until the other half is seen."""
        self._moves[cookie] = (len(self._changes), path, is_directory)
        self._last[path] = ChangeType.DELETE
        self._changes.append(FileChange(type=ChangeType.DELETE, raw_path=path, is_directory=is_directory))

    def moved_to(self, cookie: int, path: bytes, is_directory: bool) -> bytes | None:
        """From where, if that is known."""
        half = self._moves.pop(cookie, None)
        if half is None:
            self.add(ChangeType.CREATE, path, is_directory=is_directory)
            return None
        position, old, _ = half
        self._changes[position] = FileChange(
            type=ChangeType.MOVE, raw_path=path, is_directory=is_directory, raw_old_path=old
        )
        self._last[path] = ChangeType.MOVE
        return old

    def take(self, root: bytes) -> list[FileChange]:
        """All that is to be told, with absolute paths."""
        told = [change for change in map(self._as_wanted, self._without_what_left()) if change]
        self._changes, self._moves, self._last, self._is_overflown = [], {}, {}, False
        return [_below(root, change) for change in told]

    def _without_what_left(self) -> Iterator[FileChange]:
        """A directory that was moved out is watched until we know; what happens in it then happens elsewhere."""
        left = {position: path + b"/" for position, path, is_directory in self._moves.values() if is_directory}
        gone: set[bytes] = set()
        for position, change in enumerate(self._changes):
            if position in left:
                gone.add(left[position])
            elif change.is_directory and change.type is ChangeType.CREATE:
                gone.discard(change.raw_path + b"/")
            elif gone and change.raw_path.startswith(tuple(gone)):
                continue
            yield change

    def _as_wanted(self, change: FileChange) -> FileChange | None:
        """Of a move, perhaps only one end is wanted."""
        if change.type is ChangeType.OVERFLOW or not change.raw_path:
            return change
        old = change.raw_old_path
        is_wanted = self._wanted.admits(change.raw_path) and not is_temporary(change.raw_path)
        if old is None:
            return change if is_wanted else None
        if is_temporary(old):
            return _replaced(change, ChangeType.MODIFY, change.raw_path) if is_wanted else None
        if self._wanted.admits(old):
            return change if is_wanted else _replaced(change, ChangeType.DELETE, old)
        return _replaced(change, ChangeType.CREATE, change.raw_path) if is_wanted else None


def is_temporary(path: bytes) -> bool:
    return bool(_TEMPORARY.fullmatch(path.rpartition(b"/")[2]))


def _replaced(change: FileChange, kind: ChangeType, path: bytes) -> FileChange:
    return FileChange(type=kind, raw_path=path, is_directory=change.is_directory)


def _below(root: bytes, change: FileChange) -> FileChange:
    prefix = root.rstrip(b"/")
    path = b"%b/%b" % (prefix, change.raw_path) if change.raw_path else root
    old = None if change.raw_old_path is None else b"%b/%b" % (prefix, change.raw_old_path)
    return FileChange(type=change.type, raw_path=path, is_directory=change.is_directory, raw_old_path=old)


class DirectoryWatch:
    """A directory that is watched. `take` waits for what happens."""

    def __init__(self, call: WatchFiles, path: bytes) -> None:
        self.is_over = False  # the directory is gone
        self._root = path
        self._is_recursive = call.recursive
        self._filter = Filter(call.include, call.exclude)
        self._changes = Changes(self._filter)
        self._paths: dict[int, bytes] = {}  # of each watch
        self._found: set[bytes] = set()  # by looking through new directories, while their events may yet come
        self._inotify = Inotify()
        self._poll = select.poll()
        self._poll.register(self._inotify.fd, select.POLLIN)

    def begin(self) -> None:
        with Descent(os.open(self._root, OPEN_DIRECTORY & ~os.O_NOFOLLOW)) as descent:
            self._watch_tree(descent, tell=False)
        os.chdir(b"/")

    def close(self) -> None:
        self._inotify.close()

    def take(self) -> list[FileChange]:
        """The changes, once there are any."""
        if not len(self._changes):
            self._poll.poll()
        until = time.monotonic() + TOGETHER_SECONDS
        found_before, self._found = self._found, set()
        while (left := until - time.monotonic()) > 0 and len(self._changes) < MAX_TOGETHER and not self.is_over:
            if not self._poll.poll(left * 1000):
                break
            for event in self._inotify.read():
                self._take_event(event, found_before)
        for path in self._changes.directories_that_left():
            self._forget(path)
        return self._changes.take(self._root)

    def _take_event(self, event: RawEvent, found_before: set[bytes]) -> None:
        if event.mask & Mask.Q_OVERFLOW:
            self._changes.overflow()
            self._look_through(b"", tell=False)
            return
        directory = self._paths.get(event.watch)
        if directory is None:
            return  # we were told to forget it
        if event.mask & Mask.IGNORED:
            del self._paths[event.watch]
        if not event.name:
            if not directory and event.mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT):
                self._changes.add(ChangeType.DELETE, b"", is_directory=True)
                self.is_over = True
            return
        path = b"%b/%b" % (directory, event.name) if directory else event.name
        self._take_change(event, path, is_known=path in found_before or path in self._found)

    def _take_change(self, event: RawEvent, path: bytes, *, is_known: bool) -> None:
        is_directory = bool(event.mask & Mask.ISDIR)
        if event.mask & Mask.CREATE:
            if not is_known:
                self._changes.add(ChangeType.CREATE, path, is_directory=is_directory)
            if is_directory:
                self._look_through(path, tell=True)
        elif event.mask & Mask.MODIFY:
            if not self._is_nameless(path):
                self._changes.add(ChangeType.MODIFY, path)
        elif event.mask & Mask.DELETE:
            self._changes.add(ChangeType.DELETE, path, is_directory=is_directory)
        elif event.mask & Mask.MOVED_FROM:
            self._changes.moved_from(event.cookie, path, is_directory)
        elif event.mask & Mask.MOVED_TO:
            old = self._changes.moved_to(event.cookie, path, is_directory)
            if is_directory and old is not None:
                self._rename(old, path)
            elif is_directory:
                self._look_through(path, tell=True)

    def _is_nameless(self, path: bytes) -> bool:
        """Whether it is a file that has no name yet: the kernel tells of it by a number."""
        if not _NUMBERED.fullmatch(path.rpartition(b"/")[2]):
            return False
        try:
            os.lstat(b"%b/%b" % (self._root, path))
        except OSError:
            return True
        return False

    def _forget(self, path: bytes) -> None:
        """A directory has left, and all below it; perhaps it was moved to where we do not watch."""
        for watch, below in list(self._paths.items()):
            if below == path or below.startswith(path + b"/"):
                self._inotify.forget(watch)
                del self._paths[watch]

    def _rename(self, old: bytes, new: bytes) -> None:
        """A directory was moved, and all below it."""
        for watch, path in self._paths.items():
            if path == old or path.startswith(old + b"/"):
                self._paths[watch] = new + path[len(old) :]

    def _look_through(self, path: bytes, *, tell: bool) -> None:
        """Watch a directory and those below it; `tell` of what is in them."""
        if path and not self._is_recursive:
            return
        try:
            # Opened each time: the kernel tells of a directory's end only when nobody has it open.
            with Descent(os.open(self._root, OPEN_DIRECTORY & ~os.O_NOFOLLOW)) as descent:
                for step in filter(None, path.split(b"/")):
                    descent.enter(step)
                self._watch_tree(descent, tell=tell)
        except OSError as cause:
            if cause.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
                raise  # otherwise it is gone again
        finally:
            os.chdir(b"/")

    def _watch_tree(self, descent: Descent, *, tell: bool) -> None:
        depth = len(descent.names)
        unfinished: list[list[bytes]] = []
        while True:
            unfinished.append(self._watch_one(descent, tell=tell))
            if not go_on(descent, unfinished, depth):
                return

    def _watch_one(self, descent: Descent, *, tell: bool) -> list[bytes]:
        """Watch one directory; those that are in it."""
        path = b"/".join(descent.names)
        if (path and self._filter.excludes(path)) or not self._add_watch(descent.fd, path):
            return []
        if not (self._is_recursive or tell):
            return []
        directories = []
        with fresh(descent.fd) as directory, os.scandir(directory) as entries:
            for entry in entries:
                name, is_directory = os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)
                if is_directory and self._is_recursive:
                    directories.append(name)
                if tell:
                    below = descent.path_of(name)
                    if self._changes.add(ChangeType.CREATE, below, is_directory=is_directory):
                        self._found.add(below)
        return directories

    def _add_watch(self, directory: int, path: bytes) -> bool:
        if len(self._paths) >= MAX_DIRECTORIES:
            self._changes.overflow()
            return False
        os.fchdir(directory)
        try:
            self._paths[self._inotify.watch_here(_MASK)] = path
        except OSError as cause:
            if cause.errno != errno.ENOSPC:  # the kernel's own limit
                raise
            self._changes.overflow()
            return False
        return True


@contextmanager
def fresh(directory: int) -> Iterator[int]:
    """The same, opened anew: btrfs lists what was there at that moment, and what came before the watch must be seen."""
    fd = os.open(b".", OPEN_DIRECTORY, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def watch_files(call: WatchFiles, path: bytes, port: HostPort) -> FileDone:
    """Until the host leaves, or the directory does."""
    watch = DirectoryWatch(call, path)
    try:
        watch.begin()
        _send(port, [])
        count = 0
        while not watch.is_over:
            for changes in _pages(watch.take()):
                _send(port, changes)
                count += len(changes)
        return FileDone(count=count)
    except NotADirectoryError as cause:
        raise is_not_a_directory(path, "Watch the directory it is in, and include its name.") from cause
    finally:
        watch.close()


def _send(port: HostPort, changes: list[FileChange]) -> None:
    port.send(FrameKind.EVENT, encode_message(FileChanges(changes=changes)))
    port.flush()


def _pages(changes: list[FileChange]) -> Iterator[list[FileChange]]:
    page: list[FileChange] = []
    size = 0
    for change in changes:
        page.append(change)
        size += len(change.raw_path) + len(change.raw_old_path or b"")
        if len(page) >= MAX_TOGETHER or size >= MAX_BYTES_TOGETHER:
            yield page
            page, size = [], 0
    if page:
        yield page
