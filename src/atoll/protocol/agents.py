"""An agent as a whole: whether it answers, and which version of the protocol it speaks."""

from __future__ import annotations

import msgspec

from atoll.protocol.said import Count


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping", forbid_unknown_fields=True, omit_defaults=True):
    """Ask whether the agent answers, and which it is."""


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    protocol_version: Count
    commands_running: Count


decode_pong = msgspec.msgpack.Decoder(Pong).decode
