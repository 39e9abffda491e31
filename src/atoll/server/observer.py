"""The observer of requests: counts and times them, and writes of them to the access log and the audit log.

It stands in front of the gate, so that what is refused is seen as well. Who asked and for what it learns on the way,
from a `Sight` in the request's scope. Neither log has a query, a body, a command, a variable or a key in it.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atoll.telemetry import counted
from atoll.telemetry.log import ACCESS, AUDIT
from atoll.telemetry.log_lines import about

SIGHT = "atoll.sight"
MAX_PATH = 200
STRANGER = "stranger"

access_log, audit_log = logging.getLogger(ACCESS), logging.getLogger(AUDIT)


class Sight:
    """A request as it is seen on its way."""

    __slots__ = ("by", "changes", "code", "operation", "sandbox", "status")

    def __init__(self) -> None:
        self.by = STRANGER
        self.operation = ""
        self.sandbox = ""
        self.changes = False
        self.status = 0
        self.code = ""  # of the error that it was answered with


def sight_of(scope: Scope) -> Sight:
    """Also for a request that nobody observes."""
    found: Sight = scope.get(SIGHT) or Sight()
    return found


class Observer:
    """Lets every request pass to `app`, and sees it come back."""

    def __init__(self, app: ASGIApp, *, has_access_log: bool = False, has_audit_log: bool = False) -> None:
        self._app = app
        self._has_access_log, self._has_audit_log = has_access_log, has_audit_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        sight = scope[SIGHT] = Sight()
        began = time.monotonic()

        async def seeing(message: Message) -> None:
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    sight.status = message["status"]
                case "websocket.accept":
                    sight.status = 101
            await send(message)

        try:
            await self._app(scope, receive, seeing)
        finally:
            self._note(scope, sight, time.monotonic() - began)

    def _note(self, scope: Scope, sight: Sight, seconds: float) -> None:
        counted.requests.add(f"{sight.status // 100}xx")
        if sight.code:
            counted.errors.add(sight.code)
        if sight.operation in counted.COMMANDS:
            counted.commands.note(sight.operation, seconds)
        if self._has_access_log:
            method, path = scope.get("method", "WebSocket"), scope["path"][:MAX_PATH]
            told = (method, path, sight.status, f"{seconds * 1e3:.1f}", sight.by)
            access_log.info("%s %s: %d in %s ms, by %s", *told, extra=self._fields(scope, sight, seconds))
        # Also what was refused: somebody tried. What only looks, and is let, is no concern of an audit.
        if self._has_audit_log and (sight.changes or sight.status in (401, 403)):
            outcome = sight.code or ("done" if 0 < sight.status < 400 else "broken off")
            words = (sight.by, sight.operation or "something", sight.sandbox or "the server", outcome)
            audit_log.info("%s: %s of %s: %s", *words, extra=self._fields(scope, sight, seconds))

    def _fields(self, scope: Scope, sight: Sight, seconds: float) -> Any:
        client = scope.get("client")
        return about(
            by=sight.by,
            address=client[0] if client else "",
            method=scope.get("method", "WebSocket"),
            path=scope["path"][:MAX_PATH],
            operation=sight.operation,
            sandbox=sight.sandbox,
            status=sight.status,
            code=sight.code,
            milliseconds=round(seconds * 1e3),
        )
