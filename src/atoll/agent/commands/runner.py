"""The runner of programs: a process group for each, exact bytes out, nothing left behind when asked to end.

Time-out and cancellation: SIGTERM to the whole tree, SIGKILL after a grace period, and when the first process is gone,
SIGKILL to whatever is left. What holds for every command, one of a shell too, is in execution.py.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from atoll.agent.commands.drains import Drains
from atoll.agent.commands.execution import KILL_GRACE_SECONDS, CommandOperation, Execution
from atoll.agent.commands.guard import SpawnGuard
from atoll.agent.commands.process_tree import CommandTree, Endings, births
from atoll.agent.commands.spawn import Environment, Pipes, check_words, pipe_name, spawn
from atoll.agent.descriptors import limit, reserve
from atoll.protocol.commands import Exec, ExecDone
from atoll.protocol.sessions import DEFAULT_DIRECTORY

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from atoll.agent.commands.execution import Streams
    from atoll.agent.commands.reaper import Reaper
    from atoll.agent.operations import Owner

# The kernel's OOM killer takes whoever has the most memory, to which it adds a score in thousandths of what there is.
# Whoever makes a sandbox may have given its agent a score, below which nobody inside can go.
LEAST_OOM_SCORE, MOST_OOM_SCORE = 600, 1000
WEIGHT_OF_AGENT = 24 * 2**20  # in its eyes, with some margin; most of it is shared with other agents


class CommandRunner:
    """Starts commands in `env`. What runs, whoever started it, is in `running`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reaper: Reaper) -> None:
        self.loop = loop
        self.env = Environment({})
        self.running: set[object] = set()
        self.oom_score = LEAST_OOM_SCORE
        self.guard = SpawnGuard()
        self.reaper = reaper
        self.drains = Drains(loop)
        self.births = births
        self.endings = Endings(loop)

    def open(self) -> None:
        """Open what needs a descriptor. /proc/self must be ours at this moment."""
        self._own_oom_score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._oom_score_of_agent = os.pread(self._own_oom_score, 16, 0)
        self.births.open()
        limit.open()
        reserve.open()

    def close(self) -> None:
        os.close(self._own_oom_score)
        self.births.close()
        limit.close()
        reserve.close()

    def operation(self, call: Exec, owner: Owner) -> PlainOperation:
        check_words(call)
        return PlainOperation(self, call, owner)

    def start(
        self,
        call: Exec,
        streams: Streams,
        on_done: Callable[[ExecDone], None],
        base: str = DEFAULT_DIRECTORY,
        env: Environment | None = None,
    ) -> Command:
        """Run `call`, whose directory counts from `base`, with `env` or else the sandbox's variables."""
        pid, pipes = self.spawn(call, base, env)
        streams.open(pipes.stdout[0], pipes.stderr[0], self.reaper.reap)
        streams.open_input(pipes.stdin[1] if pipes.stdin else None)
        outputs = {pipe_name(pipes.stdout[0]), pipe_name(pipes.stderr[0])}
        command = Command(self, pid, call, streams, on_done, outputs)
        self.reaper.watch(pid, command.on_exit)
        return command

    def spawn(self, call: Exec, base: str, env: Environment | None = None) -> tuple[int, Pipes]:
        """The pid of a new process, which the reaper must be told about in this turn of the loop, and its pipes."""
        with self.guard:
            pipes = Pipes(call.stdin)
            pid = spawn(call, pipes, env or self.env, base)
            self.take_first(pid)
        return pid, pipes

    def take_first(self, pid: int) -> None:
        """Of a command that has been exec'd: should memory run out, the kernel shall take it before the agent.

        To raise our own score while it is spawned would be quicker, and would make us the first to be taken then.
        """
        with suppress(OSError):  # it has ended, or is a program that nobody may look into
            score = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(score, b"%d" % self.oom_score)
            finally:
                os.close(score)

    @contextmanager
    def commands_oom_score(self) -> Iterator[None]:
        """Around a fork: the child inherits the score, and cannot raise it itself while it is a copy of us."""
        os.pwrite(self._own_oom_score, b"%d" % self.oom_score, 0)
        try:
            yield
        finally:
            os.pwrite(self._own_oom_score, self._oom_score_of_agent, 0)


def oom_score_of_commands(memory: int) -> int:
    """In a sandbox that has `memory` bytes: so high that even the smallest command is taken before the agent."""
    return min(max(LEAST_OOM_SCORE, 1000 * WEIGHT_OF_AGENT // memory), MOST_OOM_SCORE)


class PlainOperation(CommandOperation):
    """A command that waits for nobody."""

    def __init__(self, runner: CommandRunner, call: Exec, owner: Owner) -> None:
        super().__init__(runner, call, owner)
        self._runner = runner
        self._call = call

    def begin(self) -> None:
        self._command = self._runner.start(self._call, self.streams, self.done)

    def cancel(self) -> None:
        """The owner is gone; so shall be the command."""
        self.streams.abandon()
        self._command.end()


class Command(Execution):
    """A running program."""

    def __init__(
        self,
        runner: CommandRunner,
        pid: int,
        call: Exec,
        streams: Streams,
        on_done: Callable[[ExecDone], None],
        outputs: set[str],
    ) -> None:
        super().__init__(runner, call, streams, on_done)
        self._tree = CommandTree(pid, lambda: outputs)

    def on_exit(self, exit_code: int) -> None:
        if self._is_ending:
            self._runner.endings.kill(self._tree, then=partial(self._finish, exit_code))
        else:
            self._finish(exit_code)

    def _terminate(self) -> None:
        self._runner.endings.ask(self._tree.terminate)
        self._set_timer(KILL_GRACE_SECONDS, partial(self._runner.endings.kill, self._tree))
