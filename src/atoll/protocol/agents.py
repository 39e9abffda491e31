"""An agent as a whole: whether it answers, and which version of the protocol it speaks."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from atoll.protocol.calls import Call
from atoll.protocol.said import Count


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    protocol_version: Count
    commands_running: Count


class Ping(Call[Pong], frozen=True, kw_only=True, tag="ping"):
    """Ask whether the agent answers, and which it is."""

    changes: ClassVar[bool] = False
