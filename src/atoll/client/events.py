"""The events of a sandbox as they happen: its timeline, and its connections."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from atoll.client.plumbing.feeds import AsyncFeed
from atoll.client.plumbing.remote_sandbox import RemoteSandbox
from atoll.client.plumbing.server import Server
from atoll.client.plumbing.transport import Response
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.network import Connection
from atoll.protocol.sandboxes import NewsEvent, SandboxEvent

MAX_LINE = 2**20

T = TypeVar("T")


class AsyncSentEvents(AsyncFeed[T], Generic[T]):
    """Server-Sent Events at a path of a sandbox's or a server's, of one type."""

    def __init__(self, source: RemoteSandbox | Server, path: str, kind: type[T]) -> None:
        super().__init__()
        self._source = source
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._response: Response | None = None
        self._line = b""

    async def _receive(self) -> None:
        if self._response is None:
            self._response = await self._source.stream(self._path, "text/event-stream", self._scope)
        chunk = await self._response.next_chunk()
        if not chunk:
            self._is_over = True
        self._feed(chunk)

    def _feed(self, chunk: bytes) -> None:
        """Server-Sent Events, of which only `data:` lines matter here: each holds a whole event."""
        *lines, self._line = (self._line + chunk).split(b"\n")
        try:
            self._items.extend(self._decoder.decode(line[5:]) for line in lines if line.startswith(b"data:"))
        except msgspec.MsgspecError as cause:
            message = f"an event{self._whose} makes no sense: {cause}"
            raise error(ErrorCode.INTERNAL_ERROR, message, remedy="Is the server of this version?") from cause
        if len(self._line) > MAX_LINE:
            raise error(ErrorCode.INTERNAL_ERROR, f"an event{self._whose} has no end")

    @property
    def _whose(self) -> str:
        return f" of sandbox {self._source.id!r}" if isinstance(self._source, RemoteSandbox) else ""


class AsyncEventStream(AsyncSentEvents[SandboxEvent]):
    """A sandbox's timeline, so far and from then on. Ends when it is closed, dropped, or the sandbox is destroyed."""

    def __init__(self, sandbox: RemoteSandbox, since: int) -> None:
        super().__init__(sandbox, f"/events?since={since}", SandboxEvent)


class AsyncNewsStream(AsyncSentEvents[NewsEvent]):
    """The events of all sandboxes of a server: some, then each that comes. Ends when it is closed or dropped."""

    def __init__(self, server: Server, limit: int) -> None:
        super().__init__(server, f"/v1/events?limit={limit}", NewsEvent)


class AsyncConnectionStream(AsyncSentEvents[Connection]):
    """The connections that are known, then each that begins, changes or ends. Ends when it is closed or dropped."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        super().__init__(sandbox, "/connections", Connection)
