"""Calls about files: all of them are for a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from atoll.protocol.files import AnyCall

if TYPE_CHECKING:
    from atoll.agent.main import Agent
    from atoll.agent.operations import Calls


def register(calls: Calls, agent: Agent) -> None:
    for kind in get_args(AnyCall):
        calls.operations[kind] = agent.workers.operation
