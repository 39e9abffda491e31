"""Unpacking: an archive turned into files below a directory, and nowhere else, whoever made the archive.

Rules:
1. Every step of a name is taken from a descriptor of the directory above and follows no link. A name with a link on
   its way, also one that was there before, is refused; so are "..", absolute names and what is no file, directory or
   symbolic link.
2. What is in the way of a file or a link is removed, not opened: nothing is written through a link or into a file that
   has another name elsewhere. A directory that is in the way stays, and is an error.
3. Where the archive comes from a stranger, a link may point only to what is below the directory; others are left out.
   Its target may go up first and then down, not up again: a step down can be another link, and ".." after that leads
   nobody knows where.
4. There, what is made has no more rights than the umask leaves, and a directory that was there keeps those it has. The
   umask is the kernel's to apply: it belongs to all threads, and cannot be read without being changed.
5. What goes beyond the bounds is an error before it is made. A file that is not whole when all ends is removed.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from atoll.archives.descent import NEW_FILE, Descent
from atoll.archives.holes import MapWriter
from atoll.archives.tar import Entry, EntryType, TarReader, unsafe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from atoll.protocol.transfer_bounds import Tally

T = TypeVar("T")

NAMES_LEFT_OUT = 10
_NEW_DIRECTORY_MODE = 0o755


class Policy(NamedTuple):
    keeps_any_link: bool
    modes: int  # what of a mode is kept
    obeys_umask: bool


# Where a link leads, only the sandbox goes.
IN_SANDBOX = Policy(keeps_any_link=True, modes=0o7777, obeys_umask=False)
# A program that becomes another user is for nobody to bring.
ON_HOST = Policy(keeps_any_link=False, modes=0o777, obeys_umask=True)


class Unpacker:
    """`feed` it, then `close`. An OSError is about `current`, the name of an entry.

    `left_out` counts the links that lead out, and `links_left_out` are the first of them, with their targets.
    """

    def __init__(self, directory: int | Descent, policy: Policy, tally: Tally | None = None) -> None:
        """`directory` is a descriptor, which stays the caller's, or a descent that has not begun, and is ours."""
        self.count = 0  # entries, without "."
        self.current = b""
        self.left_out = 0
        self.links_left_out: list[tuple[bytes, bytes]] = []
        self._policy = policy
        self._tally = tally
        self._reader = TarReader()
        # In the directory of the entry before.
        self._place = Descent(os.dup(directory)) if isinstance(directory, int) else directory
        self._entry: Entry | None = None
        self._file = -1  # while one is being written
        self._left = 0
        self._by_map: MapWriter | None = None

    def __enter__(self) -> Unpacker:
        return self

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        with self._place:
            if self._file >= 0:
                self._give_up_file()

    def feed(self, data: bytes | memoryview) -> None:
        for part in self._reader.feed(data):
            if isinstance(part, Entry):
                self._take(part)
            else:
                self._write(part)

    def close(self) -> None:
        """The archive is complete, or this says that it is not."""
        self._reader.close()

    def _take(self, entry: Entry) -> None:
        self.current = entry.name
        steps = _steps(entry.name)
        if self._tally:
            self._tally.add_entry(len(steps), entry.content)
        if not steps:
            if entry.type is not EntryType.DIRECTORY:
                raise unsafe(entry.name, "has no name of its own", "Name it.")
            return
        self.count += 1
        for step in steps:
            if flaw := self._place.flaw_in_name(step):
                raise unsafe(entry.name, flaw, "Name it otherwise, or leave it out.")
        self._enter(steps[:-1])
        match entry.type:
            case EntryType.DIRECTORY:
                self._make_directory(steps[-1], entry)
            case EntryType.SYMLINK:
                self._make_link(steps, entry)
            case EntryType.FILE:
                mode = self._mode_of(entry) if self._policy.obeys_umask else 0o600
                self._file = self._make(lambda: self._place.open(steps[-1], NEW_FILE, mode), steps[-1])
                self._entry, self._left = entry, entry.content
                self._by_map = MapWriter(self._file, entry.map) if entry.map else None
                if not self._left:
                    self._finish_file()

    def _write(self, data: memoryview) -> None:
        self._left -= len(data)
        if self._by_map:
            self._by_map.write(data)
        else:
            while data:
                data = data[os.write(self._file, data) :]
        if not self._left:
            self._finish_file()

    def _finish_file(self) -> None:
        assert self._entry
        if not self._policy.obeys_umask and sys.platform != "win32":
            os.fchmod(self._file, self._mode_of(self._entry))  # now: the kernel takes some of it from what is written
        with suppress(OverflowError, OSError):  # a time that this file system cannot keep
            self._place.set_time(_steps(self._entry.name)[-1], self._file, self._entry.modified_at)
        os.close(self._file)
        self._file = -1

    def _give_up_file(self) -> None:
        """Remove the file, if its name still is its own."""
        assert self._entry
        ours, self._file = self._file, -1
        with suppress(OSError):
            self._place.remove_opened(_steps(self._entry.name)[-1], ours)

    def _make_directory(self, name: bytes, entry: Entry) -> None:
        mode = self._mode_of(entry) | 0o700  # what it holds is yet to come
        with self._told_of_link(name):
            self._place.make_directory(name, mode, is_exact=not self._policy.obeys_umask)

    def _mode_of(self, entry: Entry) -> int:
        return entry.mode & self._policy.modes

    def _make_link(self, steps: list[bytes], entry: Entry) -> None:
        if not entry.target:
            raise unsafe(entry.name, "is a link to nothing", "Leave it out.")
        if not self._policy.keeps_any_link and not self._stays_inside(entry.target, depth=len(steps) - 1):
            self.count -= 1
            self.left_out += 1
            if len(self.links_left_out) < NAMES_LEFT_OUT:
                self.links_left_out.append((entry.name, entry.target))
            return
        self._make(lambda: self._place.make_link(entry.target, steps[-1]), steps[-1])

    def _stays_inside(self, target: bytes, *, depth: int) -> bool:
        ways = (b"", b".", b"..")
        flaws = (self._place.flaw_in_name(step) for step in target.split(b"/") if step not in ways)
        return stays_inside(target, depth=depth) and not any(flaws)

    def _enter(self, steps: list[bytes]) -> None:
        """Go to the directory that `steps` lead to, which is made if need be.

        From where the entry before was: an archive goes down a tree, and each way from its top would take longer.
        """
        place = self._place
        while place.names != steps[: len(place.names)]:
            place.leave()
        for step in steps[len(place.names) :]:
            with self._told_of_link(step):
                place.enter_new(step, _NEW_DIRECTORY_MODE)

    @contextmanager
    def _told_of_link(self, name: bytes) -> Iterator[None]:
        """The error for a name that is no directory and should be: it may be a link to one."""
        try:
            yield
        except OSError as cause:
            if stat.S_ISLNK(self._place.status_of(name).st_mode):
                raise unsafe(self.current, "leads through a link", "Remove the link, or unpack elsewhere.") from cause
            raise

    def _make(self, make: Callable[[], T], name: bytes) -> T:
        """Make something new; what is in the way goes first."""
        try:
            return make()
        except FileExistsError:
            if stat.S_ISDIR(self._place.status_of(name).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
            self._place.remove_file(name)
            return make()


def stays_inside(target: bytes, *, depth: int) -> bool:
    """Whether a link in a directory `depth` steps below the root of a tree leads nowhere but into it."""
    if target.startswith(b"/"):
        return False
    steps = [step for step in target.split(b"/") if step not in (b"", b".")]
    up = 0
    while up < len(steps) and steps[up] == b"..":
        up += 1
    return up <= depth and b".." not in steps[up:]


def _steps(name: bytes) -> list[bytes]:
    if name.startswith(b"/"):
        raise unsafe(name, "has an absolute name", "Name it from the directory it is in.")
    if b"\0" in name:
        raise unsafe(name, "has a NUL in its name", "Leave it out.")
    steps = [step for step in name.split(b"/") if step not in (b"", b".")]
    if b".." in steps:
        raise unsafe(name, "leads out of it by '..'", "Name it from the directory it is in.")
    return steps
