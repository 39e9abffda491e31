"""Walking a tree where directories cannot be opened, as on Windows: every step is a path, and is looked at first.

Rules:
1. Between a look and its use somebody on this machine may exchange a directory; descriptors would not let him. So it
   must be the same directory before each step, and after coming back to it.
2. A name is taken only if it means itself. Windows reads some as something else: `a\\..\\b`, `C:x`, `x.txt:stream`,
   `NUL`, and `x. ` as `x`.
3. Junctions lead elsewhere as links do, and are none to `stat`. They are not followed either.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.archives.descent import Descent, Identity, identity

if TYPE_CHECKING:
    from types import TracebackType

_FORBIDDEN = re.compile(rb'[\x00-\x1f<>:"/\\|?*]')
_DEVICE = re.compile(rb"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)([0-9]|\xc2[\xb9\xb2\xb3])) *(\.|$)", re.IGNORECASE)
_REPARSE_POINT = 0x400  # FILE_ATTRIBUTE_REPARSE_POINT: a link, a junction, or something that a driver makes up


class PathDescent(Descent):
    """A directory somewhere in a tree, at the path `_path`."""

    def __init__(self, path: bytes) -> None:
        """A link at `path` itself is followed: whoever gave it meant where it leads."""
        self.names: list[bytes] = []
        self._path = os.path.realpath(path)
        self._here = _identity_at(self._path)
        self._above: list[Identity] = []

    def __exit__(self, kind: type[BaseException] | None, cause: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is open."""

    def enter(self, name: bytes) -> None:
        path = self._at(name)
        here = _identity_at(path)
        self._above.append(self._here)
        self.names.append(name)
        self._path, self._here = path, here

    def leave(self) -> bytes:
        self._path, self._here = os.path.dirname(self._path), self._above.pop()
        left = self.names.pop()
        self._check()
        return left

    def children(self) -> list[bytes]:
        self._check()
        return sorted(os.listdir(self._path))

    def status_of(self, name: bytes) -> os.stat_result:
        return os.lstat(self._at(name))

    def open(self, name: bytes, flags: int, mode: int = 0o777) -> int:
        path = self._at(name)
        if not flags & os.O_CREAT and stat.S_ISLNK(os.lstat(path).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        # Of a mode Windows keeps whether it may be written, and what may not cannot be removed either.
        return os.open(path, flags, mode | stat.S_IWUSR)

    def target_of(self, name: bytes) -> bytes:
        return os.readlink(self._at(name)).replace(b"\\", b"/") if os.sep == "\\" else os.readlink(self._at(name))

    def make_link(self, target: bytes, name: bytes) -> None:
        os.symlink(target, self._at(name))

    def enter_new(self, name: bytes, mode: int) -> None:
        self.make_directory(name, mode, is_exact=False)
        self.enter(name)

    def make_directory(self, name: bytes, mode: int, *, is_exact: bool) -> None:
        path = self._at(name)
        with suppress(FileExistsError):
            os.mkdir(path, mode)
        _identity_at(path)

    def remove_file(self, name: bytes) -> None:
        os.unlink(self._at(name))

    def remove_opened(self, name: bytes, fd: int) -> None:
        try:
            is_same = identity(os.fstat(fd)) == identity(self.status_of(name))
        finally:
            os.close(fd)  # first: Windows removes nothing that is open
        if is_same:
            self.remove_file(name)

    def set_time(self, name: bytes, fd: int, seconds: int) -> None:
        os.utime(self._at(name), (seconds, seconds))

    def flaw_in_name(self, name: bytes) -> str | None:
        return flaw_in_name(name)

    def _at(self, name: bytes) -> bytes:
        self._check()
        return os.path.join(self._path, name)

    def _check(self) -> None:
        if _identity_at(self._path) != self._here:
            raise OSError(errno.ESTALE, "it was moved meanwhile")


def flaw_in_name(name: bytes) -> str | None:
    """Why Windows would take this name for another; None if it does not."""
    if found := _FORBIDDEN.search(name):
        return f"has {found[0].decode()!r} in its name, which Windows takes for something else"
    if name.endswith((b".", b" ")):
        return "has a name with a dot or a blank at its end, which Windows drops"
    if _DEVICE.match(name):
        return "has the name of a device of Windows"
    try:
        name.decode()
    except UnicodeDecodeError:
        return "has a name that is no UTF-8, which Windows cannot keep"
    return None


def _identity_at(path: bytes) -> Identity:
    """Of the directory at `path`, which must be one, and no way to another."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or getattr(found, "st_file_attributes", 0) & _REPARSE_POINT:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return identity(found)
