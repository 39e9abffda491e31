"""The relay's reading of a client that sends frames as fast, and as small, as it can."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.types import Message

from atoll.protocol.frames import FrameKind, encode_frame
from atoll.server.connections import Body, Departure
from atoll.server.routes.relay import Requests
from atoll.supervisor.agent_connection import AgentConnection
from tests.native import linked_at


async def test_frames_without_a_byte_leave_the_others_their_turns(tmp_path: Path) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": encode_frame(FrameKind.INPUT) * 50_000, "more_body": False}
    ]

    async def receive() -> Message:
        return messages.pop(0)

    async with linked_at(tmp_path / "agent.sock") as link:
        requests = Requests(receive, no_more, Departure())
        feeding = asyncio.create_task(requests.feed(AgentConnection(link)))
        turns = 0
        while not feeding.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns >= 100
    assert requests.is_over


def no_more() -> Body:
    raise AssertionError("all of the body has come")
