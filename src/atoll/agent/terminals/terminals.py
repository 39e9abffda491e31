"""The terminals of a sandbox by id, and what can be asked about them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atoll.agent.commands.guard import LOOK_SECONDS
from atoll.agent.commands.spawn import check_directory_name, check_no_nul, enter, find_program, spawn_error
from atoll.agent.sessions.shell import find_shell
from atoll.agent.terminals.pty import PtyProgram, read_outcome
from atoll.agent.terminals.terminal import Terminal
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.terminals import (
    MAX_WRITE,
    CreateTerminal,
    ResizeTerminal,
    TerminalInfo,
    TerminalList,
    check_size,
    to_words,
)

if TYPE_CHECKING:
    from atoll.agent.commands.runner import CommandRunner
    from atoll.agent.operations import Owner
    from atoll.agent.sessions.sessions import SessionRegistry

MAX_TERMINALS = 32
MAX_ENDED = 8  # kept so that a late viewer learns how they ended
TERM = "xterm-256color"


class TerminalRegistry:
    """Terminals by id, the oldest first."""

    def __init__(self, runner: CommandRunner, sessions: SessionRegistry) -> None:
        self._runner = runner
        self._sessions = sessions
        self._terminals: dict[str, Terminal] = {}

    def start(self, call: CreateTerminal) -> tuple[Terminal, int]:
        """A terminal, and the pipe that says whether its program could be run."""
        self._check(call)
        env = self._runner.env.merged({"TERM": TERM, **self._sessions.variables(call.session_id), **call.env})
        path = env.get("PATH", os.defpath)
        words = to_words(call.shell) or [find_shell(path)[0]]
        try:
            enter(self._sessions.where_left(call.session_id).directory, call.cwd)
            program = PtyProgram(find_program(words[0], path), words, env)
            started = program.start(self._runner, call.cols, call.rows)
        except AtollError:  # some are an OSError too
            raise
        except OSError as cause:
            raise spawn_error(words[0], cause) from cause
        finally:
            os.chdir("/")
        terminal = Terminal(self._runner, started, words, (call.cols, call.rows), self._forget_old)
        self._terminals[terminal.id] = terminal
        return terminal, started.outcome

    def list(self) -> TerminalList:
        return TerminalList(terminals=[terminal.info for terminal in self._terminals.values()])

    def drop(self, terminal: Terminal) -> None:
        """Of a program that could not be run."""
        self._terminals.pop(terminal.id, None)

    def resize(self, call: ResizeTerminal) -> TerminalInfo:
        terminal = self.get(call.terminal_id)
        check_size(call.cols, call.rows)
        terminal.resize(call.cols, call.rows)
        return terminal.info

    def _check(self, call: CreateTerminal) -> None:
        check_size(call.cols, call.rows)
        check_environment(call.env)
        check_no_nul(*(call.shell or ()))
        check_directory_name(call.cwd or "")
        if sum(not terminal.has_ended for terminal in self._terminals.values()) >= MAX_TERMINALS:
            raise error(
                ErrorCode.TOO_MANY_TERMINALS,
                f"the sandbox already has {MAX_TERMINALS} terminals",
                remedy="Close those that are not needed any more.",
                limit=MAX_TERMINALS,
            )

    def _forget_old(self) -> None:
        ended = [terminal for terminal in self._terminals.values() if terminal.has_ended]
        for terminal in ended[:-MAX_ENDED]:
            self.drop(terminal)

    def get(self, terminal_id: str) -> Terminal:
        terminal = self._terminals.get(terminal_id)
        if terminal is None:
            remedy = "Create one; list the terminals to see which there are. One that ended long ago is forgotten."
            message = f"there is no terminal {terminal_id!r:.100}"
            raise error(ErrorCode.TERMINAL_NOT_FOUND, message, remedy=remedy, terminal_id=terminal_id[:200])
        return terminal


class Waiting:
    """An operation that takes no input, gives no output, and ends with what is known of its terminal."""

    def __init__(self, terminal: Terminal, owner: Owner) -> None:
        self._terminal = terminal
        self._owner = owner

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def feed(self, data: bytes) -> bool:
        return True

    def _done(self) -> None:
        self._owner.done(self._terminal.info)


class Ending(Waiting):
    """A wait for the end of a program."""

    def begin(self) -> None:
        self._terminal.when_ended(self._done)

    def cancel(self) -> None:
        self._terminal.not_when_ended(self._done)


class Closing(Ending):
    def begin(self) -> None:
        self._terminal.close()
        super().begin()


class Writing(Waiting):
    """Input that comes with its call."""

    def __init__(self, terminal: Terminal, data: bytes, owner: Owner) -> None:
        super().__init__(terminal, owner)
        self._data = data

    def begin(self) -> None:
        if len(self._data) > MAX_WRITE:
            message = f"{len(self._data)} bytes are too many for one write"
            remedy = f"Write {MAX_WRITE} at a time."
            raise error(ErrorCode.INVALID_REQUEST, message, remedy=remedy, size=len(self._data), limit=MAX_WRITE)
        if self._terminal.feed(self._data, self._done):
            self._done()

    def cancel(self) -> None:
        self._terminal.forget_room(self._done)


class Creation(Waiting):
    """A terminal whose program is being started."""

    def __init__(self, registry: TerminalRegistry, call: CreateTerminal, owner: Owner) -> None:
        self._registry = registry
        self._call = call
        self._owner = owner

    def begin(self) -> None:
        self._terminal, self._outcome = self._registry.start(self._call)
        self._looks = 0
        self._next_look = self._terminal.loop.call_later(LOOK_SECONDS, self._look)
        self._terminal.loop.add_reader(self._outcome, self._on_outcome)

    def cancel(self) -> None:
        """End a terminal whose id nobody knows."""
        self._stop_waiting()
        self._terminal.close()

    def _look(self) -> None:
        """The exec is waited for by its caller alone, and not for ever."""
        self._looks += 1
        self._terminal.end_unexecuted(self._looks)
        self._next_look = self._terminal.loop.call_later(LOOK_SECONDS, self._look)

    def _on_outcome(self) -> None:
        try:
            failure = read_outcome(self._outcome)
        except BlockingIOError:
            return
        self._stop_waiting()
        if failure:
            self._registry.drop(self._terminal)
            self._owner.fail(spawn_error(self._terminal.info.command[0], failure))
        else:
            self._done()

    def _stop_waiting(self) -> None:
        self._next_look.cancel()
        self._terminal.loop.remove_reader(self._outcome)
        os.close(self._outcome)
