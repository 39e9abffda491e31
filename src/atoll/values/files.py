"""Files, as the SDK hands them out: their content, and what was left out of a copy."""

from __future__ import annotations

from typing import Generic, TypeVar

from atoll.protocol.plain import Plain
from atoll.values.commands import beginning

Content = TypeVar("Content", str, bytes)


class FileContent(Plain, Generic[Content], frozen=True, kw_only=True):
    """A file that was read.

    `encoding` says what `content` is: "utf-8" text, "base64" text for what is no text, or "bytes". `is_binary` says
    that it is not UTF-8, or has a NUL in it. `size` is the length of what was read, in bytes.
    """

    content: Content
    encoding: str
    is_binary: bool
    mime_type: str
    size: int

    def __repr__(self) -> str:
        shown = beginning(self.content) if isinstance(self.content, str) else _beginning_of_bytes(self.content)
        return f"FileContent({shown}, {self.encoding}, {self.mime_type}, size={self.size})"


class LeftOutWarning(UserWarning):
    """Something of a directory was not copied: sockets, FIFOs and devices are not."""


def _beginning_of_bytes(data: bytes) -> str:
    return repr(data) if len(data) <= 30 else f"{data[:30]!r}…"
