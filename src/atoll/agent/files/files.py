"""A worker's file operations: plain functions that block, none of which runs in PID 1.

Rules:
1. What is opened is looked at first: a FIFO, a socket or a terminal would make us wait, or somebody else go on.
2. A name that is written to is resolved once. What follows happens by descriptors of directories.
3. What is written appears as a whole, by a link or a rename, or not at all.
4. What is done to a tree holds one descriptor and the names of the directories on its way, not the tree.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from atoll.agent.files.appending import append
from atoll.agent.files.errors import file_error, is_a_directory, is_not_a_directory, not_a_file, parent_missing
from atoll.agent.files.trees import copy_tree, delete_anything, delete_tree, is_below
from atoll.agent.files.watch import watch_files
from atoll.agent.files.writing import (
    NewFile,
    Place,
    copy_content,
    copy_to_the_end,
    make_directories,
    temporary_name,
    write_all,
    write_by_map,
)
from atoll.archives.descent import OPEN_DIRECTORY, Descent, go_on, identity, names_in
from atoll.archives.holes import map_of, read_by
from atoll.archives.packing import Packer
from atoll.archives.unpacking import IN_SANDBOX, Unpacker
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.files import (
    ChangeMode,
    CopyFile,
    DeleteDirectory,
    DeleteFile,
    FileDone,
    FileInfo,
    FileList,
    FileType,
    ListFiles,
    MakeDirectory,
    MoveFile,
    PackFiles,
    ReadFile,
    StatFile,
    UnpackFiles,
    WatchFiles,
    WriteFile,
    check_mode,
    check_path,
    check_rules,
)
from atoll.protocol.frames import MAX_PAYLOAD, FrameKind
from atoll.protocol.messages import encode_message
from atoll.protocol.names import named
from atoll.protocol.transfer_bounds import Bounds, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.agent.files.host_port import HostPort
    from atoll.protocol.files import AnyCall

READ_AT_ONCE, READ_AT_LEAST = 256 * 1024, 16 * 1024
LISTED_AT_ONCE = 500
LISTED_BYTES_AT_ONCE = 128 * 1024

_FARTHEST = 2**63 - 1 - READ_AT_ONCE  # from where a read does not end beyond what the kernel can count
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DOT, _SLASH = b"./"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_TYPES = {
    stat.S_IFREG: FileType.FILE,
    stat.S_IFDIR: FileType.DIRECTORY,
    stat.S_IFLNK: FileType.SYMLINK,
    stat.S_IFIFO: FileType.FIFO,
    stat.S_IFSOCK: FileType.SOCKET,
    stat.S_IFCHR: FileType.DEVICE,
    stat.S_IFBLK: FileType.DEVICE,
}


def perform(call: AnyCall, directory: bytes, port: HostPort) -> FileInfo | FileDone:
    """Do what `call` says. Relative paths count from `directory`."""
    path = b""
    try:
        if isinstance(call, MoveFile | CopyFile):
            path = absolute(call.source, directory)
            return _PAIRS[type(call)](call, path, absolute(call.target, directory))
        path = absolute(call.path, directory)
        return _OPERATIONS[type(call)](call, path, port)
    except OSError as cause:
        raise file_error(cause, path) from cause


def absolute(path: bytes, directory: bytes) -> bytes:
    """Without what means nothing. A slash at the end means something: that it is a directory."""
    check_path(path)
    if not path.startswith(b"/"):
        path = b"%b/%b" % (_name_of(directory), path)
    steps = [step for step in path.split(b"/") if step not in (b"", b".")]
    ends_in_directory = path.endswith((b"/", b"/.")) and steps
    return b"/%b/" % b"/".join(steps) if ends_in_directory else b"/" + b"/".join(steps)


def _name_of(directory: bytes) -> bytes:
    """A session's directory may be given by way of its shell, and has a name only if it still exists."""
    if not directory.startswith(b"/proc/"):
        return directory
    try:
        os.chdir(directory)
        return os.getcwdb()
    except OSError as cause:
        raise _directory_gone(directory) from cause
    finally:
        os.chdir(b"/")


def _directory_gone(directory: bytes) -> AtollError:
    remedy = "Give an absolute path, or change the session's directory."
    try:
        path = os.readlink(directory).removesuffix(b" (deleted)")
    except OSError as cause:  # so is its shell
        message = "the session's directory is gone"
        return error(ErrorCode.FILE_NOT_FOUND, message, remedy=remedy, reason=cause.strerror)
    message = f"the session's directory {os.fsdecode(path)!r} is gone"
    return error(ErrorCode.FILE_NOT_FOUND, message, remedy=remedy, **named(path=path))


def read_file(call: ReadFile, path: bytes, port: HostPort) -> FileDone:
    if call.offset < 0 or (call.length is not None and call.length < 0):
        message = f"offset={call.offset}, length={call.length} is no part of a file"
        remedy = "Give numbers from 0 on."
        raise error(ErrorCode.INVALID_REQUEST, message, remedy=remedy, offset=call.offset, length=call.length)
    fd = open_for_reading(path)
    try:
        status = os.fstat(fd)
        file_map = map_of(fd) if call.holes else None
        _check_bound(call, path, file_map.count if file_map else status.st_size)
        port.send(FrameKind.EVENT, encode_message(describe(path, status)))
        if file_map:
            port.send(FrameKind.EVENT, encode_message(file_map))
            for data in read_by(file_map, fd):
                port.send_data(data)
            return FileDone(count=file_map.count)
        if call.offset and not _go_to(fd, call.offset):
            return FileDone(count=0)
        buffer_size = min(READ_AT_ONCE, max(READ_AT_LEAST, status.st_size))
        return FileDone(count=_send_content(fd, call.length, buffer_size, port))
    finally:
        os.close(fd)


def _check_bound(call: ReadFile, path: bytes, size: int) -> None:
    count = max(0, size - call.offset)
    if call.length is not None:
        count = min(count, call.length)
    Tally(Bounds(max_bytes=call.max_bytes), path).add_bytes(count)


def _go_to(fd: int, offset: int) -> bool:
    """False if that is further than the kernel or the file system counts, and so beyond the end."""
    if offset > _FARTHEST:
        return False
    try:
        os.lseek(fd, offset, os.SEEK_SET)
    except OSError as cause:
        if cause.errno != errno.EINVAL:
            raise
        return False
    return True


def _send_content(fd: int, length: int | None, buffer_size: int, port: HostPort) -> int:
    """Up to `length` bytes, as many as there are by then."""
    sent = 0
    buffer = memoryview(bytearray(buffer_size if length is None else min(buffer_size, length)))
    while buffer:
        count = os.readv(fd, [buffer])
        if not count:
            break
        port.send_data(buffer[:count])
        sent += count
        if length is not None:
            buffer = buffer[: length - sent]
    return sent


def open_for_reading(path: bytes) -> int:
    """A regular file. What else there is would make us wait, or its writer go on."""
    _check_readable(path, os.stat(path))
    fd = os.open(path, _READING)
    try:
        _check_readable(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_readable(path: bytes, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise is_a_directory(path, "List it, or read a file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise not_a_file(path, _type_of(status.st_mode).noun)


def write_file(call: WriteFile, path: bytes, port: HostPort) -> FileInfo:
    mode = None if call.mode is None else check_mode(call.mode)
    with Place(path, follow=not call.exclusive, make_parents=True) as place:
        if call.exclusive and place.found:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        with NewFile(place, mode) as file:
            if call.map:
                write_by_map(file, call.map, port.receive())
            else:
                for data in port.receive():
                    write_all(file.fd, data)
            if call.append and not file.is_in_place:
                return describe(path, append(file, place, sync=call.sync))
            file.appear(exclusive=call.exclusive, sync=call.sync)
            port.close_after_answer(file.take_replaced())
            return describe(path, os.fstat(file.fd))


def list_files(call: ListFiles, path: bytes, port: HostPort) -> FileDone:
    count = 0
    with Descent(os.open(path, OPEN_DIRECTORY & ~os.O_NOFOLLOW)) as descent:
        unfinished: list[list[bytes]] = []
        try:
            while True:
                names = names_in(descent.fd)
                if not call.include_hidden:
                    names = [name for name in names if name[0] != _DOT]
                os.fchdir(descent.fd)  # a name in the current directory is what the kernel finds soonest
                prefix = b"/".join((path.rstrip(b"/"), *descent.names, b""))
                directories: list[bytes] = []
                for page in _pages(prefix, names):
                    _send_page(page, port)
                    count += len(page)
                    if call.recursive:
                        directories += [info.raw_path[len(prefix) :] for info in page if info.is_directory]
                unfinished.append(directories[::-1])
                if not go_on(descent, unfinished):
                    return FileDone(count=count)
        finally:
            os.chdir(b"/")


def _pages(prefix: bytes, names: list[bytes]) -> Iterator[list[FileInfo]]:
    """The current directory's entries, in portions that fit into a frame. `prefix` is what it is called."""
    longest = max(map(len, names), default=0)
    step = max(1, min(LISTED_AT_ONCE, LISTED_BYTES_AT_ONCE // (len(prefix) + longest + 1)))
    for start in range(0, len(names), step):
        found = [_entry(prefix + name, name) for name in names[start : start + step]]
        if page := [info for info in found if info]:
            yield page


def _send_page(page: list[FileInfo], port: HostPort) -> None:
    message = encode_message(FileList(files=page))
    if len(message) <= MAX_PAYLOAD:
        port.send(FrameKind.EVENT, message)
    elif len(page) > 1:  # many long targets of links
        _send_page(page[: len(page) // 2], port)
        _send_page(page[len(page) // 2 :], port)
    else:  # one path of a megabyte
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _entry(path: bytes, name: bytes) -> FileInfo | None:
    """Of something in the current directory."""
    try:
        status = os.lstat(name)
        target = os.readlink(name) if stat.S_ISLNK(status.st_mode) else None
    except OSError as cause:
        if cause.errno in (errno.ENOENT, errno.EINVAL):  # it is gone, or no link any more
            return None
        raise
    return describe(path, status, target)


def stat_file(call: StatFile, path: bytes, port: HostPort) -> FileInfo:
    return look(path, follow=call.follow)


def make_directory(call: MakeDirectory, path: bytes, port: HostPort) -> FileInfo:
    mode = check_mode(call.mode)
    if call.recursive:
        make_directories(path, above=-1, mode=mode)
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    else:
        try:
            os.mkdir(path, mode)
        except FileNotFoundError as cause:
            raise parent_missing(path, "Make it first, or give recursive=True.") from cause
    return look(path)


def delete_file(call: DeleteFile, path: bytes, port: HostPort) -> FileDone:
    try:
        os.unlink(path)
    except IsADirectoryError as cause:
        raise is_a_directory(path, "Use delete_dir(), or rm() with recursive=True.") from cause
    return FileDone(count=1)


def delete_directory(call: DeleteDirectory, path: bytes, port: HostPort) -> FileDone:
    if call.path.rstrip(b"/").rpartition(b"/")[2] in (b".", b".."):
        message = f"{os.fsdecode(call.path)!r} would delete the directory it counts from"
        raise error(
            ErrorCode.INVALID_PATH, message, remedy="Name the directory.", **named(path=path.rstrip(b"/") or b"/")
        )
    status = os.lstat(path.rstrip(b"/") or b"/")
    if not stat.S_ISDIR(status.st_mode):
        raise is_not_a_directory(path, "Delete it as a file.")
    if identity(status) == identity(os.stat(b"/")):
        message = "the root cannot be deleted"
        raise error(ErrorCode.RESOURCE_BUSY, message, remedy="Destroy the sandbox instead.", **named(path=path))
    if not call.recursive:
        os.rmdir(path)
        return FileDone(count=1)
    with Place(path.rstrip(b"/"), follow=False) as place:
        return FileDone(count=delete_tree(place.directory, place.name, place.path))


def move_file(call: MoveFile, source: bytes, target: bytes) -> FileInfo:
    if call.into_directory and os.path.isdir(target):
        target = b"%b/%b" % (target.rstrip(b"/"), source.rstrip(b"/").rpartition(b"/")[2])
    try:
        os.rename(source, target)
    except OSError as cause:
        if cause.errno != errno.EXDEV:
            raise _pair_error(cause, source, target) from cause
        _move_by_copy(source.rstrip(b"/"), target.rstrip(b"/"))
    return look(target, follow=False)


def _move_by_copy(source: bytes, target: bytes) -> None:
    """To another file system, or a directory of the image, which the kernel renames no more than that."""
    with Place(source, follow=False) as old, _place_for(target, follow=False) as new:
        _copy_whole(old, new)
        delete_anything(old.directory, old.name, source)


def _copy_whole(old: Place, new: Place) -> None:
    """A file or a directory with all that is in it, which appears at once or not at all."""
    if old.found and is_below(new.directory, old.found):
        raise _inside_itself(old.path, new.path)
    name = temporary_name()
    try:
        copy_tree(old, new, name)
        os.rename(name, new.name, src_dir_fd=new.directory, dst_dir_fd=new.directory)
    except BaseException as cause:
        with suppress(OSError, AtollError):
            delete_anything(new.directory, name, new.path)
        if isinstance(cause, OSError):
            raise _pair_error(cause, old.path, new.path) from cause
        raise


def _pair_error(cause: OSError, source: bytes, target: bytes) -> AtollError:
    """The kernel does not say which of the two it means."""
    if cause.errno == errno.EINVAL:
        return _inside_itself(source, target)
    if _is_refused(source, cause.errno):
        return file_error(OSError(cause.errno, cause.strerror), source)
    if cause.errno == errno.ENOENT:
        return parent_missing(target)
    return file_error(OSError(cause.errno, cause.strerror), target)


def _is_refused(source: bytes, number: int | None) -> bool:
    """Whether what was refused is refused of the source alone."""
    try:
        os.lstat(source)
    except OSError as cause:
        return cause.errno == number
    return number == errno.EBUSY and os.path.ismount(source)


def _place_for(target: bytes, *, follow: bool = True) -> Place:
    """Of something new, in a directory that exists."""
    try:
        return Place(target, follow=follow)
    except FileNotFoundError as cause:
        raise parent_missing(target) from cause


def _inside_itself(source: bytes, target: bytes) -> AtollError:
    message = f"{os.fsdecode(source)!r} cannot be brought into itself, to {os.fsdecode(target)!r}"
    return error(ErrorCode.INVALID_PATH, message, remedy="Choose a target outside of it.", **named(path=target))


def copy_file(call: CopyFile, source: bytes, target: bytes) -> FileInfo:
    try:
        fd = open_for_reading(source)
    except IsADirectoryError:
        return _copy_directory(source.rstrip(b"/"), target.rstrip(b"/"))
    try:
        return _copy_to(target, fd)
    except OSError as cause:
        raise file_error(cause, target) from cause
    finally:
        os.close(fd)


def _copy_directory(source: bytes, target: bytes) -> FileInfo:
    with Place(source) as old, _place_for(target, follow=False) as new:
        _copy_whole(old, new)
    return look(target, follow=False)


def _copy_to(target: bytes, source: int) -> FileInfo:
    status = os.fstat(source)
    with _place_for(target) as place, NewFile(place, stat.S_IMODE(status.st_mode)) as file:
        if status.st_size and not file.is_in_place:
            copy_content(source, file.fd, status.st_size)
        else:
            copy_to_the_end(source, file.fd)
        file.appear()
        return describe(target, os.fstat(file.fd))


def change_mode(call: ChangeMode, path: bytes, port: HostPort) -> FileInfo:
    os.chmod(path, check_mode(call.mode))
    return look(path)


def pack_files(call: PackFiles, path: bytes, port: HostPort) -> FileDone:
    status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode):
        _check_readable(path, status)
    packer = Packer(path.rstrip(b"/") or b"/", call.bounds, check_rules(call.exclude))
    for piece in packer.pieces():
        port.send_data(piece)
    return FileDone(count=packer.count, left_out=packer.left_out, left_out_names=packer.left_out_names)


def unpack_files(call: UnpackFiles, path: bytes, port: HostPort) -> FileDone:
    make_directories(path, above=-1)
    directory = os.open(path, OPEN_DIRECTORY & ~os.O_NOFOLLOW)
    try:
        with Unpacker(directory, IN_SANDBOX) as unpacker:
            try:
                for piece in port.receive():
                    unpacker.feed(piece)
                unpacker.close()
            except OSError as cause:
                place = b"%b/%b" % (path.rstrip(b"/"), unpacker.current)
                raise file_error(OSError(cause.errno, cause.strerror), place) from cause
            return FileDone(count=unpacker.count)
    finally:
        os.close(directory)


def look(path: bytes, *, follow: bool = True) -> FileInfo:
    status = os.stat(path, follow_symlinks=follow)
    return describe(path, status, os.readlink(path) if stat.S_ISLNK(status.st_mode) else None)


def describe(path: bytes, status: os.stat_result, target: bytes | None = None) -> FileInfo:
    mode = status.st_mode
    return FileInfo(
        raw_path=(path.rstrip(b"/") or b"/") if path[-1] == _SLASH else path,
        type=_type_of(mode),
        size=status.st_size,
        mode=stat.S_IMODE(mode),
        modified_at=_to_datetime(status.st_mtime_ns),
        uid=status.st_uid,
        gid=status.st_gid,
        raw_target=target,
    )


def _type_of(mode: int) -> FileType:
    """The type of a file. One that has none, such as an epoll instance seen in /proc, is something of the kernel's."""
    return _TYPES.get(stat.S_IFMT(mode), FileType.DEVICE)


def _to_datetime(nanoseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(0, nanoseconds // 10**9, nanoseconds % 10**9 // 1000)
    except OverflowError:  # a file's time may be one that no calendar has
        return _LATEST if nanoseconds > 0 else _EARLIEST


_PAIRS: dict[type, Callable[[Any, bytes, bytes], FileInfo]] = {MoveFile: move_file, CopyFile: copy_file}
_OPERATIONS: dict[type, Callable[[Any, bytes, HostPort], FileInfo | FileDone]] = {
    ReadFile: read_file,
    WriteFile: write_file,
    ListFiles: list_files,
    StatFile: stat_file,
    MakeDirectory: make_directory,
    DeleteFile: delete_file,
    DeleteDirectory: delete_directory,
    ChangeMode: change_mode,
    PackFiles: pack_files,
    UnpackFiles: unpack_files,
    WatchFiles: watch_files,
}
