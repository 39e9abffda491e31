"""An agent as a whole: whether it answers, and which protocol it speaks."""

from __future__ import annotations

import msgspec

from atoll.protocol.said import Count

PROTOCOL_VERSION = 1


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping", forbid_unknown_fields=True, omit_defaults=True):
    """Ask whether the agent answers, and which it is."""


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    protocol_version: Count
    commands_running: Count


decode_pong = msgspec.msgpack.Decoder(Pong).decode
