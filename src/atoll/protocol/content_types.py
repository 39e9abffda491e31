"""Content types: whether a file is text, and its MIME type, by its name and its first bytes. Values, no I/O."""

from __future__ import annotations

import base64
import binascii
import codecs
from functools import cache
from mimetypes import MimeTypes

from atoll.protocol.arguments import wrong_argument
from atoll.protocol.errors import ErrorCode, error

TEXT, BINARY, EMPTY = "text/plain", "application/octet-stream", "inode/x-empty"
SNIFFED_BYTES = 4096  # as many of the first as it takes to tell
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"\x7fELF", "application/x-executable"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"\x00asm", "application/wasm"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
)
_MAGIC_WITHIN = (
    (b"RIFF", 8, b"WEBP", "image/webp"),
    (b"RIFF", 8, b"WAVE", "audio/x-wav"),
    (b"", 4, b"ftyp", "video/mp4"),
    (b"", 257, b"ustar", "application/x-tar"),
)
# Names that Python's own table lacks or knows as something else than programmers do.
_NAMES = {
    ".ts": "text/x-typescript",
    ".tsx": "text/x-typescript",
    ".md": "text/markdown",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".rs": "text/x-rust",
    ".go": "text/x-go",
    ".sh": "application/x-sh",
    ".jsonl": "application/jsonl",
    ".parquet": "application/vnd.apache.parquet",
}
_COMPRESSED = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
    "br": "application/x-brotli",
    "compress": "application/x-compress",
}


def is_text(data: bytes, *, is_whole: bool = True) -> bool:
    """Whether this is UTF-8 without a NUL. If it is not the whole, its last character may be cut."""
    if b"\0" in data:
        return False
    if data.isascii():  # which makes no text of it
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return False
    return True


def mime_type(name: str, data: bytes, *, is_whole: bool = True) -> str:
    """The type of a file with this name that begins with `data`. Bytes that are known by sight outdo a name."""
    found = _type_by_bytes(data)
    named = _type_by_name(name)
    if found == "application/zip" and named and named.startswith("application/"):
        return named  # documents and packages of many kinds are zip archives
    if found:
        return found
    if named:
        return named
    if not data:
        return EMPTY if is_whole else BINARY
    return TEXT if is_text(data, is_whole=is_whole) else BINARY


def _type_by_bytes(data: bytes) -> str | None:
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    for magic, place, rest, kind in _MAGIC_WITHIN:
        if data.startswith(magic) and data.startswith(rest, place):
            return kind
    return None


def _type_by_name(name: str) -> str | None:
    _, dot, ending = name.rpartition(".")
    if dot and f".{ending.lower()}" in _NAMES:
        return _NAMES[f".{ending.lower()}"]
    # With a directory before it, so that no name is taken for a URL.
    found, compression = _table().guess_type(f"/{name.rpartition('/')[2]}")
    return _COMPRESSED.get(compression, BINARY) if compression else found


@cache
def _table() -> MimeTypes:
    """Python's own, without what the host has: a file has the same type everywhere."""
    return MimeTypes()


def check_encoding(encoding: object, allowed: tuple[str, ...]) -> str:
    """An encoding's name as we spell it, from any spelling that Python knows."""
    spelled = encoding.lower() if isinstance(encoding, str) else ""
    if spelled not in allowed:
        try:
            spelled = codecs.lookup(spelled).name
        except (LookupError, ValueError):  # the latter for a NUL in it, and for what is not ASCII
            spelled = ""
    if spelled not in allowed:
        raise wrong_argument("encoding", encoding, "is not supported", f"Use one of: {', '.join(allowed)}.")
    return spelled


class Base64Decoder:
    """Base64 in pieces; white space between is fine."""

    def __init__(self) -> None:
        self._rest = b""

    def decode(self, text: str | bytes, *, is_last: bool = False) -> bytes:
        try:
            letters = self._rest + b"".join((text.encode("ascii") if isinstance(text, str) else bytes(text)).split())
            end = len(letters) if is_last else len(letters) // 4 * 4
            self._rest = letters[end:]
            return base64.b64decode(letters[:end], validate=True)
        except (binascii.Error, UnicodeEncodeError) as cause:
            remedy = 'Give what base64 makes of the bytes, or the bytes themselves without encoding="base64".'
            message = f"the content is not base64: {cause}"
            raise error(ErrorCode.INVALID_REQUEST, message, remedy=remedy, encoding="base64") from cause
