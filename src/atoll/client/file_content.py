"""File content as users give it, whatever it is, in pieces of bytes."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import IO, Any

from atoll.client.plumbing.remote_sandbox import Bytes, CallInput
from atoll.client.plumbing.waiting import iterate, next_piece, run_blocking
from atoll.protocol.arguments import wrong_argument
from atoll.protocol.content_types import Base64Decoder, check_encoding
from atoll.protocol.errors import AtollError
from atoll.protocol.files import FileInfo

CHUNK = 1024 * 1024

Content = str | Bytes | IO[bytes] | IO[str] | Iterable[bytes] | AsyncIterable[bytes]


def open_content(content: Content, encoding: str) -> ContentSource | bytes:
    """Bytes, if they are at hand; what is wrong with them is said at once. Else where they come from."""
    decoder = Base64Decoder() if check_encoding(encoding, ("utf-8", "base64")) == "base64" else None
    if isinstance(content, str | Bytes):
        return to_bytes(content, decoder, is_last=True)
    pieces = None if isinstance(content, dict) else iterate(content)
    if pieces is None and not hasattr(content, "read"):
        raise no_content(content)
    return ContentSource(content, pieces, decoder)


class ContentSource:
    """A file object, which is read where it keeps nobody waiting, or an iterator."""

    def __init__(self, file: Any, pieces: Any, decoder: Base64Decoder | None) -> None:
        self._file = file
        self._pieces = pieces
        self._decoder = decoder

    async def send_to(self, sink: CallInput[FileInfo]) -> None:
        while (piece := await self._next()) is not None:
            await sink.send(to_bytes(piece, self._decoder))
        if self._decoder:
            await sink.send(self._decoder.decode(b"", is_last=True))

    async def _next(self) -> object:
        if self._pieces is not None:
            return await next_piece(self._pieces)
        piece = await run_blocking(self._file.read, CHUNK)
        return piece if piece or not isinstance(piece, str | bytes) else None


def to_bytes(piece: object, decoder: Base64Decoder | None = None, *, is_last: bool = False) -> bytes:
    if not isinstance(piece, str | Bytes):
        raise no_content(piece)
    if decoder:
        return decoder.decode(piece if isinstance(piece, str) else bytes(piece), is_last=is_last)
    try:
        return piece.encode() if isinstance(piece, str) else bytes(piece)
    except UnicodeEncodeError as cause:
        raise no_content(piece) from cause


def no_content(content: object) -> AtollError:
    remedy = "Give text that can be UTF-8, bytes, a file opened for reading, or an iterable of bytes; or use upload()."
    return wrong_argument("content", content, "cannot be written to a file", remedy=remedy)
