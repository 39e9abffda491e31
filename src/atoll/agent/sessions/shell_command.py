"""A command in a persistent shell, from its files to its answer.

Rules, on top of those of commands/execution.py:
1. A time-out stops the shell first, or it would go on with the rest of the command as soon as a child is gone. Then
   the children get SIGTERM, and after a grace period SIGKILL. Then the shell gets the interrupt, which makes it drop
   the command, and goes on. Its directory, variables and functions are as the command left them.
2. A shell that does not answer to that is killed. So is one that has read all its lines and has no answer.
3. A shell that ends takes its command along. What the command had put in the background lives on.
4. A command that its shell did not live to begin is begun by the next shell, once.
"""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING

from atoll.agent.commands.execution import KILL_GRACE_SECONDS, Execution
from atoll.agent.commands.process_tree import ShellCommandTree
from atoll.agent.commands.runner import CommandRunner
from atoll.agent.sessions.shell_script import DROPPED, INPUT_OPENED, INTERRUPT_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atoll.agent.commands.execution import Streams
    from atoll.agent.scratch import ScratchDirectory
    from atoll.agent.sessions.shell import Shell
    from atoll.agent.sessions.shell_script import Change
    from atoll.protocol.commands import ExecDone, ExecShell

FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.001, 0.05
# After the first interrupt. A busy machine is no reason to lose a shell, nor is one that stood still: so it also counts
# how often we have looked.
INSIST_SECONDS, ABORT_SECONDS, ABORT_LOOKS = 0.1, 2.0, 20
FIRST_CHECK_SECONDS, LONGEST_CHECK_SECONDS = 0.5, 5.0
MAX_EXIT_CODE = 255


class CommandFiles:
    """The files that the shell finds in its directory for a command."""

    def __init__(self, files: ScratchDirectory, number: int) -> None:
        self.number = number
        self._files = files
        self._names: list[str] = []
        self._outputs: list[int] = []
        self._inputs: list[int] = []

    def write(self, letter: str, text: str) -> str:
        name = self._name(letter)
        self._files.write(name, text.encode())
        return name

    def open_pipes(self, with_stdin: bool) -> None:
        self._outputs.append(self._files.make_output(self._name("o")))
        self._outputs.append(self._files.make_output(self._name("e")))
        if with_stdin:
            self._inputs.append(self._files.make_input(self._name("i")))

    def hand_outputs_to(self, streams: Streams) -> None:
        stdout, stderr = self._outputs
        self._outputs.clear()
        streams.open(stdout, stderr)
        if not self._inputs:
            streams.open_input(None)

    def hand_input_to(self, streams: Streams) -> None:
        """Once the shell has opened its end: before, all that is written would be lost when we close ours."""
        if self._inputs:
            streams.open_input(self._inputs.pop())

    def remove_command(self) -> None:
        self._files.remove(f"c{self.number}")

    def remove(self) -> None:
        self._files.remove(*self._names)
        for fd in (*self._outputs, *self._inputs):
            os.close(fd)
        self._outputs.clear()
        self._inputs.clear()

    def _name(self, letter: str) -> str:
        self._names.append(f"{letter}{self.number}")
        return self._names[-1]


def write_lines(call: ExecShell, shell: Shell, files: CommandFiles, lasting: Mapping[str, Change]) -> list[str]:
    """Write the files of `call`; returns the lines that make the shell use them, and answer and save its state."""
    dialect = shell.dialect
    lines = [dialect.source_command(files.write("c", dialect.command(call.command, files.number, call.stdin)))]
    if lasting or call.env or call.cwd is not None:
        undo = files.write("u", dialect.undo(call.env, call.cwd))
        before = files.write("b", dialect.before(lasting, call.env, call.cwd, undo))
        lines = [dialect.source(before), *lines, dialect.source(undo)]
    return [*lines, dialect.source_after(shell.next_batch(), files.number)]


class ShellCommand(Execution):
    """A command that a shell is busy with."""

    def __init__(
        self,
        runner: CommandRunner,
        shell: Shell,
        call: ExecShell,
        files: CommandFiles,
        streams: Streams,
        on_done: Callable[[ExecDone], None],
    ) -> None:
        super().__init__(runner, call, streams, on_done)
        self.files = files
        self._use(shell)
        self._pause = FIRST_LOOK_SECONDS
        self._was_silent = self._has_input = self._has_moved = False
        self._check = self._loop.call_later(FIRST_CHECK_SECONDS, self._check_shell, FIRST_CHECK_SECONDS)

    def _use(self, shell: Shell) -> None:
        self._shell = shell
        self._number = b"%d" % shell.batch  # of the lines that were written for it
        self._tree = ShellCommandTree(shell.pid, self._runner.births.now())

    @property
    def may_move(self) -> bool:
        """Whether the shell that has ended had not come to it: it opens the pipes first."""
        return not (self._is_ending or self._has_moved or self._has_input or self._streams.were_opened)

    def move_to(self, shell: Shell) -> None:
        self._has_moved = True
        self._use(shell)

    def on_answer(self, answer: bytes) -> None:
        number, _, status = answer.partition(b" ")
        if answer == INPUT_OPENED:
            self._has_input = True
            self.files.hand_input_to(self._streams)
        elif number == self._number and status.isdigit() and len(status) <= 3:
            if not self._is_ending:
                self._leave(min(int(status), MAX_EXIT_CODE))
        elif self._is_ending and answer == DROPPED + str(self.files.number).encode():
            self._stop_timer()
            # On its way to this the shell may have started more of it, and by now that may be a crowd.
            self._runner.endings.kill(self._tree, then=self._leave_dropped)

    def on_shell_end(self, exit_code: int, *, session_ended: bool) -> None:
        if self._is_ending:
            self._tree.kill()
        self._leave(exit_code, session_ended=session_ended)

    def discard(self) -> None:
        """There is no shell that could run it."""
        self._has_ended = True
        self._stop_timer()
        self._clean_up()
        self._runner.running.discard(self)

    def abort(self) -> None:
        """End the command and its shell at once."""
        self._is_ending = True
        self._stop_timer()
        self._shell.signal(signal.SIGSTOP)  # it shall neither comment on it nor start more
        self._tree.kill()
        self._shell.kill()

    def _leave(self, exit_code: int, *, session_ended: bool = False) -> None:
        self._clean_up()
        self._finish(exit_code, session_ended=session_ended)

    def _leave_dropped(self) -> None:
        if not self._has_ended:
            self._leave(0)

    def _clean_up(self) -> None:
        self._check.cancel()
        self.files.remove()

    def _terminate(self) -> None:
        self.files.remove_command()  # if it has not begun it never will
        self._has_asked = False
        self._kill_at = self._loop.time() + KILL_GRACE_SECONDS
        self._insist_at = self._abort_at = math.inf
        self._end_tree()

    def _end_tree(self) -> None:
        self._shell.signal(signal.SIGSTOP)
        if not self._tree.terminate():
            self._interrupt()
        elif self._loop.time() >= self._kill_at:
            self._tree.kill()
            self._interrupt()
        else:
            self._set_timer(self._next_pause(), self._end_tree)

    def _interrupt(self) -> None:
        """The question is there before the shell goes on, so that it need not wait for lines where that is a danger."""
        if self._abort_at == math.inf:
            self._insist_at = self._loop.time() + INSIST_SECONDS
            self._abort_at = self._loop.time() + ABORT_SECONDS
            self._looks = 0
        self._shell.signal(INTERRUPT_SIGNAL)
        self._ask()
        self._shell.signal(signal.SIGCONT)
        self._pause = FIRST_LOOK_SECONDS
        self._set_timer(self._next_pause(), self._follow_up)

    def _follow_up(self) -> None:
        """A command that has not answered yet is ended, or waited for once more."""
        self._looks += 1
        if self._loop.time() >= self._abort_at and self._looks >= ABORT_LOOKS:
            self.abort()
        elif self._tree.terminate():
            self._end_tree()  # it was about to start a child when we looked, and now waits for that
        else:
            self._ask()
            self._insist()
            self._set_timer(self._next_pause(), self._follow_up)

    def _ask(self) -> None:
        """An answer to this counts, not the command's own: it may have been about to give that, and have dropped it."""
        if not self._has_asked or self._shell.has_read_everything:
            self._has_asked = True
            self._shell.ask(self.files.number)

    def _insist(self) -> None:
        """A shell may wait in the kernel, for the other end of a FIFO say, which only this signal interrupts."""
        if self._loop.time() >= self._insist_at:
            self._insist_at = math.inf
            self._shell.signal(signal.SIGINT)

    def _next_pause(self) -> float:
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_LOOK_SECONDS)
        return pause

    def _check_shell(self, pause: float) -> None:
        """Kill a shell that cannot answer any more, as when a command has disabled what it would answer with."""
        is_silent = self._shell.has_read_everything and not self._is_ending
        self._shell.wake()  # should it wait although there is something to read
        if is_silent and self._was_silent:
            self._shell.kill()
            return
        self._was_silent = is_silent
        pause = FIRST_CHECK_SECONDS if is_silent else min(2 * pause, LONGEST_CHECK_SECONDS)
        self._check = self._loop.call_later(pause, self._check_shell, pause)
