"""Files of a sandbox. What is large streams; what is written appears as a whole."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from typing import Literal, overload

from atoll.client import transfers
from atoll.client.file_content import Content, ContentSource, open_content
from atoll.client.file_watch import AsyncFileWatch
from atoll.client.open_files import (
    MAX_HELD,
    AsyncFileReader,
    AsyncFileStream,
    AsyncFileWriter,
    check_held,
)
from atoll.client.plumbing.remote_sandbox import RemoteSandbox
from atoll.client.transfers import OnProgress
from atoll.protocol import transfer_bounds
from atoll.protocol.arguments import check_callback, check_count, check_flag, wrong_argument
from atoll.protocol.content_types import check_encoding, is_text, mime_type
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.file_answers import ListFold
from atoll.protocol.files import (
    ChangeMode,
    CopyFile,
    DeleteDirectory,
    DeleteFile,
    FileInfo,
    ListFiles,
    MakeDirectory,
    MoveFile,
    ReadFile,
    StatFile,
    WatchFiles,
    WriteFile,
    check_mode,
    to_raw_path,
)
from atoll.protocol.frames import MAX_PAYLOAD
from atoll.protocol.limits import parse_bounds
from atoll.protocol.names import named
from atoll.values.files import FileContent

MAX_READ = 256 * 2**20  # by read_file without a length: it keeps everything in memory
MAX_LISTED = 1_000_000
ABSENT = (ErrorCode.FILE_NOT_FOUND, ErrorCode.NOT_DIRECTORY, ErrorCode.TOO_MANY_LINKS)

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Patterns = str | Iterable[str]


class AsyncFiles:
    """The files of a sandbox, for it or a session. A relative path counts from the session's directory.

    Paths are text, bytes or path objects. Names that are not UTF-8 are text as the `os` module has it, with lone
    surrogates, and can be given back as they came.
    """

    _sandbox: RemoteSandbox
    _session_id: str

    async def write_file(
        self,
        path: Path,
        content: Content,
        *,
        encoding: str = "utf-8",
        mode: int | None = None,
        sync: bool = False,
    ) -> FileInfo:
        """Write a file, of any size; nobody ever sees half of it. Directories on the way are made.

        `content` is text, bytes, a file opened for reading, or any iterable of bytes; with `encoding="base64"` it is
        decoded first. What was there keeps its mode and owner, unless `mode` is given. With `sync` it is on disk when
        this returns.
        """
        raw = to_raw_path(path)
        try:
            call = WriteFile(
                path=raw,
                session_id=self._session_id,
                mode=None if mode is None else check_mode(mode),
                sync=check_flag(sync, "sync"),
            )
            return await self._write(call, open_content(content, encoding))
        except AtollError as problem:
            problem.about(**named(path=raw))
            raise

    async def _write(self, call: WriteFile, source: ContentSource | bytes) -> FileInfo:
        if isinstance(source, bytes) and len(source) <= MAX_PAYLOAD:
            return await self._sandbox.ask(call, source)
        sink = await self._sandbox.begin_call(call)
        try:
            if isinstance(source, bytes):
                await sink.send(source)
            else:
                await source.send_to(sink)
            return await sink.finish()
        finally:
            sink.close()

    @overload
    async def read_file(
        self,
        path: Path,
        *,
        encoding: Literal["utf-8", "utf8", "base64"] | None = None,
        offset: int = 0,
        length: int | None = None,
    ) -> FileContent[str]: ...

    @overload
    async def read_file(
        self, path: Path, *, encoding: Literal["bytes"], offset: int = 0, length: int | None = None
    ) -> FileContent[bytes]: ...

    async def read_file(
        self, path: Path, *, encoding: str | None = None, offset: int = 0, length: int | None = None
    ) -> FileContent[str] | FileContent[bytes]:
        """A file's content: text if it is text, else base64; or as `encoding` says: "utf-8", "base64", "bytes".

        Text that is asked for has U+FFFD where the bytes are not UTF-8. `offset` and `length` choose a part. Without
        `length` a file of more than 256 MiB is FILE_TOO_LARGE, and with it a part of more than 4 GiB:
        `read_file_stream` and `download` take any.
        """
        wanted = None if encoding is None else check_encoding(encoding, ("utf-8", "base64", "bytes"))
        async with self.read_file_stream(path, offset=offset, length=length) as stream:
            assert stream.info
            most = MAX_READ if length is None else MAX_HELD
            left = stream.info.size - offset
            check_held("read_file", stream.info, left if length is None else min(left, length), most)
            pieces, size = [], 0
            async for piece in stream:
                pieces.append(piece)
                size += len(piece)
                check_held("read_file", stream.info, size, most)
        return to_content(stream.info.name, b"".join(pieces), wanted)

    def read_file_stream(self, path: Path, *, offset: int = 0, length: int | None = None) -> AsyncFileStream:
        """A file's bytes, piece by piece, of any size.

            async for chunk in sandbox.read_file_stream("/var/log/big.log"):
                digest.update(chunk)

        Leaving the loop ends the reading.
        """
        call = ReadFile(
            path=to_raw_path(path),
            session_id=self._session_id,
            offset=check_count(offset, "offset"),
            length=None if length is None else check_count(length, "length"),
        )
        return AsyncFileStream(self._sandbox, call)

    @overload
    def open_file(self, path: Path, mode: Literal["rb"] = "rb") -> AsyncFileReader: ...

    @overload
    def open_file(self, path: Path, mode: Literal["wb", "xb"]) -> AsyncFileWriter: ...

    def open_file(self, path: Path, mode: str = "rb") -> AsyncFileReader | AsyncFileWriter:
        """A file to be read ("rb"), written ("wb") or made ("xb", FILE_EXISTS if there is one) piece by piece.

            async with sandbox.open_file("report.csv", "wb") as file:
                await file.write(b"a,b\\n")

        What is written is there when the block ends, and nothing of it if that ends with an exception.
        """
        raw = to_raw_path(path)
        if mode == "rb":
            return AsyncFileReader(self._sandbox, raw, self._session_id)
        if mode not in ("wb", "xb"):
            remedy = 'Use "rb", "wb" or "xb". For text, use read_file() and write_file(), or encode it.'
            problem = wrong_argument("mode", mode, "is no way to open a file", remedy=remedy)
            raise problem.about(**named(path=raw))
        return AsyncFileWriter(self._sandbox, WriteFile(path=raw, session_id=self._session_id, exclusive=mode == "xb"))

    async def mkdir(self, path: Path, recursive: bool = False, *, mode: int = 0o755) -> FileInfo:
        """Make a directory. With `recursive` also those on the way, and one that is there is fine."""
        call = MakeDirectory(
            path=to_raw_path(path),
            session_id=self._session_id,
            recursive=check_flag(recursive, "recursive"),
            mode=check_mode(mode),
        )
        return await self._sandbox.ask(call)

    async def delete_file(self, path: Path) -> None:
        """Delete anything but a directory; a link itself, not what it points to."""
        await self._sandbox.ask(DeleteFile(path=to_raw_path(path), session_id=self._session_id))

    async def delete_dir(self, path: Path, recursive: bool = True) -> None:
        """Delete a directory with all that is in it, or, if not `recursive`, an empty one. No link is followed."""
        deep = check_flag(recursive, "recursive")
        call = DeleteDirectory(path=to_raw_path(path), session_id=self._session_id, recursive=deep)
        await self._sandbox.ask(call)

    async def rm(self, path: Path, recursive: bool = False) -> None:
        """Delete a file, and with `recursive` also a directory with all that is in it."""
        check_flag(recursive, "recursive")
        try:
            await self.delete_file(path)
        except AtollError as problem:
            if problem.code is not ErrorCode.IS_DIRECTORY or not recursive:
                raise
            await self.delete_dir(path)

    async def rename_file(self, old_path: Path, new_path: Path) -> FileInfo:
        """Give a file or directory another name, at which a file may be replaced."""
        call = MoveFile(source=to_raw_path(old_path), target=to_raw_path(new_path), session_id=self._session_id)
        return await self._sandbox.ask(call)

    async def move_file(self, source_path: Path, destination_path: Path) -> FileInfo:
        """Moves as mv does: a destination that is a directory takes it in. Also from one file system to another."""
        source, target = to_raw_path(source_path), to_raw_path(destination_path)
        call = MoveFile(source=source, target=target, session_id=self._session_id, into_directory=True)
        return await self._sandbox.ask(call)

    async def copy_file(self, source_path: Path, destination_path: Path) -> FileInfo:
        """Copy a file within the sandbox. The copy appears as a whole, with the mode of the original."""
        source, target = to_raw_path(source_path), to_raw_path(destination_path)
        return await self._sandbox.ask(CopyFile(source=source, target=target, session_id=self._session_id))

    async def list_files(self, path: Path, recursive: bool = False, include_hidden: bool = False) -> list[FileInfo]:
        """The entries of a directory, sorted by name, with `recursive` those of all below it. Links are not followed.

        Names that begin with a dot are left out, unless `include_hidden`.
        """
        call = ListFiles(
            path=to_raw_path(path),
            session_id=self._session_id,
            recursive=check_flag(recursive, "recursive"),
            include_hidden=check_flag(include_hidden, "include_hidden"),
        )
        fold, frames = ListFold(call), await self._sandbox.call(call)
        found: list[FileInfo] = []
        try:
            while (some := fold.take(await frames.next())) is not None:
                found += some
                if len(found) > MAX_LISTED:
                    raise _too_many(call.path)
        finally:
            frames.close()
        return found

    async def readdir(self, path: Path) -> list[str]:
        """The names of what is in a directory, also of what is hidden."""
        return [file.name for file in await self.list_files(path, include_hidden=True)]

    async def exists(self, path: Path) -> bool:
        """Whether there is something. A link that leads nowhere is nothing."""
        try:
            await self.stat(path)
        except AtollError as problem:
            if problem.code not in ABSENT:
                raise
            return False
        return True

    async def stat(self, path: Path, *, follow_symlinks: bool = True) -> FileInfo:
        """The type, size, mode, owner and time of the last change of a file."""
        follow = check_flag(follow_symlinks, "follow_symlinks")
        call = StatFile(path=to_raw_path(path), session_id=self._session_id, follow=follow)
        return await self._sandbox.ask(call)

    async def chmod(self, path: Path, mode: int) -> FileInfo:
        """Change the permissions, such as 0o755."""
        call = ChangeMode(path=to_raw_path(path), session_id=self._session_id, mode=check_mode(mode))
        return await self._sandbox.ask(call)

    def watch(
        self,
        path: Path,
        recursive: bool = True,
        include: Patterns | None = None,
        exclude: Patterns | None = None,
    ) -> AsyncFileWatch:
        """The changes at a path, as they happen. Once the block is entered, none is missed.

            async with sandbox.watch("/workspace", include="*.py", exclude=".git") as changes:
                async for change in changes:
                    print(change.type.value, change.path)

        `include` and `exclude` are shell patterns, for names or for paths from the watched directory.
        """
        call = WatchFiles(
            path=to_raw_path(path),
            session_id=self._session_id,
            recursive=check_flag(recursive, "recursive"),
            include=_patterns("include", include),
            exclude=_patterns("exclude", exclude),
        )
        return AsyncFileWatch(self._sandbox, call)

    async def upload(self, local: Path, remote: Path, *, on_progress: OnProgress | None = None) -> FileInfo:
        """Copy a file or directory of this machine into the sandbox; `remote` is what it is called there.

        A directory's content is added to what is at `remote`; a file goes into it, if `remote` ends with a slash.
        Sockets, FIFOs and devices in a directory are left out, with a LeftOutWarning that names them.
        `on_progress(bytes done, bytes in all or None)` is called now and then.
        """
        check_callback(on_progress, "on_progress")
        return await transfers.upload(self._sandbox, self._session_id, local, remote, on_progress)

    async def download(
        self,
        remote: Path,
        local: Path,
        *,
        max_bytes: int | str | None = transfer_bounds.MAX_BYTES,
        max_entries: int | None = transfer_bounds.MAX_ENTRIES,
        max_depth: int | None = transfer_bounds.MAX_DEPTH,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Copy a file or directory of the sandbox to this machine; `local` is what it is called here.

        A file appears as a whole, and goes into `local` if that is a directory. So does a directory that is new;
        its content is added to what is at `local`, and nothing in it can be written anywhere else: what tries to is
        UNSAFE_ARCHIVE. What is left out is told as by `upload`.

        What has more bytes ("64GiB" is a number of them too), entries or levels than its bounds is DOWNLOAD_TOO_LARGE;
        None lifts a bound. Holes in files stay holes, and are no bytes.
        """
        check_callback(on_progress, "on_progress")
        bounds = parse_bounds(max_bytes, max_entries, max_depth)
        await transfers.download(self._sandbox, self._session_id, remote, local, bounds, on_progress)


def to_content(name: str, data: bytes, encoding: str | None) -> FileContent[str] | FileContent[bytes]:
    is_binary = not is_text(data)
    kind = mime_type(name, data)
    encoding = encoding or ("base64" if is_binary else "utf-8")
    if encoding == "bytes":
        return FileContent(content=data, encoding=encoding, is_binary=is_binary, mime_type=kind, size=len(data))
    text = base64.b64encode(data).decode() if encoding == "base64" else data.decode(errors="replace")
    return FileContent(content=text, encoding=encoding, is_binary=is_binary, mime_type=kind, size=len(data))


def _patterns(name: str, given: Patterns | None) -> list[bytes]:
    if given is None:
        return []
    words = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not all(isinstance(word, str) and word for word in words):
        raise wrong_argument(name, given, "is no pattern", 'Give text such as "*.py", or several of it.')
    return [to_raw_path(word) for word in words]


def _too_many(path: bytes) -> AtollError:
    message = f"there are more than {MAX_LISTED} files below {os.fsdecode(path)!r:.200}"
    remedy = "List its directories one by one."
    return error(ErrorCode.TOO_MANY_FILES, message, remedy=remedy, limit=MAX_LISTED, **named(path=path))
