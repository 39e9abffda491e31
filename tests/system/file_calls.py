"""Files of a sandbox as tests use them: one method for each call, straight to the agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from atoll.protocol import files
from atoll.protocol.calls import Call, event, result
from atoll.protocol.files import FileDone, FileInfo, FileList
from atoll.protocol.frames import Frame, FrameKind
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.agent_link import AgentLink


class FileCalls:
    def __init__(self, link: AgentLink) -> None:
        self.link = link

    async def ask(self, call: Call[Any], content: bytes | Iterable[bytes] | None = None) -> list[Frame]:
        """All frames of an operation."""
        async with self.link.operation(call) as connection:
            if content is None:
                return [frame async for frame in connection.frames()]
            chunks = [content] if isinstance(content, bytes) else content
            async with feeding(connection, chunks):
                return [frame async for frame in connection.frames()]

    async def info(self, call: Call[FileInfo], content: bytes | Iterable[bytes] | None = None) -> FileInfo:
        (frame,) = await self.ask(call, content)
        return result(call, frame)

    async def done(self, call: Call[FileDone], content: bytes | Iterable[bytes] | None = None) -> FileDone:
        return result(call, (await self.ask(call, content))[-1])

    async def read(self, path: bytes, **options: Any) -> bytes:
        call = files.ReadFile(path=path, **options)
        _, *data, done = await self.ask(call)
        content = b"".join(frame.payload for frame in data)
        assert all(frame.kind is FrameKind.DATA for frame in data)
        assert result(call, done).count == len(content)
        return content

    async def write(self, path: bytes, content: bytes | Iterable[bytes], **options: Any) -> FileInfo:
        return await self.info(files.WriteFile(path=path, **options), content)

    async def entries(self, path: bytes, **options: Any) -> list[FileInfo]:
        call = files.ListFiles(path=path, **options)
        *pages, done = await self.ask(call)
        found = [info for page in pages for info in event(FileList, page).files]
        assert result(call, done).count == len(found)
        return found

    async def names(self, path: bytes, **options: Any) -> list[bytes]:
        prefix = path.rstrip(b"/") + b"/"
        return [info.raw_path.removeprefix(prefix) for info in await self.entries(path, **options)]

    async def stat(self, path: bytes, **options: Any) -> FileInfo:
        return await self.info(files.StatFile(path=path, **options))

    async def weigh(self, path: bytes) -> tuple[int, bytes]:
        """How many bytes a file has, and those that are not zero. No more is kept than a frame."""
        size, rest = 0, b""
        async with self.link.operation(files.ReadFile(path=path)) as connection:
            async for frame in connection.frames():
                if frame.kind is FrameKind.DATA:
                    size += len(frame.payload)
                    rest += frame.payload.strip(b"\0")
        return size, rest


@asynccontextmanager
async def feeding(connection: AgentConnection, chunks: Iterable[bytes]) -> AsyncIterator[None]:
    async def feed() -> None:
        for chunk in chunks:
            for start in range(0, len(chunk), 2**19):
                await connection.send_frame(Frame(FrameKind.INPUT, chunk[start : start + 2**19]))
        await connection.send_frame(Frame(FrameKind.INPUT, b""))

    feeder = asyncio.create_task(feed())
    try:
        yield
    finally:
        feeder.cancel()
