"""The part of tar that carries files, directories and symbolic links: ustar, with extended headers for what is long.

Files with holes are as GNU tar writes them since 2006 (PAX, "sparse format 1.0"), which other tars read too: before the
content stands where it belongs.

Rules:
1. Bytes in, entries out, no I/O. Content is passed on as it comes; what is held is a header, or a file's map.
2. What is not one of the three is refused, not skipped: hard links, devices, FIFOs, older kinds of sparse files.
3. A number is octal, or binary and not negative. An extended header has MAX_EXTENDED bytes at most, and there are
   MAX_EXTENDED_IN_ROW of them before an entry. What comes after the end has a bound too.
4. Names are bytes. Whether one is safe is for whoever uses it to say.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.file_maps import MAX_PLACES, MAX_SIZE, FileMap, flaw_in
from atoll.protocol.names import named

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 512
END = b"\0" * (2 * BLOCK)
MAX_EXTENDED = 64 * 1024
MAX_EXTENDED_IN_ROW = 1000
MAX_NAME = 60_000  # of what we write: it fits into an extended header, with a link's target beside it
MAX_AFTER_END = 16 * 2**20  # other tars fill up their last record

_NAME, _LINK = slice(0, 100), slice(157, 257)
_MODE, _SIZE, _TIME, _CHECKSUM = slice(100, 108), slice(124, 136), slice(136, 148), slice(148, 156)
_TYPE, _MAGIC, _PREFIX = 156, slice(257, 262), slice(345, 500)
_LARGEST_OCTAL = 8**11 - 1
_ZERO_BLOCK = b"\0" * BLOCK
_BLANKS_BEFORE_SUM = b" " * 8
_MAJOR, _MINOR = b"GNU.sparse.major", b"GNU.sparse.minor"
_SPARSE_NAME, _SPARSE_SIZE = b"GNU.sparse.name", b"GNU.sparse.realsize"
_SPARSE = {_MAJOR, _MINOR, _SPARSE_NAME, _SPARSE_SIZE}
_KEPT = {b"path", b"linkpath", b"size"} | _SPARSE  # of an extended header
_MAX_MAP_LINE = 20
_UNSUPPORTED = {
    b"1": "a hard link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a FIFO",
    b"S": "a sparse file of an older kind",
}


class EntryType(Enum):
    FILE = b"0"
    SYMLINK = b"2"
    DIRECTORY = b"5"


_TYPES = {b"\0": EntryType.FILE, b"7": EntryType.FILE, **{kind.value: kind for kind in EntryType}}


class Entry(NamedTuple):
    """`name` and `target` as they are in the archive. Of a file follow `size` bytes of content, or those in its map."""

    name: bytes
    type: EntryType
    size: int = 0
    mode: int = 0o644
    modified_at: int = 0  # seconds since 1970
    target: bytes = b""
    map: FileMap | None = None

    @property
    def content(self) -> int:
        """How many bytes follow."""
        return self.map.count if self.map else self.size


def encode_entry(entry: Entry) -> bytes:
    """The header, with an extended one before it if need be, and the map of a file with holes after it."""
    if entry.map:
        return _encode_sparse(entry, entry.map)
    return _encode_headers(entry)


def _encode_sparse(entry: Entry, file_map: FileMap) -> bytes:
    numbers = [number for place in (*file_map.places, (file_map.size, 0)) for number in place]
    content_map = b"".join(b"%d\n" % number for number in (len(numbers) // 2, *numbers))
    content_map += padding(len(content_map))
    extended = _record(_MAJOR, b"1") + _record(_MINOR, b"0")
    extended += _record(_SPARSE_NAME, entry.name) + _record(_SPARSE_SIZE, b"%d" % file_map.size)
    size = len(content_map) + file_map.count
    # Whoever does not know what this is gets a file of another name, with the map in it.
    short = b"GNUSparseFile.0/" + entry.name.rpartition(b"/")[2][:80]
    return _encode_headers(entry._replace(name=short, size=size), extended, entry.name) + content_map


def _encode_headers(entry: Entry, extended: bytes = b"", name: bytes = b"") -> bytes:
    if len(entry.name) > 100:
        extended += _record(b"path", entry.name)
    if len(entry.target) > 100:
        extended += _record(b"linkpath", entry.target)
    if entry.size > _LARGEST_OCTAL:
        extended += _record(b"size", b"%d" % entry.size)
    if not extended:
        return _header(entry, entry.type.value)
    if not _is_utf8(entry.name + entry.target + name):
        extended = _record(b"hdrcharset", b"BINARY") + extended
    first = _header(Entry(b"././@PaxHeader", EntryType.FILE, len(extended)), b"x")
    return first + extended + padding(len(extended)) + _header(entry, entry.type.value)


def padding(size: int) -> bytes:
    """The zeros that follow `size` bytes of content."""
    return b"\0" * (-size % BLOCK)


def _header(entry: Entry, kind: bytes) -> bytes:
    size = entry.size if entry.size <= _LARGEST_OCTAL else 0
    time = min(max(entry.modified_at, 0), _LARGEST_OCTAL)
    header = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0        %b%bustar\x0000" % (
        _field(entry.name),
        entry.mode & 0o7777,
        0,
        0,
        size,
        time,
        kind,
        _field(entry.target),
    )
    header += b"\0" * (BLOCK - len(header))
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def _field(name: bytes) -> bytes:
    return name[:100].ljust(100, b"\0")


def _record(key: bytes, value: bytes) -> bytes:
    """Its length, which counts itself, comes first."""
    rest = b" %b=%b\n" % (key, value)
    length = len(rest)
    while length != len(rest) + len(b"%d" % length):
        length = len(rest) + len(b"%d" % length)
    return b"%d%b" % (length, rest)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


class TarReader:
    """Entries, each followed by its content in pieces, from an archive that comes in pieces."""

    def __init__(self) -> None:
        self._held = bytearray()  # of a header that is not complete yet
        self._wanted = BLOCK  # for it to be
        self._extended_type = b""  # while an extended header is read
        self._extended_size = 0
        self._extended: dict[bytes, bytes] = {}
        self._extended_in_row = 0
        self._after_end = 0
        self._sparse: Entry | None = None  # a file whose map is being read
        self._content = 0  # bytes of the entry that are still to come
        self._padding = 0
        self._has_ended = False

    def feed(self, data: bytes | memoryview) -> Iterator[Entry | memoryview]:
        view = memoryview(data)
        while view and not self._has_ended:
            if self._content and not self._sparse:
                piece = view[: self._content]
                self._content -= len(piece)
                view = view[len(piece) :]
                yield piece
            elif self._padding and not self._sparse:
                skipped = min(self._padding, len(view))
                self._padding -= skipped
                view = view[skipped:]
            else:
                piece = view[: self._wanted - len(self._held)]
                self._held += piece
                view = view[len(piece) :]
                if len(self._held) == self._wanted and (entry := self._take_block()):
                    yield entry
        self._after_end += len(view)
        if self._after_end > MAX_AFTER_END:
            raise damaged("it goes on after its end")

    def close(self) -> None:
        """There is no more. What is incomplete is an error."""
        if not self._has_ended:
            raise damaged("it ends in the middle")

    def _take_block(self) -> Entry | None:
        if self._sparse:
            return self._take_map(self._sparse)
        block = bytes(self._held)
        self._held.clear()
        if self._extended_type:
            self._take_extended(block[: self._extended_size])
            return None
        if block == _ZERO_BLOCK:
            self._has_ended = True
            return None
        return self._take_header(block)

    def _take_header(self, block: bytes) -> Entry | None:
        if _number(block[_CHECKSUM]) != sum(block) - sum(block[_CHECKSUM]) + sum(_BLANKS_BEFORE_SUM):
            raise damaged("a header's checksum is wrong")
        kind, size = block[_TYPE : _TYPE + 1], _number(block[_SIZE])
        if kind in (b"x", b"g", b"L", b"K"):
            self._expect_extended(kind, size)
            return None
        extended, self._extended, self._extended_in_row = self._extended, {}, 0
        name = extended.get(_SPARSE_NAME) or extended.get(b"path") or _full_name(block)
        if kind not in _TYPES:
            raise unsafe(name, f"is {_UNSUPPORTED.get(kind, f'of the unknown type {kind!r}')}", "Leave it out.")
        if b"size" in extended:
            size = _decimal(extended[b"size"])
        is_directory = name.endswith(b"/") and kind in (b"0", b"\0")  # as it was written before there was a type for it
        entry_type = EntryType.DIRECTORY if is_directory else _TYPES[kind]
        if entry_type is not EntryType.FILE and size:
            raise damaged(f"{name!r:.200} has content and is no file")
        self._content, self._padding = size, -size % BLOCK
        target = extended.get(b"linkpath") or _text(block[_LINK])
        entry = Entry(name, entry_type, size, _number(block[_MODE]) & 0o7777, _number(block[_TIME]), target)
        if extended.keys() & _SPARSE:
            self._expect_map(entry, extended)
            return None
        return entry

    def _expect_map(self, entry: Entry, extended: dict[bytes, bytes]) -> None:
        """The map of a sparse file. It comes first in what is called the content, in whole blocks."""
        if extended.get(_MAJOR) != b"1" or extended.get(_MINOR) != b"0" or entry.type is not EntryType.FILE:
            raise _old_sparse(entry.name)
        if not entry.size:
            raise damaged(f"{entry.name!r:.200} has holes and no map")
        self._sparse = entry._replace(size=_decimal(extended.get(_SPARSE_SIZE, b"")))
        self._wanted = BLOCK

    def _take_map(self, entry: Entry) -> Entry | None:
        count, end = _map_lines(self._held, entry.name)
        size = len(self._held)
        if end is None:
            self._wanted += BLOCK
            if self._wanted > self._content + self._padding:
                raise damaged(f"the map of {entry.name!r:.200} has no end")
            return None
        numbers = [_decimal(bytes(line)) for line in self._held[:end].split(b"\n")[1 : 2 * count + 1]]
        places = [(offset, length) for offset, length in zip(numbers[::2], numbers[1::2], strict=True) if length]
        file_map = FileMap(size=entry.size, places=places)
        flaw = flaw_in(file_map)
        if flaw or file_map.count != self._content - size:
            raise damaged(f"the map of {entry.name!r:.200} is wrong: {flaw or 'it is of another size'}")
        self._content -= size
        self._held.clear()
        self._sparse, self._wanted = None, BLOCK
        return entry._replace(map=file_map)

    def _expect_extended(self, kind: bytes, size: int) -> None:
        self._extended_in_row += 1
        if self._extended_in_row > MAX_EXTENDED_IN_ROW:
            raise damaged(f"more than {MAX_EXTENDED_IN_ROW} extended headers come in a row")
        if size > MAX_EXTENDED:
            raise damaged(f"an extended header claims {size} bytes; {MAX_EXTENDED} are allowed")
        self._extended_type, self._extended_size = kind, size
        self._wanted = size + -size % BLOCK
        if not size:
            self._take_extended(b"")

    def _take_extended(self, content: bytes) -> None:
        kind, self._extended_type, self._wanted = self._extended_type, b"", BLOCK
        match kind:
            case b"L":
                self._extended[b"path"] = _text(content)
            case b"K":
                self._extended[b"linkpath"] = _text(content)
            case b"x":
                # Of the rest, headers without an entry between them could bring any number.
                self._extended.update((key, value) for key, value in _records(content).items() if key in _KEPT)
            case _:
                _check_global(_records(content))


def _records(content: bytes) -> dict[bytes, bytes]:
    records = {}
    while content:
        digits, space, _ = content.partition(b" ")
        length = _decimal(digits)
        record = content[len(digits) + len(space) : length]
        key, equals, value = record.partition(b"=")
        if not (space and equals and value.endswith(b"\n") and length <= len(content)):
            raise damaged("an extended header makes no sense")
        if key.startswith(b"GNU.sparse") and key not in _SPARSE:
            raise _old_sparse(value[:-1])
        if b"\0" in value:
            raise damaged("a NUL is in an extended header")
        records[key] = value[:-1]
        content = content[length:]
    return records


def _map_lines(held: bytearray, name: bytes) -> tuple[int, int | None]:
    """How many places a map says it has, and where it ends, if that has come: a number a line, and that many pairs."""
    first, newline, _ = held[: _MAX_MAP_LINE + 1].partition(b"\n")
    count = _decimal(bytes(first))
    if not newline or count > MAX_PLACES + 1:  # one more says where the file ends
        raise damaged(f"the map of {name!r:.200} claims {count} places; {MAX_PLACES} are allowed")
    lines = held.count(b"\n")
    if lines < 2 * count + 1:
        if len(held) > (2 * count + 1) * (_MAX_MAP_LINE + 1) + BLOCK:
            raise damaged(f"the map of {name!r:.200} makes no sense")
        return count, None
    end = -1
    for _ in range(2 * count + 1):
        end = held.index(b"\n", end + 1)
    return count, end


def _check_global(records: dict[bytes, bytes]) -> None:
    """Refuse records for all entries, but for a comment."""
    if records.keys() & _KEPT:
        raise damaged("a name or a size is given for all entries at once")


def _full_name(block: bytes) -> bytes:
    name = _text(block[_NAME])
    prefix = _text(block[_PREFIX]) if block[_MAGIC] == b"ustar" and block[262:263] != b" " else b""
    return b"%b/%b" % (prefix, name) if prefix else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # binary, for what is too large
        return _check_size(int.from_bytes(field[1:], "big"))
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        raise damaged(f"{field!r} is not a number")
    return int(digits, 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise damaged(f"{digits!r:.50} is not a number")
    return _check_size(int(digits))


def _check_size(size: int) -> int:
    if size > MAX_SIZE:
        raise damaged(f"{size} bytes are more than a file can have")
    return size


def damaged(why: str) -> AtollError:
    message = f"this is no tar archive, or damaged: {why}"
    return error(ErrorCode.INVALID_REQUEST, message, remedy="Make it again.", reason=why)


def _old_sparse(name: bytes) -> AtollError:
    remedy = "Leave it out, or pack it with `tar --sparse --format=posix`, whose sparse files are known here."
    return unsafe(name, "is a sparse file of an older kind", remedy)


def unsafe(name: bytes, why: str, remedy: str) -> AtollError:
    message = f"{os.fsdecode(name)!r:.500} in the archive {why}"
    return error(ErrorCode.UNSAFE_ARCHIVE, message, remedy=remedy, **named(name=name))
