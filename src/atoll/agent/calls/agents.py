"""Calls about the agent itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.protocol.agents import Ping, Pong
from atoll.protocol.versions import PROTOCOL_VERSION

if TYPE_CHECKING:
    from atoll.agent.main import Agent
    from atoll.agent.operations import Calls


def register(calls: Calls, agent: Agent) -> None:
    def answer(call: Ping) -> Pong:
        return Pong(protocol_version=PROTOCOL_VERSION, commands_running=len(agent.runner.running))

    calls.answers[Ping] = answer
