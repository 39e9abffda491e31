# Generated from src/atoll/client/link.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""One sandbox at its server. Its options are sent before the first operation, and only if there are any."""

from __future__ import annotations

from typing import TypeVar

from atoll.client_sync.server import CallInput, Frames, Input, Server
from atoll.client_sync.transport import Opening, Response
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.messages import Call
from atoll.protocol.sandboxes import SandboxInfo, SandboxOptions

T = TypeVar("T")


class SandboxLink:
    """What a sandbox and its sessions share."""

    def __init__(self, server: Server, sandbox_id: str, options: SandboxOptions | None = None) -> None:
        self.server = server
        self.id = sandbox_id
        self._options = options
        self._has_sent_options = options is None
        self._has_ended = False
        self._path = f"/v1/sandboxes/{sandbox_id}"

    def call(self, call: Call, stdin: Input | None = None, *, opening: Opening | None = None) -> Frames:
        self._send_options(opening)
        return self.server.call(self.id, call, stdin, opening=opening)

    def begin_call(self, call: Call) -> CallInput:
        self._send_options()
        return self.server.begin_call(self.id, call)

    def ask(self, method: str, answer: type[T], *, path: str = "", body: object = None) -> T:
        self._send_options()
        return self.server.ask(method, self._path + path, answer, body)

    def tell(self, method: str, path: str) -> None:
        self._send_options()
        self.server.tell(method, self._path + path)

    def stream(self, path: str, accept: str, opening: Opening | None = None) -> Response:
        self._send_options(opening)
        return self.server.stream(self._path + path, accept, opening)

    def destroy(self) -> None:
        """Its next operation makes a new one, with the same options."""
        self.server.tell("DELETE", self._path)
        self._has_sent_options = self._options is None

    def end(self) -> None:
        """There is no next operation: one would make a sandbox that nobody destroys."""
        self._has_ended = True

    def _send_options(self, opening: Opening | None = None) -> None:
        if self._has_ended:
            raise error(
                ErrorCode.SANDBOX_NOT_FOUND,
                f"the temporary sandbox {self.id!r} was destroyed at the end of its block",
                remedy="Use it inside the block, or take get_sandbox() for one that stays.",
            )
        if not self._has_sent_options:
            self.server.ask("PUT", self._path, SandboxInfo, self._options, opening=opening)
            self._has_sent_options = True
