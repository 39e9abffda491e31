"""Calls about terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.sessions.beside import OnceKnown
from atoll.agent.terminals.terminals import Closing, Creation, Ending, Writing
from atoll.agent.terminals.views import Viewer
from atoll.protocol.terminals import (
    AttachTerminal,
    CloseTerminal,
    CreateTerminal,
    ListTerminals,
    ResizeTerminal,
    WaitTerminal,
    WriteTerminal,
)

if TYPE_CHECKING:
    from atoll.agent.main import Agent
    from atoll.agent.operations import Calls


def register(calls: Calls, agent: Agent) -> None:
    terminals = agent.terminals
    calls.operations[CreateTerminal] = lambda call, owner: OnceKnown(
        agent.sessions, call.session_id, owner, lambda: Creation(terminals, call, owner)
    )
    calls.operations[AttachTerminal] = lambda call, owner: Viewer(terminals.get(call.terminal_id), owner)
    calls.operations[WriteTerminal] = lambda call, owner: Writing(terminals.get(call.terminal_id), call.data, owner)
    calls.operations[WaitTerminal] = lambda call, owner: Ending(terminals.get(call.terminal_id), owner)
    calls.operations[CloseTerminal] = lambda call, owner: Closing(terminals.get(call.terminal_id), owner)
    calls.answers[ResizeTerminal] = terminals.resize
    calls.answers[ListTerminals] = lambda call: terminals.list()
