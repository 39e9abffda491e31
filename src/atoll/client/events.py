"""A sandbox's timeline as it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

import msgspec

from atoll.client.link import SandboxLink
from atoll.client.transport import Response
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.sandboxes import SandboxEvent

MAX_LINE = 2**20

_decoder = msgspec.json.Decoder(SandboxEvent)


class AsyncEventStream(AsyncIterator[SandboxEvent]):
    """What has happened, then what happens. Ends when it is closed, dropped, or the sandbox is destroyed."""

    def __init__(self, link: SandboxLink, since: int) -> None:
        self._link = link
        self._since = since
        self._response: Response | None = None
        self._line = b""
        self._events: deque[SandboxEvent] = deque()
        self._is_over = False

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> SandboxEvent:
        while not self._events:
            if self._is_over:
                raise StopAsyncIteration
            await self._advance()
        return self._events.popleft()

    async def __aenter__(self) -> AsyncEventStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._is_over = True
        self._events.clear()
        if self._response:
            self._response.close()

    async def _advance(self) -> None:
        try:
            if self._response is None:
                self._response = await self._link.stream(f"/events?since={self._since}", "text/event-stream")
            chunk = await self._response.next_chunk()
        except AtollError:
            if self._is_over:  # closed by another task or thread
                return
            await self.aclose()
            raise
        except BaseException:
            await self.aclose()
            raise
        if not chunk:
            self._is_over = True
        self._feed(chunk)

    def _feed(self, chunk: bytes) -> None:
        """Server-Sent Events, of which only `data:` lines matter here: each holds a whole event."""
        *lines, self._line = (self._line + chunk).split(b"\n")
        try:
            self._events.extend(_decoder.decode(line[5:]) for line in lines if line.startswith(b"data:"))
        except msgspec.MsgspecError as cause:
            message = f"an event of sandbox {self._link.id!r} makes no sense: {cause}"
            raise error(ErrorCode.INTERNAL_ERROR, message, remedy="Is the server of this version?") from cause
        if len(self._line) > MAX_LINE:
            raise error(ErrorCode.INTERNAL_ERROR, f"an event of sandbox {self._link.id!r} has no end")
