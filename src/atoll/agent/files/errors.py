"""Errors of file systems, in the caller's words."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from atoll.archives.descent import find_no_directory, first_missing
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.names import named


class _Refusal(NamedTuple):
    code: ErrorCode
    message: str  # with the path in it
    remedy: str


_NO_SPACE = _Refusal(
    ErrorCode.NO_SPACE,
    "no space is left for {}",
    "Delete what is not needed, or give the sandbox a larger disk. If that is not full, the pool is: `atoll doctor`.",
)
_DENIED = _Refusal(
    ErrorCode.PERMISSION_DENIED,
    "{} may not be used like this: {why}",
    "It is protected, also from root in the sandbox.",
)
_TOO_LARGE = _Refusal(ErrorCode.FILE_TOO_LARGE, "{} would be larger than a file can be", "Write less.")
_BUSY = _Refusal(ErrorCode.RESOURCE_BUSY, "{} is in use: {why}", "Try again when nothing uses it.")
_TOO_MANY = _Refusal(ErrorCode.TOO_MANY_FILES, "{} cannot be opened: {why}", "End what holds so many files open.")
_NOT_A_FILE = _Refusal(ErrorCode.NOT_A_FILE, "{} is not a file that can be read and written", "Use a command for it.")

_REFUSALS = {
    errno.ENOENT: _Refusal(ErrorCode.FILE_NOT_FOUND, "{} does not exist", "Check the path, or make it first."),
    errno.EISDIR: _Refusal(ErrorCode.IS_DIRECTORY, "{} is a directory", "Give a file."),
    errno.ENOTDIR: _Refusal(ErrorCode.NOT_DIRECTORY, "{} is not a directory", "Check the path."),
    errno.EEXIST: _Refusal(ErrorCode.FILE_EXISTS, "{} exists already", "Choose another name, or remove it first."),
    errno.ENOTEMPTY: _Refusal(ErrorCode.DIRECTORY_NOT_EMPTY, "{} is not empty", "Remove what is in it first."),
    errno.ENAMETOOLONG: _Refusal(
        ErrorCode.NAME_TOO_LONG, "{} is too long", "A name has 255 bytes at most, a path 4095. Use a shorter one."
    ),
    errno.ELOOP: _Refusal(ErrorCode.TOO_MANY_LINKS, "{} leads through too many links", "They may form a loop: look."),
    errno.EROFS: _Refusal(ErrorCode.READ_ONLY, "{} is on a read-only file system", "Write somewhere else."),
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EFBIG: _TOO_LARGE,
    errno.EOVERFLOW: _TOO_LARGE,
    errno.EBUSY: _BUSY,
    errno.ETXTBSY: _BUSY,
    errno.EAGAIN: _BUSY,
    errno.ESTALE: _Refusal(ErrorCode.RESOURCE_BUSY, "{} was changed meanwhile", "Try again."),
    errno.EMFILE: _TOO_MANY,
    errno.ENFILE: _TOO_MANY,
    errno.ENXIO: _NOT_A_FILE,
    errno.ENODEV: _NOT_A_FILE,
}
_OTHER = _Refusal(ErrorCode.FILESYSTEM_ERROR, "{} cannot be used: {why}", "See what the file system says about it.")


def file_error(cause: OSError, path: bytes) -> AtollError:
    """The error to tell about `path`. One that knows an absolute path of its own is about that."""
    if isinstance(cause, AtollError):
        return cause  # it has been told already
    if isinstance(cause.filename, bytes) and cause.filename.startswith(b"/"):
        path = cause.filename
    if cause.errno == errno.ENOTDIR:
        path = find_no_directory(path) or path
    refusal = _REFUSALS.get(cause.errno or 0, _OTHER)
    message = refusal.message.format(f"{os.fsdecode(path)!r}", why=cause.strerror)
    return error(refusal.code, message, remedy=refusal.remedy, **named(path=path))


def parent_missing(path: bytes, remedy: str = "Make it first.") -> AtollError:
    """Of something that was to be made: what is not there is a directory on the way."""
    missing = first_missing(path)
    message = f"{os.fsdecode(missing)!r} does not exist, so {os.fsdecode(path)!r} cannot be made"
    return error(ErrorCode.FILE_NOT_FOUND, message, remedy=remedy, **named(path=missing))


def not_a_file(path: bytes, noun: str) -> AtollError:
    message = f"{os.fsdecode(path)!r} is a {noun}, not a file"
    return error(ErrorCode.NOT_A_FILE, message, remedy="Use a command for it.", **named(path=path))


def is_a_directory(path: bytes, remedy: str) -> AtollError:
    return error(ErrorCode.IS_DIRECTORY, f"{os.fsdecode(path)!r} is a directory", remedy=remedy, **named(path=path))


def names_a_directory(path: bytes) -> AtollError:
    """Whether there is one or not."""
    message = f"{os.fsdecode(path)!r} is the name of a directory, not of a file"
    remedy = "Give the path of a file, with its name at the end and no slash."
    return error(ErrorCode.IS_DIRECTORY, message, remedy=remedy, **named(path=path))


def is_not_a_directory(path: bytes, remedy: str) -> AtollError:
    path = find_no_directory(path) or path
    message = f"{os.fsdecode(path)!r} is not a directory"
    return error(ErrorCode.NOT_DIRECTORY, message, remedy=remedy, **named(path=path))
