"""The sessions of a sandbox, by id. They run side by side, and the default one exists when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.commands.spawn import Environment, check_words
from atoll.agent.sessions.beside import ProgramOperation
from atoll.agent.sessions.session import (
    Session,
    SessionOperation,
    StartingPoint,
    check_command,
    check_session_directory,
)
from atoll.protocol.commands import Exec, ExecShell
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.ids import parse_session_id
from atoll.protocol.sessions import (
    DEFAULT_DIRECTORY,
    DEFAULT_SESSION,
    CreateSession,
    SessionInfo,
    Sessions,
    SetEnvironment,
    check_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.commands.runner import CommandRunner
    from atoll.agent.operations import Operation, Owner
    from atoll.agent.scratch import Scratch

MAX_SESSIONS = 64


class SessionRegistry:
    """Sessions by id."""

    def __init__(self, runner: CommandRunner, scratch: Scratch) -> None:
        self._runner = runner
        self._scratch = scratch
        self._sessions: dict[str, Session] = {}
        self.on_move: Callable[[], None] = lambda: None  # when `starting_point` of a session may be another

    def create(self, call: CreateSession) -> SessionInfo:
        parse_session_id(call.session_id)
        check_environment(call.env)
        check_name(call.name)
        if call.cwd != DEFAULT_DIRECTORY:  # which a sandbox may do without
            check_session_directory(DEFAULT_DIRECTORY, call.cwd)
        if call.session_id in self._sessions:
            remedy = "Use it, delete it first, or choose another id."
            message = f"session {call.session_id!r} exists already"
            raise error(ErrorCode.SESSION_EXISTS, message, remedy=remedy, session_id=call.session_id)
        return self._add(call).info

    def delete(self, session_id: str) -> SessionInfo:
        session = self._get(session_id)
        del self._sessions[session_id]
        self.on_move()
        info = session.info
        session.close()
        return info

    def list(self) -> list[SessionInfo]:
        return [session.info for session in self._sessions.values()]

    def set_environment(self, call: SetEnvironment) -> Sessions:
        check_environment(call.env)
        if call.session_id is not None:
            self._opened(call.session_id).set_environment(call.env)
            return Sessions(sessions=self.list())
        former = self._runner.env
        merged = former.merged(call.env)
        check_environment(merged)
        self._runner.env = Environment(merged)
        for session_id, session in self._sessions.items():
            if session_id == DEFAULT_SESSION:
                session.set_environment(call.env)
            else:
                session.offer_environment(call.env, former.merged({}))
        return Sessions(sessions=self.list())

    def starting_point(self, session_id: str | None) -> StartingPoint:
        """The state in which something that a session starts begins. The default session need not exist for that."""
        if session_id in (None, DEFAULT_SESSION) and DEFAULT_SESSION not in self._sessions:
            return StartingPoint(DEFAULT_DIRECTORY, DEFAULT_DIRECTORY)
        return self._get(session_id or DEFAULT_SESSION).starting_point

    def where_left(self, session_id: str | None) -> StartingPoint:
        """The starting point as the session's last command left it, whatever runs now."""
        session = self._sessions.get(session_id or DEFAULT_SESSION)
        return session.where_left if session else self.starting_point(session_id)

    def variables(self, session_id: str | None) -> dict[str, str | None]:
        """The differences from the sandbox's variables, for what such a session starts. To be asked when known."""
        session = self._sessions.get(session_id or DEFAULT_SESSION)
        return session.variables.changes_to(self._runner.env) if session else {}

    def when_known(self, session_id: str | None, then: Callable[[], None]) -> Callable[[], None] | None:
        """Have `then` called once the variables of a session are known, which takes a moment after a command of it.

        Returns how to forget it; None if it was called at once.
        """
        session = self._sessions.get(session_id or DEFAULT_SESSION)
        if session:
            return session.when_known(then)
        then()
        return None

    def program(self, call: Exec, owner: Owner) -> Operation:
        return self._runner.operation(call, owner) if call.session_id is None else self.operation(call, owner)

    def operation(self, call: Exec | ExecShell, owner: Owner) -> Operation:
        match call:
            case Exec():
                check_words(call)
                return ProgramOperation(self._opened(call.session_id or DEFAULT_SESSION), call, owner)
            case ExecShell():
                check_command(call)
                return SessionOperation(self._opened(call.session_id), call, owner)

    def _opened(self, session_id: str) -> Session:
        """A session that there is; the default one there always is."""
        if session_id == DEFAULT_SESSION and session_id not in self._sessions:
            self._add(CreateSession(session_id=session_id))
        return self._get(session_id)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def _get(self, session_id: str) -> Session:
        session = self._sessions.get(parse_session_id(session_id))
        if session is None:
            remedy = "Create it first; list the sessions to see which there are."
            message = f"there is no session {session_id!r}"
            raise error(ErrorCode.SESSION_NOT_FOUND, message, remedy=remedy, session_id=session_id)
        return session

    def _add(self, call: CreateSession) -> Session:
        if len(self._sessions) >= MAX_SESSIONS:
            raise error(
                ErrorCode.TOO_MANY_SESSIONS,
                f"the sandbox already has {MAX_SESSIONS} sessions",
                remedy="Delete those that are not needed any more.",
                session_id=call.session_id,
                limit=MAX_SESSIONS,
            )
        session = Session(self._runner, self._scratch.make_directory(), call, lambda: self.on_move())
        self._sessions[call.session_id] = session
        self.on_move()
        return session
