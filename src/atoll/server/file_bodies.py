"""Files as JSON has them, for clients that are not the SDK.

A name is text, with U+FFFD where its bytes are not UTF-8; then the exact bytes come along in base64, and can be given
so. Modes are octal, as people write them: "0644".
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime

import msgspec

from atoll.protocol.arguments import wrong_argument
from atoll.protocol.errors import ErrorBody, ErrorCode, error
from atoll.protocol.files import ChangeType, FileChange, FileInfo, FileType, check_path, to_raw_path
from atoll.protocol.names import to_shown
from atoll.protocol.sessions import DEFAULT_SESSION

_OCTAL = re.compile(r"0?[0-7]{1,4}")


class FileInfoBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file. In a list it has its path from the directory that was listed, too."""

    path: str
    name: str
    type: FileType
    size: int
    mode: str
    modified_at: datetime
    uid: int
    gid: int
    target: str | None = None
    relative_path: str | None = None
    path_base64: str | None = None
    target_base64: str | None = None


class FileListBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`error` is why the list ends early, if it does."""

    files: list[FileInfoBody]
    count: int
    error: ErrorBody | None = None


class FileChangeBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: ChangeType
    path: str
    is_directory: bool = False
    old_path: str | None = None
    path_base64: str | None = None
    old_path_base64: str | None = None


class FileCountBody(msgspec.Struct, frozen=True, kw_only=True):
    count: int


class DirectoryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str | None = None
    path_base64: str | None = None
    recursive: bool = False
    mode: str = "0755"
    session_id: str = DEFAULT_SESSION


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With `into_directory` a target that is a directory takes it in, as mv does."""

    source: str | None = None
    source_base64: str | None = None
    target: str | None = None
    target_base64: str | None = None
    into_directory: bool = False
    session_id: str = DEFAULT_SESSION


class CopyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str | None = None
    source_base64: str | None = None
    target: str | None = None
    target_base64: str | None = None
    session_id: str = DEFAULT_SESSION


class ModeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: str
    path: str | None = None
    path_base64: str | None = None
    session_id: str = DEFAULT_SESSION


def to_info_body(info: FileInfo) -> FileInfoBody:
    path, path_base64 = to_shown(info.raw_path)
    target, target_base64 = (None, None) if info.raw_target is None else to_shown(info.raw_target)
    return FileInfoBody(
        path=path,
        name=path.rpartition("/")[2],
        type=info.type,
        size=info.size,
        mode=f"{info.mode:04o}",
        modified_at=info.modified_at,
        uid=info.uid,
        gid=info.gid,
        target=target,
        relative_path=to_shown(info.raw_path[info.listed_from :])[0] if info.listed_from else None,
        path_base64=path_base64,
        target_base64=target_base64,
    )


def to_change_body(change: FileChange) -> FileChangeBody:
    path, path_base64 = to_shown(change.raw_path)
    old_path, old_path_base64 = (None, None) if change.raw_old_path is None else to_shown(change.raw_old_path)
    return FileChangeBody(
        type=change.type,
        path=path,
        is_directory=change.is_directory,
        old_path=old_path,
        path_base64=path_base64,
        old_path_base64=old_path_base64,
    )


def choose_path(text: str | None, encoded: str | None, name: str = "path") -> bytes:
    """A path that was given one way or the other."""
    if (text is None) == (encoded is None):
        raise error(
            ErrorCode.INVALID_REQUEST,
            f"{name} is missing" if text is None else f"{name} and {name}_base64 are both given",
            remedy=f"Give {name}, or {name}_base64 for one that is not UTF-8.",
            field=name,
        )
    if text is not None:
        return to_raw_path(text)
    try:
        raw = base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, ValueError) as cause:
        remedy = "Give what base64 makes of the path's bytes."
        message = f"{name}_base64 is not base64: {cause}"
        raise error(
            ErrorCode.INVALID_PATH, message, remedy=remedy, field=f"{name}_base64", value=(encoded or "")[:200]
        ) from cause
    return check_path(raw)


def parse_mode(text: str) -> int:
    if not _OCTAL.fullmatch(text):
        remedy = "Give three or four octal digits, such as 0644."
        raise wrong_argument("mode", text, "is not a file's mode", remedy=remedy)
    return int(text, 8)
