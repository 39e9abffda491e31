"""The runner of programs: a process group for each, exact bytes out, nothing left behind when asked to end.

Rules:
1. A command is over when its first process has ended. What that process had written is still delivered; what its
   background children write later is drained and dropped, so that they are neither blocked nor killed by SIGPIPE.
2. The pipe is read only while the host takes bytes: back-pressure reaches the writer.
3. Past `max_output` a stream is read on and dropped. The program never notices.
4. Time-out and cancellation: SIGTERM to the whole tree, SIGKILL after a grace period, and when the first process is
   gone, SIGKILL to whatever is left.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from atoll.agent.commands.guard import SpawnGuard
from atoll.agent.commands.process_tree import CommandTree, Endings, births
from atoll.agent.commands.spawn import Environment, Pipes, check_words, pipe_name, spawn
from atoll.agent.commands.streams import Drains, Streams
from atoll.agent.descriptors import limit, reserve
from atoll.protocol.commands import TIMED_OUT_EXIT_CODE, Exec, ExecDone, ExecShell
from atoll.protocol.sessions import DEFAULT_DIRECTORY

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from atoll.agent.commands.reaper import Reaper
    from atoll.agent.operations import Owner

KILL_GRACE_SECONDS = 0.5
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
        self, call: Exec, streams: Streams, on_done: Callable[[ExecDone], None], base: str = DEFAULT_DIRECTORY
    ) -> Command:
        """Run `call`, whose directory counts from `base`."""
        pid, pipes = self.spawn(call, base)
        streams.open(pipes.stdout[0], pipes.stderr[0], self.reaper.reap)
        streams.open_input(pipes.stdin[1] if pipes.stdin else None)
        outputs = {pipe_name(pipes.stdout[0]), pipe_name(pipes.stderr[0])}
        command = Command(self, pid, call, streams, on_done, outputs)
        self.reaper.watch(pid, command.on_exit)
        return command

    def spawn(self, call: Exec, base: str) -> tuple[int, Pipes]:
        """The pid of a new process, which the reaper must be told about in this turn of the loop, and its pipes."""
        with self.guard:
            pipes = Pipes(call.stdin)
            pid = spawn(call, pipes, self.env, base)
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


class CommandOperation:
    """An operation that is a command. Its streams are there before it starts."""

    def __init__(self, runner: CommandRunner, call: Exec | ExecShell, owner: Owner) -> None:
        self.streams = Streams(runner.drains, owner, call.max_output)

    def pause(self) -> None:
        self.streams.pause()

    def resume(self) -> None:
        self.streams.resume()

    def feed(self, data: bytes) -> bool:
        return self.streams.feed(data)

    def done(self, done: ExecDone) -> None:
        if self.streams.owner:
            self.streams.owner.done(done)


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


class Execution:
    """A command under way: its clock, its end, its result. How it is made to end is for its kind to say."""

    def __init__(
        self, runner: CommandRunner, call: Exec | ExecShell, streams: Streams, on_done: Callable[[ExecDone], None]
    ) -> None:
        self._runner = runner
        self._loop = runner.loop
        self._streams = streams
        self._on_done = on_done
        self._started = time.monotonic()
        self._timed_out = self._is_ending = self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None
        if call.timeout is not None:
            self._set_timer(call.timeout, self._time_out)
        runner.running.add(self)

    @property
    def is_ending(self) -> bool:
        """Whether it was told to end, and has not yet."""
        return self._is_ending

    def end(self) -> None:
        """Make it end, with all it has started. The result comes as always."""
        if not (self._is_ending or self._has_ended):
            self._is_ending = True
            self._terminate()

    def _terminate(self) -> None:
        raise NotImplementedError

    def _time_out(self) -> None:
        self._timed_out = True
        self.end()

    def _finish(self, exit_code: int, *, session_ended: bool = False) -> None:
        self._has_ended = True
        self._stop_timer()
        self._streams.finish()
        self._runner.running.discard(self)
        self._on_done(
            ExecDone(
                exit_code=TIMED_OUT_EXIT_CODE if self._timed_out else exit_code,
                duration=time.monotonic() - self._started,
                timed_out=self._timed_out,
                truncated=self._streams.truncated,
                session_ended=session_ended,
            )
        )
        self._streams.close()  # after the answer: nobody has to wait for this

    def _set_timer(self, seconds: float, action: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, action)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()


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
