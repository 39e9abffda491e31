# Generated from src/atoll/client/events.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""A sandbox's timeline as it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from atoll.client_sync.link import SandboxLink
from atoll.client_sync.transport import Response
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.sandboxes import SandboxEvent

MAX_LINE = 2**20

_decoder = msgspec.json.Decoder(SandboxEvent)


class EventStream(Iterator[SandboxEvent]):
    """What has happened, then what happens. Ends when it is closed, dropped, or the sandbox is destroyed."""

    def __init__(self, link: SandboxLink, since: int) -> None:
        self._link = link
        self._since = since
        self._response: Response | None = None
        self._line = b""
        self._events: deque[SandboxEvent] = deque()
        self._is_over = False

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> SandboxEvent:
        while not self._events:
            if self._is_over:
                raise StopIteration
            self._advance()
        return self._events.popleft()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_over = True
        self._events.clear()
        if self._response:
            self._response.close()

    def _advance(self) -> None:
        try:
            if self._response is None:
                self._response = self._link.stream(f"/events?since={self._since}", "text/event-stream")
            chunk = self._response.next_chunk()
        except AtollError:
            if self._is_over:  # closed by another task or thread
                return
            self.close()
            raise
        except BaseException:
            self.close()
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
