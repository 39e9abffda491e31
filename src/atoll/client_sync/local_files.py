# Generated from client/local_files.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""The near end of an upload or a download: files of this machine. Everything here may wait for a disk."""

from __future__ import annotations

import codecs
import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from atoll.archives.descent import HAS_DESCRIPTORS, descend, find_no_directory, first_missing, flags
from atoll.archives.holes import MapWriter, map_of, read_by
from atoll.archives.packing import Packer
from atoll.archives.removal import remove_tree
from atoll.archives.unpacking import ON_HOST, Unpacker
from atoll.protocol.calls import misbehaved
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.file_maps import FileMap, flaw_in
from atoll.protocol.files import MAX_RULES, FileDone
from atoll.protocol.names import named
from atoll.protocol.transfer_bounds import Tally

CHUNK = 1024 * 1024
_WRITING = flags("O_WRONLY O_CLOEXEC O_NOCTTY O_BINARY")
_DIRECTORY = flags("O_RDONLY O_DIRECTORY O_CLOEXEC")
_CODES = {
    errno.ENOENT: ErrorCode.FILE_NOT_FOUND,
    errno.ENOTDIR: ErrorCode.NOT_DIRECTORY,
    errno.EISDIR: ErrorCode.IS_DIRECTORY,
    errno.EEXIST: ErrorCode.FILE_EXISTS,
    errno.EACCES: ErrorCode.PERMISSION_DENIED,
    errno.EPERM: ErrorCode.PERMISSION_DENIED,
    errno.ENOSPC: ErrorCode.NO_SPACE,
    errno.EDQUOT: ErrorCode.NO_SPACE,
    errno.EROFS: ErrorCode.READ_ONLY,
    errno.ELOOP: ErrorCode.TOO_MANY_LINKS,
    errno.ENAMETOOLONG: ErrorCode.NAME_TOO_LONG,
    errno.ENOTEMPTY: ErrorCode.DIRECTORY_NOT_EMPTY,
    errno.EFBIG: ErrorCode.FILE_TOO_LARGE,
}


class LocalSource:
    """A file that is uploaded. What is none is refused: a pipe would be waited for, and a device may have no end."""

    def __init__(self, path: bytes) -> None:
        with told(path):
            check_regular(path, os.stat(path))
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by whoever has this)
        try:
            found = os.fstat(self._file.fileno())
            check_regular(path, found)
            self.mode = stat.S_IMODE(found.st_mode) & 0o777
            self.path = path
            self.map = map_of(self._file.fileno())
            self.size = self.map.count if self.map else found.st_size  # of what travels
            self._pieces = read_by(self.map, self._file.fileno()) if self.map else None
        except BaseException:
            self._file.close()
            raise

    def read(self) -> bytes:
        with told(self.path):
            if self._pieces:
                return next(self._pieces, b"")
            return self._file.read(CHUNK) or b""

    def close(self) -> None:
        self._file.close()


class LocalTarget:
    """A file that is downloaded: under a name of its own until it is whole. A device or a pipe is written as it is."""

    def __init__(self, path: bytes, mode: int, tally: Tally) -> None:
        self.path = path
        self._tally = tally
        self._by_map: MapWriter | None = None
        self._partial: bytes | None = None
        with told(path, is_made=True):
            if is_special(path):
                descriptor = os.open(path, _WRITING)
            else:
                # Not made from the target's name, which may be as long as names can be.
                partial = os.path.join(os.path.dirname(path), f".atoll-{secrets.token_hex(8)}".encode())
                descriptor = os.open(partial, _WRITING | os.O_CREAT | os.O_EXCL, mode & 0o777)
                self._partial = partial
        self._file = os.fdopen(descriptor, "wb")

    def take_map(self, file_map: FileMap) -> None:
        """A map says where the bytes written from now on belong. A size that no file can have here is an error now."""
        if flaw := flaw_in(file_map):
            raise misbehaved(f"the map of a file is wrong: {flaw}")
        with told(self.path, is_made=True):
            self._by_map = MapWriter(self._file.fileno(), file_map)

    def write(self, pieces: list[bytes]) -> None:
        size = sum(map(len, pieces))
        self._tally.add_bytes(size)
        with told(self.path, is_made=True):
            if not self._by_map:
                self._file.writelines(pieces)
                return
            if size > self._by_map.left:
                raise misbehaved("more of a file came than was announced")
            for piece in pieces:
                self._by_map.write(piece)

    def commit(self) -> None:
        if self._by_map and self._by_map.left:
            raise misbehaved(f"{self._by_map.left} bytes of a file did not come")
        with told(self.path, is_made=True):
            self._file.close()
            if self._partial:
                os.replace(self._partial, self.path)

    def close(self) -> None:
        """Leave nothing, unless it was committed. A write that is under way in a thread is waited for."""
        with suppress(OSError):
            self._file.close()
        if self._partial:
            with suppress(OSError):
                os.unlink(self._partial)


class LocalTree:
    """A directory that is uploaded, as an archive."""

    def __init__(self, path: bytes, exclude: Sequence[bytes] = ()) -> None:
        self._path = path
        self._packer = Packer(path, exclude=exclude)
        self._pieces = self._packer.pieces()
        self._lock = threading.Lock()

    def read(self) -> bytes:
        with self._lock, told(self._path):
            return next(self._pieces, b"")

    @property
    def done(self) -> FileDone:
        """The answer for what was read so far."""
        packer = self._packer
        return FileDone(count=packer.count, left_out=packer.left_out, left_out_names=packer.left_out_names)

    def close(self) -> None:
        with self._lock:  # a read that is under way in a thread is waited for
            self._pieces = iter(())


class LinksLeftOut(NamedTuple):
    """Links that lead out of a directory: how many, and the first of them with their targets."""

    number: int
    some: list[tuple[bytes, bytes]]


class LocalTreeTarget:
    """A directory that is downloaded. Nothing is written anywhere else, whatever the archive says.

    One that is new has a name of its own until it is whole. What is added to one that was there is whole files.
    """

    def __init__(self, path: bytes, tally: Tally) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._partial: bytes | None = None
        with told(path, is_made=True):
            if not os.path.lexists(path):
                parent = os.path.dirname(path.rstrip(b"/")) or b"."
                os.makedirs(parent, exist_ok=True)
                partial = os.path.join(parent, f".atoll-{secrets.token_hex(8)}".encode())
                os.mkdir(partial)
                self._partial = partial
            place = descend(self._partial or path, _DIRECTORY)
        self._unpacker = Unpacker(place, ON_HOST, tally)

    def take_map(self, file_map: FileMap) -> None:
        raise misbehaved("a directory came as a file with holes")

    def write(self, pieces: list[bytes]) -> None:
        with self._lock, self._told():
            for piece in pieces:
                self._unpacker.feed(piece)

    @property
    def left_out(self) -> LinksLeftOut:
        """The links that lead out of it."""
        return LinksLeftOut(self._unpacker.left_out, self._unpacker.links_left_out)

    def commit(self) -> None:
        with self._told():
            self._unpacker.close()
        if self._partial:
            with told(self._path, is_made=True):
                os.rename(self._partial, self._path.rstrip(b"/"))
            self._partial = None

    def close(self) -> None:
        """Leave nothing of a new directory, unless it was committed."""
        with self._lock, self._unpacker:
            pass
        if self._partial:
            with suppress(OSError):
                _remove(self._partial)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An entry has a name of its own; an archive that is refused is told with where it should have gone."""
        try:
            yield
        except AtollError as problem:
            problem.about(**named(path=self._path))
            raise
        except OSError as cause:
            raise local_problem(os.path.join(self._path, self._unpacker.current), cause) from cause


def _remove(path: bytes) -> None:
    if not HAS_DESCRIPTORS:
        import shutil  # on Windows alone

        shutil.rmtree(path)
        return
    parent = os.open(os.path.dirname(path), _DIRECTORY)
    try:
        remove_tree(parent, os.path.basename(path))
    finally:
        os.close(parent)


def read_rules(path: bytes) -> list[bytes]:
    """The lines of a file that says what is excluded."""
    with told(path), open(path, "rb") as file:
        text = file.read(MAX_RULES + 1)
    return text.removeprefix(codecs.BOM_UTF8).splitlines()


def flaw_in_local_name(name: bytes) -> str | None:
    """Why this system would take a name for another."""
    if HAS_DESCRIPTORS:
        return None
    from atoll.archives.by_path import flaw_in_name  # on Windows alone

    return flaw_in_name(name)


def is_local_directory(path: bytes) -> bool:
    with told(path):
        return stat.S_ISDIR(os.stat(path).st_mode)


def is_special(path: bytes) -> bool:
    """Whether there is something that must not be replaced, such as /dev/null."""
    try:
        with told(path, is_made=True):
            return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def check_regular(path: bytes, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        return
    raise error(
        ErrorCode.NOT_A_FILE,
        f"{os.fsdecode(path)!r:.200} on this machine is neither a file nor a directory, but {_noun(found.st_mode)}",
        remedy="Read it yourself: write_file() takes a file opened for reading, and `atoll cp -` standard input.",
        **named(path=path),
    )


def _noun(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


@contextmanager
def told(path: bytes, *, is_made: bool = False) -> Iterator[None]:
    """Errors of this side are told as such. Of what is made here, only its own name is the user's."""
    try:
        yield
    except AtollError:  # some of which are an OSError
        raise
    except OSError as cause:
        if isinstance(cause.filename, bytes) and not is_made:
            path = cause.filename
        if is_made and cause.errno == errno.ENOENT:
            path = first_missing(path)
        raise local_problem(path, cause) from cause


def local_problem(path: bytes, cause: OSError) -> AtollError:
    if cause.errno == errno.ENOTDIR:
        path = find_no_directory(path) or path
    return error(
        _CODES.get(cause.errno or 0, ErrorCode.FILESYSTEM_ERROR),
        f"{os.fsdecode(path)!r:.200} on this machine cannot be used: {cause.strerror or cause}",
        remedy="Check the path on this side, which is not the sandbox's.",
        **named(path=path),
    )
