from __future__ import annotations

from atoll.agent.main import Agent
from atoll.protocol.kinds import KINDS


def test_an_agent_knows_what_to_do_with_every_call_that_can_be_decoded() -> None:
    agent = Agent()
    agent.loop.close()
    calls = agent.server.calls
    assert calls.answers.keys() | calls.operations.keys() == set(KINDS)
    assert not calls.answers.keys() & calls.operations.keys()
