"""Files of a sandbox. What is large streams; what is written appears as a whole."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from typing import Literal, SupportsIndex, overload

from atoll.client import transfers
from atoll.client.file_content import Content, ContentSource, open_content
from atoll.client.file_watch import AsyncFileWatch
from atoll.client.local_files import read_rules
from atoll.client.open_files import (
    MAX_HELD,
    AsyncFileReader,
    AsyncFileStream,
    AsyncFileWriter,
    check_held,
)
from atoll.client.plumbing.remote_sandbox import RemoteSandbox
from atoll.client.plumbing.waiting import run_blocking
from atoll.client.progress import OnProgress
from atoll.client.text_files import AsyncTextReader, AsyncTextWriter, parse_opening
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
    check_rules,
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
        encoding: Literal["utf-8", "utf8", "base64"] = "utf-8",
        mode: SupportsIndex | None = None,
        sync: bool = False,
    ) -> FileInfo:
        """Write a file, of any size; nobody ever sees half of it. Directories on the way are made.

        `content` is text, bytes, a file opened for reading, or any iterable of bytes, such as a stream of another file;
        with `encoding="base64"` it is decoded first. What was there keeps its mode and owner, unless `mode` is given.
        With `sync` it is on disk when this returns.
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
        offset: SupportsIndex = 0,
        length: SupportsIndex | None = None,
    ) -> FileContent[str]: ...

    @overload
    async def read_file(
        self, path: Path, *, encoding: Literal["bytes"], offset: SupportsIndex = 0, length: SupportsIndex | None = None
    ) -> FileContent[bytes]: ...

    async def read_file(
        self, path: Path, *, encoding: str | None = None, offset: SupportsIndex = 0, length: SupportsIndex | None = None
    ) -> FileContent[str] | FileContent[bytes]:
        """A file's content: text if it is text, else base64; or as `encoding` says: "utf-8", "base64", "bytes".

        Text that is asked for has U+FFFD where the bytes are not UTF-8. `offset` and `length` choose a part. Without
        `length` a file of more than 256 MiB is FILE_TOO_LARGE, and with it a part of more than 4 GiB:
        `read_file_stream` and `download` take any.
        """
        wanted = None if encoding is None else check_encoding(encoding, ("utf-8", "base64", "bytes"))
        start = check_count(offset, "offset")
        part = None if length is None else check_count(length, "length")
        stream = self.read_file_stream(path, offset=start, length=part)
        pieces, size = [], 0
        try:
            info = await stream.begin()
            most = MAX_READ if part is None else MAX_HELD
            left = info.size - start
            check_held("read_file", info, left if part is None else min(left, part), most)
            async for piece in stream:
                pieces.append(piece)
                size += len(piece)
                check_held("read_file", info, size, most)
        finally:
            await stream.aclose()
        return to_content(info.name, b"".join(pieces), wanted)

    def read_file_stream(
        self, path: Path, *, offset: SupportsIndex = 0, length: SupportsIndex | None = None
    ) -> AsyncFileStream:
        """A file's bytes, piece by piece, of any size.

            async for chunk in sandbox.read_file_stream("/var/log/big.log"):
                digest.update(chunk)

        Leaving the loop ends the reading. As a context manager it says what it is first: `info`, `mime_type` and
        `is_binary`.
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
    def open_file(self, path: Path, mode: Literal["wb", "xb", "ab"]) -> AsyncFileWriter: ...

    @overload
    def open_file(
        self,
        path: Path,
        mode: Literal["r", "rt"],
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: Literal["", "\n"] | None = None,
    ) -> AsyncTextReader: ...

    @overload
    def open_file(
        self,
        path: Path,
        mode: Literal["w", "wt", "x", "xt", "a", "at"],
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: Literal["", "\n"] | None = None,
    ) -> AsyncTextWriter: ...

    def open_file(
        self,
        path: Path,
        mode: str = "rb",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> AsyncFileReader | AsyncFileWriter | AsyncTextReader | AsyncTextWriter:
        """A file to be read ("rb"), written ("wb"), made ("xb", FILE_EXISTS if there is one) or added to ("ab").

            async with sandbox.open_file("report.csv", "wb") as file:
                await file.write(b"a,b\\n")

        Without the b it is text, in UTF-8 unless `encoding` says otherwise; line ends are read as "\\n" unless
        newline="". What is written is there when the block ends, and nothing of it if that ends with an exception.
        """
        raw = to_raw_path(path)
        try:
            opening = parse_opening(mode, encoding, errors, newline)
        except AtollError as problem:
            problem.about(**named(path=raw))
            raise
        if opening.way == "r":
            reader = AsyncFileReader(self._sandbox, raw, self._session_id)
            return AsyncTextReader(reader, *opening.text, newline) if opening.text else reader
        call = WriteFile(path=raw, session_id=self._session_id, exclusive=opening.way == "x", append=opening.way == "a")
        writer = AsyncFileWriter(self._sandbox, call)
        return AsyncTextWriter(writer, *opening.text) if opening.text else writer

    async def mkdir(self, path: Path, recursive: bool = False, *, mode: SupportsIndex = 0o755) -> FileInfo:
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
        """Copy a file or a directory within the sandbox. The copy appears as a whole.

        A file keeps its mode, and replaces one that is there. A directory comes with all that is in it, with owners,
        times and links, and replaces nothing but an empty one.
        """
        source, target = to_raw_path(source_path), to_raw_path(destination_path)
        return await self._sandbox.ask(CopyFile(source=source, target=target, session_id=self._session_id))

    async def list_files(
        self, path: Path = ".", recursive: bool = False, include_hidden: bool = False
    ) -> list[FileInfo]:
        """The entries of a directory, sorted by name, with `recursive` those of all below it. Links are not followed.

        Without a path it is the session's directory. Names that begin with a dot are left out, unless `include_hidden`.
        Each has `path`, and `relative_path` from the directory that is listed.
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

    async def readdir(self, path: Path = ".") -> list[str]:
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

    async def chmod(self, path: Path, mode: SupportsIndex) -> FileInfo:
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

    async def upload(
        self,
        local: Path,
        remote: Path,
        *,
        exclude: Patterns | None = None,
        exclude_from: Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> FileInfo:
        """Copy a file or directory of this machine into the sandbox; `remote` is what it is called there.

        A directory's content is added to what is at `remote`; a file goes into it, if `remote` ends with a slash.
        What `exclude` says, and the file `exclude_from` of this machine, stays here: rules as in .gitignore, such as
        "node_modules/", "*.pyc", "!keep.pyc". Sockets, FIFOs and devices in a directory are left out, with a
        LeftOutWarning that names them. `on_progress(bytes done, bytes in all or None)` is called now and then; without
        it there is a progress bar, if standard error is a terminal.
        """
        return await transfers.upload(await self._transfer(on_progress, exclude, exclude_from), local, remote)

    async def download(
        self,
        remote: Path,
        local: Path,
        *,
        max_bytes: SupportsIndex | str | None = transfer_bounds.MAX_BYTES,
        max_entries: SupportsIndex | None = transfer_bounds.MAX_ENTRIES,
        max_depth: SupportsIndex | None = transfer_bounds.MAX_DEPTH,
        exclude: Patterns | None = None,
        exclude_from: Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Copy a file or directory of the sandbox to this machine; `local` is what it is called here.

        A file appears as a whole, and goes into `local` if that is a directory. So does a directory that is new;
        its content is added to what is at `local`, and nothing in it can be written anywhere else: what tries to is
        UNSAFE_ARCHIVE. `exclude` and `exclude_from` are as for `upload`, and so is how that is told which is left out
        besides: also links that lead out of the directory.

        What has more bytes ("64GiB" is a number of them too), entries or levels than its bounds is DOWNLOAD_TOO_LARGE;
        None lifts a bound. Holes in files stay holes, and are no bytes.
        """
        bounds = parse_bounds(max_bytes, max_entries, max_depth)
        await transfers.download(await self._transfer(on_progress, exclude, exclude_from), remote, local, bounds)

    async def _transfer(
        self, on_progress: OnProgress | None, exclude: Patterns | None, exclude_from: Path | None
    ) -> transfers.Transfer:
        check_callback(on_progress, "on_progress")
        rules = _patterns("exclude", exclude)
        if exclude_from is not None:
            rules += await run_blocking(read_rules, to_raw_path(exclude_from))
        check_rules(rules)
        return transfers.Transfer(
            sandbox=self._sandbox, session_id=self._session_id, on_progress=on_progress, exclude=rules
        )


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
