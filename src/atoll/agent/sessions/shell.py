"""A persistent shell: a process that waits on a socket for lines, and answers on it.

Rules:
1. A line is one packet, which the shell reads at once and whole. After an error it drops the rest of what it has read
   and reads on; the next packet is still there. So the line that asks for the answer is sent together with the command
   and always gets its turn, whatever became of the command.
2. Each command has its own FIFOs for output and input. What an earlier one left in the background cannot mix in.
3. A command sees none of the shell's own descriptors: `eval` is redirected, and the shell puts them back when it ends.
4. The shell is a child subreaper: whatever a command starts stays below it, and can be found when it must end.
5. What arrives from the shell decides nothing but the result of its own session's command.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from atoll.agent.commands.spawn import enter, find_program, no_room, spawn_error, variables_vector
from atoll.agent.commands.vfork import DescriptorActions, vfork_exec
from atoll.agent.resident import Resident
from atoll.agent.sessions.shell_script import BASH, GO, READY, SH, START, Dialect
from atoll.agent.sessions.subreaper import SUBREAPER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.commands.runner import CommandRunner
    from atoll.agent.scratch import ScratchDirectory

NOT_STARTED = 127


class ShellListener(Protocol):
    """The listener of a shell."""

    def shell_answered(self, answer: bytes) -> None: ...
    def shell_ended(self, exit_code: int) -> None: ...


class Shell(Resident):
    """A running shell. It is told lines by `send`; its listener hears each answer, and at last its end."""

    def __init__(
        self,
        runner: CommandRunner,
        files: ScratchDirectory,
        env: Mapping[str, str],
        directory: str,
        listener: ShellListener,
    ) -> None:
        program, self.dialect = find_shell(env.get("PATH", os.defpath))
        self.is_ready = False
        self._go: int | None = None
        self.batch = 0
        self._listener = listener
        for name, text in self.dialect.scripts().items():
            files.write(name, text.encode())
        files.write(START, SUBREAPER, mode=0o700)

        def spawn(control: int) -> int:
            if self.dialect.needs_waking:
                self._go = files.make_input(GO)
            argv = [program, *self.dialect.arguments]
            return ShellStart(argv, env, directory, control, files.fd, self.dialect.directory_fd).spawn(runner)

        self.start("a shell", runner, spawn)

    def next_batch(self) -> int:
        """A number for lines that are sent together. The last of them says it, and so does what wakes the shell."""
        self.batch += 1
        return self.batch

    def send(self, *lines: str) -> None:
        self.tell(*(f"{line}\n".encode() for line in lines))

    def ask(self, number: int) -> None:
        """Make it say that it has dropped command `number`, and save what that has left."""
        self.send(self.dialect.source_dropped(self.next_batch(), number))
        self.wake()

    def wake(self) -> None:
        """Let it read what was sent. If it was not waiting, it will find this the next time, and go on waiting."""
        if self._go is not None:
            with suppress(BlockingIOError):  # full of what woke nobody; who waits makes room, and is woken again
                os.write(self._go, b"%d\n" % self.batch)

    def heard(self, packet: bytes) -> None:
        answer, _, _ = packet.partition(b"\0")
        if answer == READY:
            self.is_ready = True
        else:
            self._listener.shell_answered(answer)

    def ended(self, exit_code: int) -> None:
        self._listener.shell_ended(exit_code)

    def close(self) -> None:
        super().close()
        if self._go is not None:
            os.close(self._go)
            self._go = None


def find_shell(path: str) -> tuple[str, Dialect]:
    for name, dialect in (("bash", BASH), ("/bin/bash", BASH), ("sh", SH)):
        with suppress(OSError):
            program = find_program(name, path)
            if os.access(program, os.X_OK):
                return program, dialect
    return "/bin/sh", SH


class ShellStart(NamedTuple):
    """The making of a shell. Nobody waits for its exec: a shell that could not be started has ended."""

    argv: list[str]
    env: Mapping[str, str]
    directory: str
    control: int
    files: int
    files_as: int

    def spawn(self, runner: CommandRunner) -> int:
        try:
            actions = self._arrange_descriptors()
        except OSError as cause:
            raise no_room("a shell", cause.strerror) from cause
        try:
            with runner.guard:
                pid = self._spawn(actions)
                runner.take_first(pid)
            return pid
        except OSError as cause:
            raise spawn_error(self.argv[0], cause) from cause
        finally:
            os.chdir("/")

    def _arrange_descriptors(self) -> DescriptorActions:
        """The descriptors of a shell put in their places, in an order in which none lies where another one goes."""
        actions = DescriptorActions()
        actions.copy(self.control, 0)
        actions.open_null(1, os.O_RDWR)
        actions.copy(1, 2)
        actions.copy(self.files, self.files_as)
        return actions

    def _spawn(self, actions: DescriptorActions) -> int:
        enter(self.directory, None)
        words = [START, *self.argv]
        return vfork_exec(f"/proc/self/fd/{self.files}/{START}", words, variables_vector(self.env), actions)
