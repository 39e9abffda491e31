from __future__ import annotations

import typing

from atoll.agent.main import Agent
from atoll.protocol.messages import AnyCall


def test_an_agent_knows_what_to_do_with_every_call_that_can_be_decoded() -> None:
    agent = Agent()
    agent.loop.close()
    calls = agent.server.calls
    assert calls.answers.keys() | calls.operations.keys() == set(typing.get_args(AnyCall))
    assert not calls.answers.keys() & calls.operations.keys()
