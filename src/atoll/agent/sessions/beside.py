"""Beside a session's shell: what runs at once, where the session is and with its variables, whatever the shell does.

A list of words, a background process, a terminal: each is given what the session's last command left. That is known a
moment after the command was answered, and only for that moment does anything wait, never for a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.commands.execution import CommandOperation
from atoll.protocol.errors import AtollError

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from atoll.agent.commands.runner import Command
    from atoll.agent.operations import Operation, Owner
    from atoll.agent.sessions.session import Session
    from atoll.agent.sessions.sessions import SessionRegistry
    from atoll.protocol.commands import Exec, ExecDone


class ProgramOperation(CommandOperation):
    """A program that is run in a session."""

    def __init__(self, session: Session, call: Exec, owner: Owner) -> None:
        super().__init__(session.runner, call, owner)
        self._session = session
        self._call = call
        self._command: Command | None = None
        self._forget: Callable[[], None] | None = None

    def begin(self) -> None:
        self._session.program_started(self)
        try:
            self._forget = self._session.when_known(self._start)
        except AtollError:
            self._session.program_ended(self)
            raise

    def cancel(self) -> None:
        """The owner is gone; so shall be the command."""
        self.streams.abandon()
        if self._command:
            self._command.end()
        else:
            self._leave()

    def end(self, cause: AtollError) -> None:
        """Its session is deleted."""
        if self._command:
            self._command.end()
        else:
            self._fail(cause)

    def _start(self) -> None:
        session = self._session
        has_waited, self._forget = self._forget is not None, None
        try:
            self._command = session.runner.start(
                self._call, self.streams, self._on_done, base=session.where_left.directory, env=session.variables
            )
        except AtollError as cause:
            if not has_waited:  # whoever begins it says so
                raise
            self._fail(cause)

    def _on_done(self, done: ExecDone) -> None:
        self._session.program_ended(self)
        self.done(done)

    def _fail(self, cause: AtollError) -> None:
        owner = self.streams.owner
        self._leave()
        if owner:
            owner.fail(cause)

    def _leave(self) -> None:
        self._session.program_ended(self)
        self.streams.close()
        if self._forget:
            self._forget()


class OnceKnown:
    """An operation that begins once the variables of its session are known."""

    def __init__(
        self, sessions: SessionRegistry, session_id: str | None, owner: Owner, make: Callable[[], Operation]
    ) -> None:
        self._sessions = sessions
        self._session_id = session_id
        self._owner = owner
        self._make = make
        self._operation: Operation | None = None
        self._forget: Callable[[], None] | None = None
        self._is_paused = False

    def begin(self) -> None:
        self._forget = self._sessions.when_known(self._session_id, self._begin)

    def cancel(self) -> None:
        if self._operation:
            self._operation.cancel()
        elif self._forget:
            self._forget()

    def pause(self) -> None:
        self._is_paused = True
        if self._operation:
            self._operation.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._operation:
            self._operation.resume()

    def feed(self, data: bytes) -> bool:
        return self._operation.feed(data) if self._operation else True

    def _begin(self) -> None:
        has_waited = self._forget is not None
        try:
            operation = self._make()
            self._operation = operation
            if self._is_paused:
                operation.pause()
            operation.begin()
        except AtollError as cause:
            if not has_waited:  # whoever begins it says so
                raise
            self._owner.fail(cause)


class Answering:
    """An operation that is answered as soon as it begins."""

    def __init__(self, owner: Owner, answer: Callable[[], msgspec.Struct]) -> None:
        self._owner = owner
        self._answer = answer

    def begin(self) -> None:
        self._owner.done(self._answer())

    def cancel(self) -> None:
        """Nothing is left to cancel: it is over."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def feed(self, data: bytes) -> bool:
        return True
