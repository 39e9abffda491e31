"""Calls that run a command: in a session, or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.protocol.commands import Exec, ExecShell

if TYPE_CHECKING:
    from atoll.agent.main import Agent
    from atoll.agent.operations import Calls


def register(calls: Calls, agent: Agent) -> None:
    calls.operations[Exec] = agent.sessions.program
    calls.operations[ExecShell] = agent.sessions.operation
