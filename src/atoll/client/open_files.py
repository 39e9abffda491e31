"""Files that are read or written piece by piece."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable

from atoll.client.plumbing.exclusive import Exclusive
from atoll.client.plumbing.remote_sandbox import Bytes, CallInput, Frames, RemoteSandbox
from atoll.client.plumbing.transport import CancelScope
from atoll.client.plumbing.waiting import CANCELLATIONS
from atoll.protocol.arguments import check_offset, wrong_argument
from atoll.protocol.content_types import SNIFFED_BYTES, is_text, mime_type
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.file_answers import ReadFold
from atoll.protocol.files import FileDone, FileInfo, ReadFile, StatFile, WriteFile
from atoll.protocol.names import named

UNSENT_BYTES = 256 * 1024  # small writes are gathered up to here
MAX_HELD = 4 * 2**30  # by whoever asks for that much at once: it is kept in memory
SKIPPED_BYTES = 1024 * 1024  # what lies so little ahead is read and dropped rather than asked for anew


class AsyncFileStream(Exclusive, AsyncIterator[bytes]):
    """The bytes of a file as they come. `info` tells about it, once it is entered or its first bytes are here.

    `mime_type` and `is_binary` go by its name and its first bytes, which are here then as well.

    Whoever is cancelled while waiting for bytes may ask for them again, and misses none.
    """

    def __init__(self, sandbox: RemoteSandbox, call: ReadFile) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._call = call
        self._fold = ReadFold(call)
        self._first: bytes | None = None  # the first piece, until it is asked for
        self._beginning = b""
        self._is_at_end = False
        self._scope = CancelScope()
        self._frames: Frames[FileDone] | None = None
        self._is_over = False

    @property
    def info(self) -> FileInfo | None:
        return self._fold.info

    @property
    def mime_type(self) -> str:
        """As of `read_file`: "image/png", "text/x-python". Before there are bytes, by the name alone."""
        beginning = b"" if self._call.offset else self._beginning
        name = os.fsdecode(self._call.path).rstrip("/")
        return mime_type(name, beginning, is_whole=self._is_at_end and not self._call.offset)

    @property
    def is_binary(self) -> bool:
        """Whether what is read begins with something that is not UTF-8, or with a NUL."""
        return not is_text(self._beginning, is_whole=self._is_at_end)

    async def begin(self) -> FileInfo:
        """The file that is read: its size, type and the rest. Fails if it cannot be read."""
        return await self._open(self._begin)

    async def _open(self, step: Callable[[], Awaitable[FileInfo]]) -> FileInfo:
        async with self._lock.turn():
            self._check_uninterrupted()
            if self._is_over and self.info is None:
                raise self._closed()
            try:
                return await step()
            except AtollError as failure:
                if self._is_over:  # closed by another task or thread
                    raise self._closed() from failure
                await self.aclose()
                raise
            except CANCELLATIONS:
                raise
            except BaseException:
                self._was_interrupted = True
                await self.aclose()
                raise

    async def _begin(self) -> FileInfo:
        if self._frames is None:
            self._frames = await self._sandbox.call(self._call, scope=self._scope)
        while self._fold.info is None:
            self._fold.take(await self._frames.next())
        return self._fold.info

    async def _look(self) -> FileInfo:
        """The same, and the first bytes."""
        info = await self._begin()
        if self._first is None and not self._is_at_end:
            self._first = await self._receive()
        return info

    async def _receive(self) -> bytes | None:
        assert self._frames
        data = self._fold.take(await self._frames.next())
        if data is None:
            self._is_at_end = True
        elif not self._beginning:
            self._beginning = data[:SNIFFED_BYTES]
        return data

    def _closed(self) -> AtollError:
        return error(
            ErrorCode.INVALID_REQUEST,
            f"the reading of {os.fsdecode(self._call.path)!r:.200} was ended before it began",
            remedy="Ask for another stream with read_file_stream().",
            **named(path=self._call.path),
        )

    def __aiter__(self) -> AsyncFileStream:
        return self

    async def __anext__(self) -> bytes:
        async with self._lock.turn():
            return await self._next_chunk()

    async def _next_chunk(self) -> bytes:
        self._check_uninterrupted()
        if self._is_over:
            raise StopAsyncIteration
        try:
            await self._begin()
            data, self._first = self._first, None
            if data is None and not self._is_at_end:
                data = await self._receive()
        except AtollError:
            if self._is_over:  # closed by another task or thread
                raise StopAsyncIteration from None
            await self.aclose()
            raise
        except CANCELLATIONS:
            raise
        except BaseException:
            self._was_interrupted = True
            await self.aclose()
            raise
        if data is None:
            await self.aclose()
            raise StopAsyncIteration
        return data

    async def __aenter__(self) -> AsyncFileStream:
        await self._open(self._look)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._is_over = True
        self._scope.cancel()

    close = aclose

    def __repr__(self) -> str:
        return f"<AsyncFileStream of {os.fsdecode(self._call.path)!r}>"


class AsyncFileReader(Exclusive, AsyncIterator[bytes]):
    """A file opened with "rb": what Python's own offers, as far as it makes sense from afar.

    It is opened by `async with` or its first use. What is read is the file that was there then, also if another takes
    its place, until `seek` goes back or a read fails: the next begins where that one did.
    """

    mode = "rb"

    def __init__(self, sandbox: RemoteSandbox, path: bytes, session_id: str | None) -> None:
        super().__init__()
        self.closed = False
        self._sandbox = sandbox
        self._path = path
        self._session_id = session_id
        self._stream: AsyncFileStream | None = None
        self._ahead = bytearray()
        self._position = 0

    @property
    def name(self) -> str:
        return os.fsdecode(self._path)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        raise unsupported(self._path, "has no descriptor: it is in a sandbox", "Read it, or download() it first.")

    async def write(self, data: Bytes) -> int:
        raise unsupported(self._path, "is open for reading", 'Open it with "wb" or "ab".')

    async def truncate(self, size: int | None = None) -> int:
        raise unsupported(self._path, "is open for reading", 'Open it with "wb".')

    async def read(self, size: int | None = -1) -> bytes:
        """So many bytes, fewer only at the end; without a size, all that is left. More than 4 GiB is FILE_TOO_LARGE."""
        async with self._lock.turn():
            return await self._read(size)

    async def _read(self, size: int | None) -> bytes:
        self._check_open()
        wanted = None if size is None or size < 0 else size
        if wanted is None or wanted > MAX_HELD:
            left = (await self._about()).size - self._position
            self.check_held(left if wanted is None else min(left, wanted))
        while (wanted is None or len(self._ahead) < wanted) and await self._fill():
            self.check_held(len(self._ahead))
        return self._take(len(self._ahead) if wanted is None else wanted)

    async def read1(self, size: int = -1) -> bytes:
        """The bytes at hand, or those that come next."""
        async with self._lock.turn():
            self._check_open()
            if not self._ahead:
                await self._fill()
            return self._take(len(self._ahead) if size < 0 else size)

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        view = memoryview(buffer).cast("B")
        data = await self.read(len(view))
        view[: len(data)] = data
        return len(data)

    async def readline(self, size: int | None = -1) -> bytes:
        """Up to and with the next newline, `size` bytes at most; b"" at the end."""
        async with self._lock.turn():
            return await self._readline(size)

    async def _readline(self, size: int | None) -> bytes:
        self._check_open()
        limit = None if size is None or size < 0 else size
        looked_at = 0
        while (found := self._ahead.find(b"\n", looked_at)) < 0 and (limit is None or len(self._ahead) < limit):
            looked_at = len(self._ahead)
            self.check_held(looked_at)
            if not await self._fill():
                break
        end = len(self._ahead) if found < 0 else found + 1
        return self._take(end if limit is None else min(end, limit))

    async def readlines(self) -> list[bytes]:
        lines, size = [], 0
        async with self._lock.turn():
            while line := await self._readline(None):
                lines.append(line)
                size += len(line)
                self.check_held(size)
        return lines

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go on elsewhere. As in any file, a place after its end is fine, and there is nothing to read there."""
        async with self._lock.turn():
            return await self._seek(offset, whence)

    async def _seek(self, offset: int, whence: int) -> int:
        self._check_open()
        check_offset(offset)
        if whence == os.SEEK_END:
            offset += await self._size()
        elif whence == os.SEEK_CUR:
            offset += self._position
        elif whence != os.SEEK_SET:
            remedy = "Use os.SEEK_SET, os.SEEK_CUR or os.SEEK_END."
            raise wrong_argument("whence", whence, "is no place to count from", remedy=remedy).about(
                **named(path=self._path)
            )
        if offset < 0:
            message = f"{offset} is before the beginning of {self.name!r:.200}"
            remedy = "Give a place in the file, 0 or more."
            raise error(ErrorCode.INVALID_REQUEST, message, remedy=remedy, offset=offset, **named(path=self._path))
        check_offset(offset)
        ahead = offset - self._position
        if 0 <= ahead <= SKIPPED_BYTES and self._stream:
            await self._read(ahead)
        if offset != self._position:
            await self._drop_stream()
            self._position = offset
        return offset

    def tell(self) -> int:
        self._check_open()
        return self._position

    def flush(self) -> None:
        pass

    async def aclose(self) -> None:
        self.closed = True
        await self._drop_stream()

    close = aclose

    def __aiter__(self) -> AsyncFileReader:
        return self

    async def __anext__(self) -> bytes:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def __aenter__(self) -> AsyncFileReader:
        async with self._lock.turn():
            await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncFileReader of {self.name!r}>"

    async def _open(self) -> AsyncFileStream:
        stream = self._stream
        if stream is None:
            call = ReadFile(path=self._path, session_id=self._session_id, offset=self._position)
            stream = self._stream = AsyncFileStream(self._sandbox, call)
        self._check_open()  # after the stream is there for whoever closes it, who looks at the two the other way round
        try:
            await stream.begin()
        except AtollError:
            self._stream = None
            self._check_open()  # or it was closed by another task or thread
            raise
        except BaseException:
            await self._drop_stream()
            raise
        return stream

    async def _about(self) -> FileInfo:
        stream = await self._open()
        assert stream.info
        return stream.info

    def check_held(self, size: int) -> None:
        """Whether this many bytes are what may be kept in memory."""
        if size > MAX_HELD and self._stream and self._stream.info:
            check_held("read", self._stream.info, size, MAX_HELD)

    async def _fill(self) -> bool:
        """More bytes than there are at hand; False at the end."""
        stream = await self._open()
        try:
            async for chunk in stream:
                self._ahead += chunk
                return True
        except BaseException:  # the next read opens it again where this one began, and does not take this for the end
            await self._drop_stream()
            raise
        self._check_open()  # or another task or thread closed it, and this is not the end of the file
        return False

    def _take(self, size: int) -> bytes:
        data = bytes(memoryview(self._ahead)[:size])
        del self._ahead[:size]
        self._position += len(data)
        return data

    async def _size(self) -> int:
        return (await self._sandbox.ask(StatFile(path=self._path, session_id=self._session_id))).size

    async def _drop_stream(self) -> None:
        self._ahead = bytearray()  # another one: a thread may be reading from this
        stream, self._stream = self._stream, None
        if stream:
            await stream.aclose()

    def _check_open(self) -> None:
        if self.closed:
            raise closed(self._path)


class AsyncFileWriter(Exclusive):
    """A file opened with "wb", "xb" or "ab". What is written is there, all at once, when it is closed.

    Leaving its `async with` block with an exception, or dropping it, leaves what was there before. Afterwards `info`
    tells about the file.
    """

    def __init__(self, sandbox: RemoteSandbox, call: WriteFile) -> None:
        super().__init__()
        self.closed = False
        self.info: FileInfo | None = None
        self.mode = "xb" if call.exclusive else "ab" if call.append else "wb"
        self._sandbox = sandbox
        self._call = call
        self._input: CallInput[FileInfo] | None = None
        self._unsent = bytearray()
        self._position = 0

    @property
    def name(self) -> str:
        return os.fsdecode(self._call.path)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        raise unsupported(self._call.path, "has no descriptor: it is in a sandbox", "Write to it, or upload() a file.")

    async def read(self, size: int | None = -1) -> bytes:
        raise unsupported(self._call.path, "is open for writing", 'Open it with "rb".')

    async def read1(self, size: int = -1) -> bytes:
        raise unsupported(self._call.path, "is open for writing", 'Open it with "rb".')

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        raise unsupported(self._call.path, "is written from its beginning to its end", "Write it once more.")

    async def truncate(self, size: int | None = None) -> int:
        raise unsupported(self._call.path, "is written from its beginning to its end", "Write it once more.")

    async def write(self, data: Bytes) -> int:
        async with self._lock.turn():
            return await self._write(data)

    async def _write(self, data: Bytes) -> int:
        if self.closed:
            raise closed(self._call.path)
        if not isinstance(data, bytes | bytearray | memoryview):
            remedy = "Encode text first, or use write_file()."
            raise wrong_argument("data", data, "is not bytes", remedy=remedy).about(**named(path=self._call.path))
        view = memoryview(data).cast("B")
        if len(view) >= UNSENT_BYTES:
            await self._flush()
            await self._send(view)
        else:
            self._unsent += view
        if len(self._unsent) >= UNSENT_BYTES:
            await self._flush()
        self._position += len(view)
        return len(view)

    async def flush(self) -> None:
        """Send what was gathered. Nobody sees it before `aclose`."""
        async with self._lock.turn():
            await self._flush()

    async def _flush(self) -> None:
        if self._unsent:
            unsent, self._unsent = self._unsent, bytearray()
            await self._send(unsent)

    def tell(self) -> int:
        return self._position

    async def aclose(self) -> None:
        """Have the file appear. Twice is fine."""
        async with self._lock.turn():
            if self.closed:
                return
            try:
                await self._flush()
                self.info = await (await self._begin()).finish()
            finally:
                self.abort()

    close = aclose

    def abort(self) -> None:
        """Leave everything as it was. Waits for nobody: what is being written is an error."""
        self.closed = True
        self._unsent = bytearray()
        if self._input:
            self._input.close()

    async def __aenter__(self) -> AsyncFileWriter:
        async with self._lock.turn():
            await self._begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.aclose()
        else:
            self.abort()

    def __repr__(self) -> str:
        return f"<AsyncFileWriter of {self.name!r}>"

    async def _begin(self) -> CallInput[FileInfo]:
        if self._input is None:
            self._input = await self._sandbox.begin_call(self._call)
            if self.closed:  # by another task or thread
                self._input.close()
                raise closed(self._call.path)
        return self._input

    async def _send(self, data: Bytes) -> None:
        try:
            await (await self._begin()).send(data)
        except BaseException as problem:
            was_aborted = self.closed  # by another task or thread, and this is how that looks from here
            self.abort()
            if was_aborted and isinstance(problem, AtollError):
                raise closed(self._call.path) from problem
            raise


def check_held(what: str, info: FileInfo, size: int, most: int) -> None:
    """Whether this many bytes of a file are what `what` may keep in memory."""
    if size <= most:
        return
    size = max(info.size, size)  # what is in /proc has none of its own, and another may be growing
    raise error(
        ErrorCode.FILE_TOO_LARGE,
        f"{info.path!r:.200} has {size:,} bytes; {what}, which keeps them in memory, reads up to {most:,}",
        remedy="Use read_file_stream(), open_file() or download(), or read a part of it with offset= and length=.",
        size=size,
        limit=most,
        **named(path=info.raw_path),
    )


def closed(path: bytes) -> AtollError:
    message = f"{os.fsdecode(path)!r:.200} is closed"
    return error(ErrorCode.INVALID_REQUEST, message, remedy="Open it again with open_file().", **named(path=path))


def unsupported(path: bytes, what: str, remedy: str) -> AtollError:
    """The error for what a file of Python's can do, and this one cannot."""
    message = f"{os.fsdecode(path)!r:.200} {what}"
    return error(ErrorCode.UNSUPPORTED_OPERATION, message, remedy=remedy, **named(path=path))
