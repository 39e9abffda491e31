"""A session: a persistent shell, or the promise of one, and a queue.

Rules:
1. Lines for its shell run in turns (`turns.py`). What needs no shell, a list of words, runs at once (`beside.py`),
   where the session is and with its variables, as its last command left them.
2. One whose owner leaves while it waits is forgotten; one that runs is ended, and the session goes on at once. One
   whose time is up before its turn has come is SESSION_BUSY: nothing of it was done.
3. The shell starts at the session's first command.
4. When a shell ends, for whatever reason, the next command gets a new one with the state that was saved last. If that
   is older than the last answer, the command's result says by how many commands.
5. To delete a session ends its shell and what runs in it or beside it; what was put in the background lives on.
6. Variables: what a call gives comes before what its session was given or has exported, that before the sandbox's. The
   sandbox's own are also the default session's; another session takes a change of theirs where it has none of its own.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from atoll.agent.commands.execution import CommandOperation
from atoll.agent.commands.spawn import Environment, check_call, check_directory_name, enter
from atoll.agent.resident import MAX_PACKET
from atoll.agent.sessions.beside import ProgramOperation
from atoll.agent.sessions.saved_state import MAX_STATE, exported
from atoll.agent.sessions.shell import NOT_STARTED, Shell
from atoll.agent.sessions.shell_command import CommandFiles, ShellCommand, write_lines
from atoll.agent.sessions.shell_script import (
    ENDED,
    INIT,
    KEPT,
    LAST,
    LONGEST_COMPLETE,
    RESTORE,
    STATES,
    WORDS,
    Change,
    followed_by,
    is_settled,
    is_variable_name,
    saved_number,
)
from atoll.agent.turns import Turns
from atoll.protocol.commands import ExecDone, ExecShell, session_busy
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import FrameKind
from atoll.protocol.sessions import (
    DEFAULT_DIRECTORY,
    CreateSession,
    SessionInfo,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from atoll.agent.commands.execution import Streams
    from atoll.agent.commands.runner import CommandRunner
    from atoll.agent.operations import Owner
    from atoll.agent.scratch import ScratchDirectory

KILLED = 137  # by SIGKILL, as a shell counts
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS, MOST_LOOKS = 0.0005, 0.05, 40  # for a state to be saved: 1.5 seconds in all


class StartingPoint(NamedTuple):
    """A session's directory, as a way there that works now and as a path that lasts."""

    directory: str
    path: str


class SessionOperation(CommandOperation):
    """A line on its way through the shell of a session. Its time counts from when it came."""

    def __init__(self, session: Session, call: ExecShell, owner: Owner) -> None:
        super().__init__(session.runner, call, owner)
        self.session = session
        self.call = call
        self.has_waited = False
        self.execution: ShellCommand | None = None
        self._came = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.session.submit(self)

    def cancel(self) -> None:
        """The owner is gone; so shall be the command."""
        self.streams.abandon()
        if self.execution:
            self.execution.end()
        else:
            self._stop_waiting()
            self.session.withdraw(self)

    def wait(self) -> None:
        self.has_waited = True
        if self.call.timeout is not None:
            self._timer = self.session.runner.loop.call_later(self.call.timeout, self._give_up)
        if self.streams.owner:
            self.streams.owner.send(FrameKind.WAITING)

    def turn_has_come(self) -> None:
        """The turn of a command that has waited: it has the rest of its time to run."""
        self._stop_waiting()
        if self.has_waited and self.call.timeout is not None:
            left = max(0.0, self.call.timeout - (time.monotonic() - self._came))
            self.call = msgspec.structs.replace(self.call, timeout=left)

    def started(self, execution: ShellCommand) -> None:
        self.execution = execution
        if self.has_waited and self.streams.owner:
            self.streams.owner.send(FrameKind.STARTED)

    def fail(self, cause: AtollError) -> None:
        self._stop_waiting()
        self.streams.close()
        if self.streams.owner:
            self.streams.owner.fail(cause)

    def _give_up(self) -> None:
        self.session.withdraw(self)
        self.fail(session_busy(self.call, self.session.busy_with))

    def _stop_waiting(self) -> None:
        if self._timer:
            self._timer.cancel()


class Session:
    """A directory, variables and functions that carry over from command to command."""

    def __init__(
        self, runner: CommandRunner, files: ScratchDirectory, call: CreateSession, on_move: Callable[[], None]
    ) -> None:
        self.runner = runner
        self._on_move = on_move
        self._id = call.session_id
        self._name = call.name
        self._env: Mapping[str, str | None] = call.env
        self._lasting: dict[str, Change] = {}  # changes that the shell has not heard of yet
        self._unsaved: dict[str, Change] = {}  # those that it has, but which are not in its saved state
        self._saved_by = 0  # the command in whose state they are
        self._directory = os.path.join(DEFAULT_DIRECTORY, call.cwd)
        self._created_at = datetime.now(UTC)
        self._files = files
        self._answered = 0  # commands whose state the session has, as far as its user knows
        self._restored = 0  # the same of the state that the shell began with
        self._lost = 0  # commands whose state is lost, which nobody has been told yet
        self._shell: Shell | None = None
        self._keeps_all = False  # whether a shell that ends leaves all its state to the next
        self._turns = Turns(self._begin)
        self._programs: set[ProgramOperation] = set()
        self._variables: Environment | None = None  # once they are looked up, until they may be others
        self._curious: list[Callable[[], None]] = []  # who waits for them to be known
        self._look: asyncio.TimerHandle | None = None

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(
            id=self._id,
            cwd=_as_text(self._look_up_directory()),
            created_at=self._created_at,
            commands_waiting=len(self._turns),
            name=self._name,
        )

    @property
    def starting_point(self) -> StartingPoint:
        return StartingPoint(self._where(), self._look_up_directory())

    @property
    def where_left(self) -> StartingPoint:
        return StartingPoint(self._directory, self._directory) if self._is_under_way else self.starting_point

    @property
    def busy_with(self) -> str:
        running = self._turns.current
        return running.call.command if running else ""

    @property
    def _is_under_way(self) -> bool:
        running = self._turns.current
        return running is not None and running.execution is not None

    def submit(self, operation: SessionOperation) -> None:
        self._turns.submit(operation)

    def withdraw(self, operation: SessionOperation) -> None:
        self._turns.withdraw(operation)

    def set_environment(self, env: Mapping[str, str | None]) -> None:
        merged = {**self._env, **env}
        check_environment(merged)
        self._env = merged
        self._lasting.update({name: Change(value) for name, value in env.items() if is_variable_name(name)})
        self._variables = None

    def offer_environment(self, env: Mapping[str, str | None], former: Mapping[str, str]) -> None:
        """Variables of the sandbox, for who has none of its own; those were `former` before."""
        offered = {name: value for name, value in env.items() if name not in self._env and is_variable_name(name)}
        changes = {name: Change(value, gives_way=True, former=former.get(name)) for name, value in offered.items()}
        self._lasting = followed_by(self._lasting, changes)
        self._variables = None

    # What its commands are given besides what they are called with.

    @property
    def variables(self) -> Environment:
        """As its last command left them."""
        if self._variables is None:
            self._variables = Environment(self._look_up_variables())
        return self._variables

    def when_known(self, then: Callable[[], None]) -> Callable[[], None] | None:
        if self._variables is not None or self._is_settled():
            then()
            return None
        self._curious.append(then)
        if self._look is None:
            self._look_again(FIRST_LOOK_SECONDS, MOST_LOOKS)
        return lambda: self._curious.remove(then) if then in self._curious else None

    def _look_again(self, pause: float, left: int) -> None:
        self._look = self.runner.loop.call_later(pause, self._look_at_state, min(2 * pause, LONGEST_LOOK_SECONDS), left)

    def _look_at_state(self, pause: float, left: int) -> None:
        """A shell that takes very long to save its state is not waited for: what was saved before is what counts."""
        if left and not self._is_settled():
            self._look_again(pause, left - 1)
            return
        self._look = None
        _ = self.variables  # from now on they are known
        curious, self._curious = self._curious, []
        for then in curious:
            then()

    def _is_settled(self) -> bool:
        """Whether no shell is about to save the state that its last command left."""
        if self._shell is None or self._answered == self._restored:
            return True
        return any(is_settled(self._files.tail(name, LONGEST_COMPLETE), self._answered) for name in STATES)

    def _look_up_variables(self) -> dict[str, str]:
        number, name = self._newest_state()
        if self._saved_in(name) is None:  # no shell of it has left any
            return self.runner.env.merged(self._env)
        given = self.runner.env.merged(self._env)
        found = {name: value for name, value in given.items() if not is_variable_name(name)}
        found |= exported(self._files.head(name, MAX_STATE))
        told = {} if number >= self._saved_by else self._unsaved
        for name, change in followed_by(told, self._lasting).items():
            if change.is_for(found.get(name)):
                found.pop(name, None)
                found |= {} if change.value is None else {name: change.value}
        return found

    def program_started(self, program: ProgramOperation) -> None:
        self._programs.add(program)

    def program_ended(self, program: ProgramOperation) -> None:
        self._programs.discard(program)

    def close(self) -> None:
        self._turns.dismiss(lambda: _deleted(self._id))
        if (running := self._turns.current) and running.execution:
            running.execution.abort()
        for program in tuple(self._programs):
            program.end(_deleted(self._id))
        if self._look:
            self._look.cancel()
        if self._shell:
            self._shell.kill()
        self._files.close()

    def shell_answered(self, answer: bytes) -> None:
        if (running := self._turns.current) and running.execution:
            running.execution.on_answer(answer)

    def shell_ended(self, exit_code: int) -> None:
        self._hear_last_words(exit_code)
        shell, self._shell = self._shell, None
        self._on_move()
        self._lasting, self._unsaved = followed_by(self._unsaved, self._lasting), {}
        self._variables = None
        operation = self._turns.current
        if not (operation and operation.execution):
            self._files.remove(LAST)  # no command asked for its end, as with TMOUT; so all is kept
            return
        if exit_code == NOT_STARTED and shell and not shell.is_ready:
            self._turns.leave()
            operation.execution.discard()
            operation.fail(_no_shell())
            self._turns.go_on()
        elif operation.execution.may_move:
            self._begin_again(operation, operation.execution)
        else:
            if operation.execution.is_ending and exit_code != KILLED and not self._keeps_all:
                # It ended of our interrupt, not because a command told it to; so all that was saved is kept.
                self._files.remove(LAST)
                self._keeps_all = True
            operation.execution.on_shell_end(exit_code, session_ended=not self._keeps_all)

    def _hear_last_words(self, exit_code: int) -> None:
        how, _, rest = self._files.tail(WORDS, MAX_PACKET).partition(b" ")
        status, _, directory = rest.partition(b" ")
        if how in (ENDED, KEPT) and status == b"%d" % exit_code:
            self._keeps_all = how == KEPT
            self._directory = os.fsdecode(directory)
            self._unsaved = {}
        else:  # none, or it was killed by a signal after it had said them
            self._files.remove(LAST)

    def _begin(self, operation: SessionOperation) -> None:
        operation.turn_has_come()
        operation.started(self._start(operation.call, operation.streams))

    def _on_done(self, done: ExecDone) -> None:
        operation = self._turns.leave()
        if operation:
            self._answered += not done.session_ended
            self._variables = None
            operation.done(self._tell_losses(done, operation))
        self._directory = self._look_up_directory()
        self._turns.go_on()

    def _tell_losses(self, done: ExecDone, operation: SessionOperation) -> ExecDone:
        if self._lost and operation.streams.owner:
            done, self._lost = msgspec.structs.replace(done, state_lost=self._lost), 0
        return done

    def _start(self, call: ExecShell, streams: Streams) -> ShellCommand:
        if call.cwd is not None:
            check_session_directory(self._where(), call.cwd)
        shell = self._shell = self._shell or self._start_shell()
        files = CommandFiles(self._files, self._answered + 1)
        try:
            files.open_pipes(call.stdin)
            lines = write_lines(call, shell, files, self._lasting)
        except AtollError:
            files.remove()
            raise
        self._tell_changes()
        files.hand_outputs_to(streams)
        command = ShellCommand(self.runner, shell, call, files, streams, self._on_done)
        shell.send(*lines)
        shell.wake()
        return command

    def _tell_changes(self) -> None:
        """The shell was told of all changes, with the command that is about to begin."""
        self._lasting, self._unsaved = {}, self._lasting
        self._saved_by = self._answered + 1

    def _begin_again(self, operation: SessionOperation, command: ShellCommand) -> None:
        """The shell that ended had not come to the command, which therefore had no part in its end: so all is kept."""
        self._files.remove(LAST)
        try:
            shell = self._shell = self._start_shell()
            lines = write_lines(operation.call, shell, command.files, self._lasting)
        except AtollError as cause:
            self._turns.leave()
            command.discard()
            operation.fail(cause)
            self._turns.go_on()
            return
        self._tell_changes()
        command.move_to(shell)
        shell.send(*lines)
        shell.wake()

    def _start_shell(self) -> Shell:
        self._choose_state()
        self._keeps_all = False
        shell = Shell(self.runner, self._files, self.runner.env.merged(self._env), self._directory, self)
        shell.send(shell.dialect.source(INIT))
        self._on_move()
        return shell

    def _choose_state(self) -> None:
        """The state that the next shell starts from: the latest that an earlier one left whole, if there is any."""
        number, name = self._newest_state()
        if name != RESTORE:
            self._files.rename(name, RESTORE)
        self._files.remove(LAST, WORDS, *STATES)
        self._lost += max(0, self._answered - number)
        self._answered = self._restored = number

    def _newest_state(self) -> tuple[int, str]:
        """After how many commands it was saved, and where. A command may have saved and not come to be answered."""
        if self._saved_in(LAST) is not None:
            return self._answered, LAST
        found = [(self._restored if self._saved_in(RESTORE) is not None else 0, RESTORE)]
        for name in STATES:
            number = self._saved_in(name)
            if number is not None and number <= self._answered + 1:
                found.append((number, name))
        return max(found)

    def _saved_in(self, name: str) -> int | None:
        return saved_number(self._files.tail(name, LONGEST_COMPLETE))

    def _where(self) -> str:
        """The directory, as a path that leads there even if it was removed or renamed."""
        return f"/proc/{self._shell.pid}/cwd" if self._shell else self._directory

    def _look_up_directory(self) -> str:
        if self._shell:
            with suppress(OSError):
                return os.readlink(self._where())
        return self._directory


def check_command(call: ExecShell) -> None:
    check_call(call, [call.command])
    for name in call.env:
        if not is_variable_name(name):
            remedy = "Use letters, digits and underscores, or run the program without a shell."
            message = f"a shell can have no variable {name!r:.100}"
            raise error(ErrorCode.INVALID_ENVIRONMENT, message, remedy=remedy, name=name[:200])


def check_session_directory(base: str, cwd: str) -> None:
    check_directory_name(cwd)
    try:
        enter(base, cwd)
    finally:
        os.chdir("/")


def _deleted(session_id: str) -> AtollError:
    message = f"session {session_id!r} was deleted meanwhile"
    return error(ErrorCode.SESSION_NOT_FOUND, message, remedy="Create it again.", session_id=session_id)


def _no_shell() -> AtollError:
    return error(
        ErrorCode.COMMAND_NOT_FOUND,
        "the sandbox has no shell that could be started",
        remedy="Use an image with bash or sh, or run the program without a shell.",
        command="sh",
    )


def _as_text(path: str) -> str:
    """Without the bytes that are no UTF-8, which the wire does not take."""
    return os.fsencode(path).decode("utf-8", "replace")
