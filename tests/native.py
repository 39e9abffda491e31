"""Sandboxes of the native engine as tests look at them: what their handles say, and their agents without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from atoll.engine.native.agent_socket import AgentSocket
from atoll.engine.native.handles import NativeHandle
from atoll.protocol.commands import Exec
from atoll.supervisor.agent_link import AgentLink


class Handled(Protocol):
    """A sandbox that lives, or its record."""

    @property
    def handle(self) -> str: ...


def native(sandbox: Handled) -> NativeHandle:
    handle = NativeHandle.decode(sandbox.handle)
    assert handle, sandbox
    return handle


def agent_socket(sandbox: Handled) -> Path:
    return Path(native(sandbox).agent_socket)


def linked(sandbox: Handled) -> AgentLink:
    return linked_at(agent_socket(sandbox))


def linked_at(path: Path) -> AgentLink:
    return AgentLink(AgentSocket(path).connect, tells_unread=True)


async def run(live: Handled, *argv: str) -> bytes:
    async with linked(live) as link:
        return (await link.run(Exec(argv=list(argv)))).stdout
