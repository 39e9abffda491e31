"""One sandbox at its server, and the options it is made with, if there are any.

They are sent before the first operation. Whoever destroys the sandbox later need not be us: so every request says that
it is for a sandbox that exists, and one that is refused for that did nothing. The options are sent again then, and so
is the request, unless its input can be read only once: then they are sent before it in any case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from atoll.client.plumbing.server import CallInput, Frames, Input, Server
from atoll.client.plumbing.transport import CancelScope, Response
from atoll.protocol.calls import Answer, Call
from atoll.protocol.errors import ErrorCode, NotFoundError, error
from atoll.protocol.sandboxes import MUST_EXIST, SandboxInfo, SandboxOptions

T = TypeVar("T")


class RemoteSandbox:
    """What a sandbox and its sessions share."""

    def __init__(self, server: Server, sandbox_id: str, options: SandboxOptions | None = None) -> None:
        self.server = server
        self.id = sandbox_id
        self._options = options
        self._has_sent_options = options is None
        self._headers = "" if options is None else f"{MUST_EXIST[0]}: {MUST_EXIST[1]}\r\n"
        self._has_ended = False
        self._path = f"/v1/sandboxes/{sandbox_id}"

    @property
    def place(self) -> tuple[str, str]:
        """Where it is: at which server, under which id. The key it is asked for with does not count."""
        return self.server.place, self.id

    async def ask(self, call: Call[Answer], content: bytes | None = None) -> Answer:
        """What a call is answered with that streams nothing. `content` fits one frame."""
        return await (await self.call(call, content)).result()

    async def call(
        self, call: Call[Answer], stdin: Input | None = None, *, scope: CancelScope | None = None
    ) -> Frames[Answer]:
        def work() -> Awaitable[Frames[Answer]]:
            return self.server.call(self.id, call, stdin, headers=self._headers, scope=scope)

        if stdin is None or isinstance(stdin, bytes):
            return await self._do(work, scope)
        await self._send_options(scope)
        return await work()

    async def begin_call(self, call: Call[Answer]) -> CallInput[Answer]:
        await self._send_options()
        return await self.server.begin_call(self.id, call, headers=self._headers)

    async def request(self, method: str, answer: type[T], *, path: str = "", body: object = None) -> T:
        return await self._do(lambda: self.server.ask(method, self._path + path, answer, body, headers=self._headers))

    async def tell(self, method: str, path: str) -> None:
        await self._do(lambda: self.server.tell(method, self._path + path, headers=self._headers))

    async def stream(self, path: str, accept: str, scope: CancelScope | None = None) -> Response:
        return await self._do(lambda: self.server.stream(self._path + path, accept, scope), scope)

    async def destroy(self) -> None:
        """Its next operation makes a new one, with the same options."""
        await self.server.tell("DELETE", self._path)
        self._has_sent_options = self._options is None

    def end(self) -> None:
        """There is no next operation: one would make a sandbox that nobody destroys."""
        self._has_ended = True

    async def _do(self, work: Callable[[], Awaitable[T]], scope: CancelScope | None = None) -> T:
        """What `work` returns, for a sandbox with the options there are."""
        if not self._has_sent_options or self._has_ended:
            await self._send_options(scope)
        try:
            return await work()
        except NotFoundError as problem:
            if self._options is None or problem.code is not ErrorCode.SANDBOX_NOT_FOUND:
                raise
        await self._send_options(scope)
        return await work()

    async def _send_options(self, scope: CancelScope | None = None) -> None:
        if self._has_ended:
            raise error(
                ErrorCode.SANDBOX_NOT_FOUND,
                f"the temporary sandbox {self.id!r} was destroyed at the end of its block",
                remedy="Use it inside the block, or take get_sandbox() for one that stays.",
            )
        if self._options is not None:
            await self.server.ask("PUT", self._path, SandboxInfo, self._options, scope=scope)
            self._has_sent_options = True
