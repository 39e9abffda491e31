# Generated from client/events.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""A sandbox's timeline as it goes on."""

from __future__ import annotations

import msgspec

from atoll.client_sync.plumbing.feeds import Feed
from atoll.client_sync.plumbing.remote_sandbox import RemoteSandbox
from atoll.client_sync.plumbing.transport import Response
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.sandboxes import SandboxEvent

MAX_LINE = 2**20

_decoder = msgspec.json.Decoder(SandboxEvent)


class EventStream(Feed[SandboxEvent]):
    """What has happened, then what happens. Ends when it is closed, dropped, or the sandbox is destroyed."""

    def __init__(self, sandbox: RemoteSandbox, since: int) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._since = since
        self._response: Response | None = None
        self._line = b""

    def _receive(self) -> None:
        if self._response is None:
            path = f"/events?since={self._since}"
            self._response = self._sandbox.stream(path, "text/event-stream", self._scope)
        chunk = self._response.next_chunk()
        if not chunk:
            self._is_over = True
        self._feed(chunk)

    def _feed(self, chunk: bytes) -> None:
        """Server-Sent Events, of which only `data:` lines matter here: each holds a whole event."""
        *lines, self._line = (self._line + chunk).split(b"\n")
        try:
            self._items.extend(_decoder.decode(line[5:]) for line in lines if line.startswith(b"data:"))
        except msgspec.MsgspecError as cause:
            message = f"an event of sandbox {self._sandbox.id!r} makes no sense: {cause}"
            raise error(ErrorCode.INTERNAL_ERROR, message, remedy="Is the server of this version?") from cause
        if len(self._line) > MAX_LINE:
            raise error(ErrorCode.INTERNAL_ERROR, f"an event of sandbox {self._sandbox.id!r} has no end")
