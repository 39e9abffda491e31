"""Sessions: what a host asks of an agent, what a client asks of a server, and what both say about them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from atoll.protocol.durations import Moment
from atoll.protocol.ids import SaidId
from atoll.protocol.said import Count, Directory

DEFAULT_SESSION = "default"
DEFAULT_DIRECTORY = "/workspace"


class CreateSession(
    msgspec.Struct, frozen=True, kw_only=True, tag="create_session", forbid_unknown_fields=True, omit_defaults=True
):
    """Another shell, with its own directory, variables, functions and options. Answered with SessionInfo."""

    session_id: str
    cwd: str = DEFAULT_DIRECTORY
    env: dict[str, str | None] = {}


class DeleteSession(msgspec.Struct, frozen=True, kw_only=True, tag="delete_session", forbid_unknown_fields=True):
    """End its shell and what runs in it. Background processes live on. Answered with SessionInfo."""

    session_id: str


class ListSessions(msgspec.Struct, frozen=True, kw_only=True, tag="list_sessions", forbid_unknown_fields=True):
    """Answered with Sessions."""


class SetEnvironment(msgspec.Struct, frozen=True, kw_only=True, tag="set_environment", forbid_unknown_fields=True):
    """Variables for every command and every session from now on; None takes one away. Answered with Sessions."""

    env: dict[str, str | None]


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: SaidId
    cwd: Directory
    created_at: Moment
    commands_waiting: Count  # with the one that runs


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Annotated[list[SessionInfo], msgspec.Meta(max_length=64)]


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new session, as a client asks a server for it; without an id it gets one."""

    id: str | None = None
    cwd: str = DEFAULT_DIRECTORY
    env: dict[str, str | None] = {}


decode_session = msgspec.msgpack.Decoder(SessionInfo).decode
decode_sessions = msgspec.msgpack.Decoder(Sessions).decode
