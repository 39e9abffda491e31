"""Files as text: characters and lines, read and written piece by piece."""

from __future__ import annotations

import codecs
import io
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

from atoll.client.open_files import AsyncFileReader, AsyncFileWriter
from atoll.client.plumbing.exclusive import Exclusive
from atoll.protocol.arguments import wrong_argument
from atoll.protocol.files import FileInfo

CHARACTERS = 64 * 1024  # that are read at once, or more
_MODES = {f"{way}{kind}": (way, kind != "b") for way in "rwxa" for kind in ("", "t", "b")}


class AsyncTextReader(Exclusive, AsyncIterator[str]):
    """A file opened with "r": text, of which lines end with "\\n" however they end in the file, unless newline="".

    What it is read from is `buffer`, an AsyncFileReader.
    """

    mode = "r"

    def __init__(self, buffer: AsyncFileReader, encoding: str, errors: str, newline: str | None) -> None:
        super().__init__()
        self.buffer = buffer
        self.encoding = encoding
        self.errors = errors
        self._translates = newline is None
        self._decoder = self._make_decoder()
        self._ahead = ""
        self._is_at_end = False

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def closed(self) -> bool:
        return self.buffer.closed

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    async def read(self, size: int | None = -1) -> str:
        """So many characters, fewer only at the end; without a size, all that is left."""
        async with self._lock.turn():
            if size is None or size < 0:
                data = b"" if self._is_at_end else await self.buffer.read()
                self._is_at_end = True
                rest: str = self._decoder.decode(data, True)
                return self._take(len(self._ahead)) + rest
            while len(self._ahead) < size and await self._fill():
                pass
            return self._take(size)

    async def readline(self, size: int | None = -1) -> str:
        """Up to and with the next newline, `size` characters at most; "" at the end."""
        async with self._lock.turn():
            limit = None if size is None or size < 0 else size
            looked_at = 0
            while (found := self._ahead.find("\n", looked_at)) < 0 and (limit is None or len(self._ahead) < limit):
                looked_at = len(self._ahead)
                self.buffer.check_held(looked_at)
                if not await self._fill():
                    break
            end = len(self._ahead) if found < 0 else found + 1
            return self._take(end if limit is None else min(end, limit))

    async def readlines(self) -> list[str]:
        lines = []
        while line := await self.readline():
            lines.append(line)
        return lines

    async def seek(self, offset: int) -> int:
        """Back to the beginning. Where else a character begins, nobody knows; `buffer.seek` takes bytes."""
        if offset != 0:
            raise wrong_argument("offset", offset, "is no place in a text", remedy="Give 0, or open the file as bytes.")
        async with self._lock.turn():
            await self.buffer.seek(0)
            self._decoder, self._ahead, self._is_at_end = self._make_decoder(), "", False
        return 0

    async def aclose(self) -> None:
        await self.buffer.aclose()

    close = aclose

    def __aiter__(self) -> AsyncTextReader:
        return self

    async def __anext__(self) -> str:
        if line := await self.readline():
            return line
        raise StopAsyncIteration

    async def __aenter__(self) -> AsyncTextReader:
        await self.buffer.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncTextReader of {self.name!r}, {self.encoding}>"

    def _make_decoder(self) -> Any:
        decoder = codecs.getincrementaldecoder(self.encoding)(self.errors)
        return io.IncrementalNewlineDecoder(decoder, translate=True) if self._translates else decoder

    async def _fill(self) -> bool:
        """More than there is at hand; False at the end."""
        if self._is_at_end:
            return False
        data = await self.buffer.read1(CHARACTERS)
        self._is_at_end = not data
        self._ahead += self._decoder.decode(data, self._is_at_end)
        return True

    def _take(self, count: int) -> str:
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken


class AsyncTextWriter(Exclusive):
    """A file opened with "w", "x" or "a": text, as it is given. What is written is there when it is closed.

    What it is written to is `buffer`, an AsyncFileWriter; `info` tells about the file afterwards.
    """

    def __init__(self, buffer: AsyncFileWriter, encoding: str, errors: str) -> None:
        super().__init__()
        self.buffer = buffer
        self.mode = buffer.mode.removesuffix("b")
        self.encoding = encoding
        self.errors = errors
        self._encoder = codecs.getincrementalencoder(encoding)(errors)

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def closed(self) -> bool:
        return self.buffer.closed

    @property
    def info(self) -> FileInfo | None:
        return self.buffer.info

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    async def write(self, text: str) -> int:
        """How many characters that were: all of them."""
        if not isinstance(text, str):
            raise wrong_argument("text", text, "is not text", remedy='Give text, or open the file as bytes, with "wb".')
        async with self._lock.turn():
            await self.buffer.write(self._encode(text))
        return len(text)

    async def writelines(self, lines: Iterable[str]) -> None:
        """Each as it is; a newline at its end is for you to give."""
        for line in lines:
            await self.write(line)

    async def flush(self) -> None:
        """Send what was gathered. Nobody sees it before `aclose`."""
        await self.buffer.flush()

    async def aclose(self) -> None:
        """Have the file appear. Twice is fine."""
        await self.buffer.aclose()

    close = aclose

    def abort(self) -> None:
        """Leave everything as it was."""
        self.buffer.abort()

    async def __aenter__(self) -> AsyncTextWriter:
        await self.buffer.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self.buffer.__aexit__(kind, *rest)

    def __repr__(self) -> str:
        return f"<AsyncTextWriter of {self.name!r}, {self.encoding}>"

    def _encode(self, text: str) -> bytes:
        try:
            return self._encoder.encode(text)
        except UnicodeEncodeError as cause:
            remedy = "Open it with another encoding=, or with errors=."
            raise wrong_argument("text", text, f"cannot be written as {self.encoding}", remedy=remedy) from cause


class Opening(NamedTuple):
    """How a file is opened: "r", "w", "x" or "a", and as text of an encoding, with what is done about errors."""

    way: str
    text: tuple[str, str] | None


def parse_opening(mode: object, encoding: object, errors: object, newline: object) -> Opening:
    found = _MODES.get(mode) if isinstance(mode, str) else None
    if found is None:
        remedy = 'Use "r", "w", "x" or "a" for text, or one of these with a b for bytes.'
        raise wrong_argument("mode", mode, "is no way to open a file", remedy=remedy)
    way, is_text = found
    if not is_text:
        for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
            if value is not None:
                raise wrong_argument(name, value, f"is for text, and mode={mode!r} is not", 'Leave out the "b".')
        return Opening(way, None)
    if newline not in (None, "", "\n"):
        remedy = 'Give "" or "\\n" to have line ends as they are, or None.'
        raise wrong_argument("newline", newline, "is no way to end lines", remedy)
    return Opening(way, (_checked_encoding(encoding), _checked_errors(errors)))


def _checked_encoding(encoding: object) -> str:
    if encoding is None:
        return "utf-8"
    try:
        "".encode(encoding)  # type: ignore[arg-type]  # which refuses what is a codec, and not one of text
        return codecs.lookup(encoding).name  # type: ignore[arg-type]
    except (LookupError, TypeError, ValueError):
        pass
    raise wrong_argument("encoding", encoding, "is no encoding of text", 'Give one that Python has, such as "utf-8".')


def _checked_errors(errors: object) -> str:
    if errors is None:
        return "strict"
    try:
        codecs.lookup_error(errors)  # type: ignore[arg-type]
    except (LookupError, TypeError, ValueError) as cause:
        remedy = 'Give "strict", "replace", "ignore" or another of Python\'s.'
        raise wrong_argument("errors", errors, "is no way to treat errors", remedy) from cause
    return str(errors)
