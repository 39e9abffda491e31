"""The door to a sandbox: opened to whoever has the token of an exposed port, and to nobody else.

Whoever has none learns nothing, not even whether there is such a sandbox, and wakes nobody.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from atoll.preview.exposing import admits
from atoll.protocol.errors import ErrorCode, error
from atoll.supervisor.actor import Caller

if TYPE_CHECKING:
    from atoll.preview.address import PreviewAddress
    from atoll.supervisor.actor import SandboxActor
    from atoll.supervisor.roster import Roster

VISITOR = Caller("preview", makes_none=True)
CONNECT_SECONDS = 10.0


class Door:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def find(self, address: PreviewAddress) -> SandboxActor | None:
        """The sandbox that an address leads to, if its token is right."""
        actor = self._roster.existing(address.sandbox)
        return actor if actor and admits(actor.record(), address) else None


class Hold:
    """A sandbox held awake for a connection, while something moves on it."""

    def __init__(self, actor: SandboxActor) -> None:
        self.actor = actor
        self.is_held = False
        self._use = AsyncExitStack()
        self._taking = asyncio.Lock()

    async def take(self) -> None:
        """Twice is fine. The sandbox is thawed or started, if need be."""
        if self.is_held:
            return
        async with self._taking:
            if not self.is_held:
                await self._use.enter_async_context(self.actor.use(VISITOR))
                self.is_held = True

    async def let_go(self) -> None:
        """Twice is fine."""
        if self.is_held:
            self.is_held = False
            await self._use.aclose()

    async def connect(self, port: int) -> socket.socket:
        """A connection to what listens on the port. PORT_NOT_OPEN if nothing does."""
        await self.take()
        live = self.actor.running.live
        if live is None:
            raise error(
                ErrorCode.SANDBOX_NOT_RUNNING,
                f"sandbox {self.actor.name!r} ended just now",
                remedy="Ask again, which starts it.",
                sandbox=self.actor.name,
            )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                peer = await self.actor.workshop.engine.open_port(live, port)
        except TimeoutError as cause:
            raise error(
                ErrorCode.PORT_NOT_OPEN,
                f"what listens on port {port} of sandbox {self.actor.name!r} takes no connection",
                remedy="It has more connections than it takes, or stands still: look at its log.",
                sandbox=self.actor.name,
                port=port,
            ) from cause
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer
