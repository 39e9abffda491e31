# Generated from client/sessions.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Sessions: further shells of a sandbox, each with its own directory, variables, functions and options.

What is rare and belongs on the timeline, their making and their end, the server is asked for; the rest are calls to the
agent that it passes on unopened.
"""

from __future__ import annotations

import secrets

from atoll.client_sync.commands import Commands, Environment
from atoll.client_sync.files import Files
from atoll.client_sync.handles import Handle
from atoll.client_sync.plumbing.remote_sandbox import RemoteSandbox
from atoll.client_sync.processes import Processes
from atoll.client_sync.terminals import Terminals
from atoll.protocol.arguments import Directory, check_directory, check_flag, check_lasting_variables
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.ids import parse_session_id
from atoll.protocol.sessions import (
    DEFAULT_DIRECTORY,
    DEFAULT_SESSION,
    ListSessions,
    SessionInfo,
    SessionRequest,
    SetEnvironment,
    check_name,
)


class InSession(Commands, Files, Processes, Terminals):
    """Everything that is done in a session: that of a sandbox itself is its default one."""


class Session(Handle, InSession):
    """A shell of a sandbox. Its commands run one at a time, in order; sessions run in parallel."""

    @property
    def id(self) -> str:
        return self._session_id

    @property
    def sandbox_id(self) -> str:
        return self._sandbox.id

    def set_env_vars(self, env: Environment) -> None:
        """Variables of this session from now on, before the sandbox's. None as a value takes one away."""
        check_environment(env)
        self._sandbox.ask(SetEnvironment(env=check_lasting_variables(env), session_id=self._session_id))

    def delete(self) -> None:
        """End the shell and what runs in it. Background processes live on."""
        delete_session(self._sandbox, self._session_id)

    def __repr__(self) -> str:
        return f"<Session {self._session_id!r} of sandbox {self._sandbox.id!r}>"


def create_session(
    sandbox: RemoteSandbox,
    id: str | None,
    env: Environment | None,
    cwd: Directory | None,
    name: str | None = None,
    exist_ok: bool = False,
) -> Session:
    session_id = f"session-{secrets.token_hex(4)}" if id is None else parse_session_id(id)
    directory = check_directory(cwd) or DEFAULT_DIRECTORY
    asked = SessionRequest(
        id=session_id,
        cwd=directory,
        env=check_lasting_variables(env),
        name=check_name(name),
        exist_ok=check_flag(exist_ok, "exist_ok"),
    )
    sandbox.request("POST", SessionInfo, path="/sessions", body=asked)
    return Session(sandbox, session_id)


def get_session(sandbox: RemoteSandbox, id: str) -> Session:
    session_id = parse_session_id(id)
    if session_id != DEFAULT_SESSION and all(session.id != id for session in list_sessions(sandbox)):
        raise error(
            ErrorCode.SESSION_NOT_FOUND,
            f"sandbox {sandbox.id!r} has no session {id!r:.100}",
            remedy="create_session() makes one, list_sessions() shows those there are.",
            session_id=session_id,
        )
    return Session(sandbox, id)


def list_sessions(sandbox: RemoteSandbox) -> list[SessionInfo]:
    return (sandbox.ask(ListSessions())).sessions


def delete_session(sandbox: RemoteSandbox, id: str) -> None:
    sandbox.remove(f"/sessions/{parse_session_id(id)}")
