"""Files: what a host asks of an agent, and what both say about them.

Names in a file system are bytes. They travel as bytes, and users see them as Python's `os` module shows them: text,
with lone surrogates where the bytes are not UTF-8. A path that is not absolute counts from a session's directory.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Annotated, ClassVar, get_args

import msgspec

from atoll.protocol.arguments import to_whole, wrong_argument
from atoll.protocol.calls import Answer, Call
from atoll.protocol.durations import Moment
from atoll.protocol.errors import Context, ErrorCode, error, shown
from atoll.protocol.file_maps import FileMap
from atoll.protocol.names import named
from atoll.protocol.plain import Plain
from atoll.protocol.said import Count, Owner
from atoll.protocol.transfer_bounds import Bounds

MAX_PATH = 4096  # the kernel's own limit, with the NUL at the end
MAX_MODE = 0o7777
MAX_TOGETHER = 1000  # files or changes in a message
MAX_RULES = 64 * 1024  # bytes of what says what is excluded


class FileType(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"

    @property
    def noun(self) -> str:
        """The noun that people have for it."""
        return {"fifo": "FIFO", "symlink": "symbolic link"}.get(self.value, self.value)


# gc=False: there may be a hundred thousand of them, none holds another, and the collector would look at each.
class FileInfo(Plain, frozen=True, kw_only=True, gc=False, omit_defaults=True, eq=False):
    """Something in a directory. `target` is where a symbolic link points."""

    _PLAIN = (
        "path",
        "relative_path",
        "name",
        "type",
        "size",
        "mode",
        "modified_at",
        "uid",
        "gid",
        "target",
        "is_directory",
    )

    raw_path: bytes  # absolute
    type: FileType
    size: Count
    mode: Annotated[int, msgspec.Meta(ge=0, le=MAX_MODE)]  # permissions only
    modified_at: Moment
    uid: Owner = 0
    gid: Owner = 0
    raw_target: bytes | None = None
    listed_from: Count = 0  # where in its path `relative_path` begins; no agent says so

    @property
    def path(self) -> str:
        return os.fsdecode(self.raw_path)

    @property
    def relative_path(self) -> str:
        """From the directory that was listed; the name of what was not found in a list."""
        return os.fsdecode(self.raw_path[self.listed_from :]) if self.listed_from else self.name

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def target(self) -> str | None:
        return None if self.raw_target is None else os.fsdecode(self.raw_target)

    @property
    def is_directory(self) -> bool:
        return self.type is FileType.DIRECTORY

    def __eq__(self, other: object) -> bool:
        """Also if one of them is of a list."""
        return isinstance(other, FileInfo) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[object, ...]:
        about = (self.raw_path, self.type, self.size, self.mode, self.modified_at)
        return (*about, self.uid, self.gid, self.raw_target)

    def __repr__(self) -> str:
        return f"FileInfo({self.path!r}, {self.type.value}, size={self.size}, mode={self.mode:#o})"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    files: Annotated[list[FileInfo], msgspec.Meta(min_length=1, max_length=MAX_TOGETHER)]


class FileDone(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`count`: bytes or entries, as the call says. `left_out`: entries that no archive takes; the first have names."""

    count: Count = 0
    left_out: Count = 0
    left_out_names: Annotated[list[bytes], msgspec.Meta(max_length=MAX_TOGETHER)] = []


class FileCall(Call[Answer], frozen=True, kw_only=True):
    """A call about files: relative paths count from this session's directory. A disk may take its time."""

    session_id: str | None = None

    @property
    def patience(self) -> float | None:
        return None


class PathCall(FileCall[Answer], frozen=True, kw_only=True):
    """About one path."""

    path: bytes

    @property
    def subject(self) -> Context:
        return {**named(path=self.path)}


class ReadFile(PathCall[FileDone], frozen=True, kw_only=True, tag="read_file"):
    """EVENT FileInfo; DATA with the bytes from `offset` on, `length` at most.

    What has no size of its own, such as a file in /proc, is read to its end; a FIFO, a socket or a terminal is
    NOT_A_FILE. With `holes` a file that has some is told by a second EVENT, FileMap, and DATA are only the bytes in its
    places; it is for whole files. More bytes than `max_bytes` are DOWNLOAD_TOO_LARGE, before any of them.
    """

    changes: ClassVar[bool] = False

    offset: int = 0
    length: int | None = None
    holes: bool = False
    max_bytes: int | None = None


class WriteFile(PathCall[FileInfo], frozen=True, kw_only=True, tag="write_file"):
    """INPUT with the bytes, an empty one at the end. Until it is answered nobody sees any of it.

    Directories on the way are made. What was there keeps its mode and owner unless `mode` is given; a symbolic link is
    followed. With `sync` the answer waits for the disk. With `exclusive` what exists already is FILE_EXISTS. With a
    `map` the bytes are those in its places, and all else is holes. With `append` they go to the end of what is there,
    which stays the same file.
    """

    fields_came_with = {"append": 2}

    mode: int | None = None
    sync: bool = False
    exclusive: bool = False
    map: FileMap | None = None
    append: bool = False


class ListFiles(PathCall[FileDone], frozen=True, kw_only=True, tag="list_files"):
    """EVENT FileList, as many as it takes, sorted by name within each directory; answered with their number.

    Links are listed, not followed. What vanishes meanwhile is left out.
    """

    changes: ClassVar[bool] = False

    recursive: bool = False
    include_hidden: bool = False


class StatFile(PathCall[FileInfo], frozen=True, kw_only=True, tag="stat_file"):
    """Of what a link points to unless `follow` is False."""

    changes: ClassVar[bool] = False

    follow: bool = True


class MakeDirectory(PathCall[FileInfo], frozen=True, kw_only=True, tag="make_directory"):
    """With `recursive` parents are made, and one that exists is fine."""

    recursive: bool = False
    mode: int = 0o755


class DeleteFile(PathCall[FileDone], frozen=True, kw_only=True, tag="delete_file"):
    """Anything but a directory; a link itself, not what it points to."""


class DeleteDirectory(PathCall[FileDone], frozen=True, kw_only=True, tag="delete_directory"):
    """Answered with the number of entries removed. Without `recursive` it must be empty. No link is followed."""

    recursive: bool = True


class TwoPathsCall(FileCall[FileInfo], frozen=True, kw_only=True):
    """From one path to another."""

    source: bytes
    target: bytes

    @property
    def subject(self) -> Context:
        return {**named(source=self.source, target=self.target)}


class MoveFile(TwoPathsCall, frozen=True, kw_only=True, tag="move_file"):
    """Answered with where it is now. `into_directory`: a target that is a directory takes it in, as mv does.

    Also across file systems. A file that is in the way is replaced.
    """

    into_directory: bool = False


class CopyFile(TwoPathsCall, frozen=True, kw_only=True, tag="copy_file"):
    """Answered with the copy, which appears as a whole, keeps mode and holes, and replaces a file in the way.

    Of a directory all that is in it is copied, also owners, times and links; it replaces nothing but an empty one.
    """


class ChangeMode(PathCall[FileInfo], frozen=True, kw_only=True, tag="change_mode"):
    """Permissions only."""

    mode: int


class PackFiles(PathCall[FileDone], frozen=True, kw_only=True, tag="pack_files"):
    """DATA with a tar archive; answered with the number of entries.

    A directory's entries are named from within it ("." is the directory itself); a file is one entry with its own name.
    Sockets, FIFOs and devices are left out, and counted. Files with holes are as GNU tar packs them (PAX, sparse 1.0).
    What goes beyond the bounds is DOWNLOAD_TOO_LARGE, before it is sent. What `exclude` has rules for is as if it were
    not there; they are those of .gitignore.
    """

    changes: ClassVar[bool] = False
    fields_came_with = {"exclude": 2}

    bounds: Bounds = Bounds()
    exclude: list[bytes] = []


class UnpackFiles(PathCall[FileDone], frozen=True, kw_only=True, tag="unpack_files"):
    """INPUT with a tar archive as PackFiles makes it, then an empty one; answered with the number of entries.

    `path` is the directory they go into; it is made if need be. An archive that could write anywhere else is
    UNSAFE_ARCHIVE, and what came before the unsafe entry stays.
    """


class WatchFiles(PathCall[FileDone], frozen=True, kw_only=True, tag="watch_files"):
    """EVENT FileChanges, the first of them empty as soon as watching has begun, until cancelled.

    If the directory itself is deleted or moved, that is the last change, and the answer is their number.

    `include` and `exclude` are shell patterns, matched against the path from the watched directory and the name.
    """

    changes: ClassVar[bool] = False

    recursive: bool = True
    include: list[bytes] = []
    exclude: list[bytes] = []


AnyCall = (
    (ReadFile | WriteFile | ListFiles | StatFile | MakeDirectory | DeleteFile | DeleteDirectory)
    | (MoveFile | CopyFile | ChangeMode)
    | (PackFiles | UnpackFiles | WatchFiles)
)

_QUICK = [shape.__struct_config__.tag for shape in get_args(AnyCall) if shape is not WatchFiles]
_BEGINNING = re.compile(rb"[\x80-\x8f]\xa4type[\xa0-\xbf](?:%s)" % "|".join(map(str, _QUICK)).encode())


def is_about_files(message: bytes) -> bool:
    """Whether a call as it travels is for a worker of its agent, and short. Where it matters only for speed: one whose
    fields come in another order is not known.
    """
    return _BEGINNING.match(message) is not None


class ChangeType(StrEnum):
    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"
    MOVE = "move"
    OVERFLOW = "overflow"  # so much happened at once that some of it is not known: look for yourself


class FileChange(Plain, frozen=True, kw_only=True, gc=False):
    """`old_path` is where something that was moved within the watched directory came from."""

    _PLAIN = ("type", "path", "is_directory", "old_path")

    type: ChangeType
    raw_path: bytes
    is_directory: bool = False
    raw_old_path: bytes | None = None

    @property
    def path(self) -> str:
        return os.fsdecode(self.raw_path)

    @property
    def old_path(self) -> str | None:
        return None if self.raw_old_path is None else os.fsdecode(self.raw_old_path)

    def __repr__(self) -> str:
        return f"FileChange({self.type.value}, {self.path!r})"


class FileChanges(msgspec.Struct, frozen=True, kw_only=True):
    changes: Annotated[list[FileChange], msgspec.Meta(max_length=MAX_TOGETHER)]


def to_raw_path(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bytes:
    """A path as it travels, or a typed error."""
    try:
        raw = os.fsencode(path)
    except (TypeError, UnicodeEncodeError) as cause:
        remedy = "Give text, bytes or a path object."
        message = f"{shown(path, 200)} is not a path"
        raise error(ErrorCode.INVALID_PATH, message, remedy=remedy, path=shown(path, 200)) from cause
    return check_path(raw)


def check_path(path: bytes) -> bytes:
    if not path or b"\0" in path:
        remedy = "Give a path that is not empty and has no NUL in it."
        message = f"{os.fsdecode(path)!r:.200} is not a path"
        raise error(ErrorCode.INVALID_PATH, message, remedy=remedy, **named(path=path))
    if len(path) >= MAX_PATH:
        raise error(
            ErrorCode.NAME_TOO_LONG,
            f"{os.fsdecode(path)!r:.100} and so on has {len(path)} bytes; a path has {MAX_PATH - 1} at most",
            remedy="Use a shorter path, or one relative to the session's directory.",
            length=len(path),
            **named(path=path),
        )
    return path


def check_rules(rules: list[bytes]) -> list[bytes]:
    """Rules of what is left out, as many as anybody writes by hand."""
    size = sum(map(len, rules)) + len(rules)
    if size > MAX_RULES:
        message = f"rules of {size:,} bytes say what is excluded, and {MAX_RULES:,} are allowed"
        raise error(ErrorCode.INVALID_REQUEST, message, remedy="Use patterns instead of names.", limit=MAX_RULES)
    return rules


def check_mode(mode: object) -> int:
    number = to_whole(mode)
    if number is None or not 0 <= number <= MAX_MODE:
        raise wrong_argument("mode", mode, "is not a file's mode", remedy="Give a number such as 0o644.")
    return number
