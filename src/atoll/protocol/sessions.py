"""Sessions: what a host asks of an agent, what a client asks of a server, and what both say about them."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from atoll.protocol.arguments import wrong_argument
from atoll.protocol.calls import MAX_SHOWN, Call
from atoll.protocol.durations import Moment
from atoll.protocol.errors import Context
from atoll.protocol.ids import SaidId
from atoll.protocol.plain import Plain
from atoll.protocol.printable import printable
from atoll.protocol.said import Count, Directory, Text

MAX_NAME = 200
DEFAULT_SESSION = "default"
DEFAULT_DIRECTORY = "/workspace"


class SessionInfo(Plain, frozen=True, kw_only=True):
    id: SaidId
    cwd: Directory
    created_at: Moment
    commands_waiting: Count  # with the one that runs
    name: Text | None = None  # for people


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Annotated[list[SessionInfo], msgspec.Meta(max_length=64)]


class CreateSession(Call[SessionInfo], frozen=True, kw_only=True, tag="create_session"):
    """Another shell, with its own directory, variables, functions and options. `name` is for people."""

    fields_came_with = {"name": 2}

    session_id: str
    cwd: str = DEFAULT_DIRECTORY
    env: dict[str, str | None] = {}
    name: str | None = None

    @property
    def subject(self) -> Context:
        return {"session_id": self.session_id[:MAX_SHOWN]}


class DeleteSession(Call[SessionInfo], frozen=True, kw_only=True, tag="delete_session"):
    """End its shell and what runs in it. Background processes live on."""

    asks = True

    session_id: str

    @property
    def subject(self) -> Context:
        return {"session_id": self.session_id[:MAX_SHOWN]}


class ListSessions(Call[Sessions], frozen=True, kw_only=True, tag="list_sessions"):
    """The sessions there are."""

    changes: ClassVar[bool] = False

    asks = True


class SetEnvironment(Call[Sessions], frozen=True, kw_only=True, tag="set_environment"):
    """Variables from now on; None takes one away. Of the sandbox and its default session, or of another session.

    What another session was given itself, or has exported, it keeps when those of the sandbox are set.
    """

    fields_came_with = {"session_id": 2}

    env: dict[str, str | None]
    session_id: str | None = None


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new session, as a client asks a server for it; without an id it gets one.

    With `exist_ok` one of this id that exists is the answer, and stays as it is.
    """

    id: str | None = None
    cwd: str = DEFAULT_DIRECTORY
    env: dict[str, str | None] = {}
    name: str | None = None
    exist_ok: bool = False


def check_name(name: object) -> str | None:
    """A name for people, of a line at most."""
    if name is None or (isinstance(name, str) and 0 < len(name) <= MAX_NAME and printable(name) == name):
        return name
    remedy = f"Give 1 to {MAX_NAME} printable characters, or None."
    raise wrong_argument("name", name, "is no name for a session", remedy)
