"""Calls about sessions, and the variables that all of them have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.protocol.sessions import CreateSession, DeleteSession, ListSessions, Sessions, SetEnvironment

if TYPE_CHECKING:
    from atoll.agent.main import Agent
    from atoll.agent.operations import Calls


def register(calls: Calls, agent: Agent) -> None:
    sessions = agent.sessions
    calls.answers[CreateSession] = sessions.create
    calls.answers[DeleteSession] = lambda call: sessions.delete(call.session_id)
    calls.answers[ListSessions] = lambda call: Sessions(sessions=sessions.list())
    calls.answers[SetEnvironment] = sessions.set_environment
