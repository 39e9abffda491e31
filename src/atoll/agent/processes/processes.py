"""Background processes: started by somebody, owned by nobody.

Rules:
1. A process outlives whoever started it: the connection, the session, the server. It ends by itself, by `kill`, at its
   time-out, and with the sandbox.
2. It is over when its first process has ended, with that exit code. What that left running is still logged while it
   holds the output open, and still reached by `kill`.
3. To end it: SIGTERM to the whole tree, SIGKILL after a grace period, and when the first process is gone, SIGKILL to
   whatever is left. Any other signal is sent, and that is all.
4. A restart comes after a pause, which doubles unless the last run was long. What that run left is ended before.
5. Those that are over are remembered, so many of them, and of fewer the log: who waits for the exit of hundreds comes
   late to most. One without its log says how much of it there was.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from atoll.agent.commands.execution import MAX_LEFT_IN_PIPE, read_now
from atoll.agent.commands.process_tree import BackgroundTree, read_process_table
from atoll.agent.commands.spawn import check_words, invalid_command, pipe_name
from atoll.agent.processes.log import LogStore
from atoll.agent.processes.operations import KillOperation
from atoll.agent.sessions.shell import find_shell
from atoll.protocol.commands import TIMED_OUT_EXIT_CODE, Exec
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.messages import encode_message
from atoll.protocol.processes import (
    KillAllProcesses,
    KillProcess,
    OutputStream,
    ProcessCount,
    ProcessInfo,
    ProcessStatus,
    RestartPolicy,
    StartProcess,
    StreamProcessLog,
    WaitForExit,
    WaitForPort,
    parse_process_id,
    parse_signal,
    shorten,
    shorten_all,
)
from atoll.protocol.sessions import DEFAULT_SESSION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from atoll.agent.commands.drains import Drains
    from atoll.agent.commands.process_tree import ProcessStat
    from atoll.agent.commands.runner import CommandRunner
    from atoll.agent.commands.spawn import Pipes
    from atoll.agent.operations import Owner
    from atoll.agent.processes.log import ProcessLog
    from atoll.agent.sessions.sessions import SessionRegistry

MAX_RUNNING = 512
MAX_OVER = 1000
MAX_OVER_LOGGED = 100
COMMAND_KEPT = 200  # bytes of the command of one that is over and has lost its log
GRACE_SECONDS = 5.0  # a server may have requests to finish
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0
LONG_RUN_SECONDS = 10.0
ENDING = (signal.SIGTERM, signal.SIGKILL)
UNWANTING = (*ENDING, signal.SIGINT, signal.SIGQUIT)  # who sends one of these wants no restart
PASSING = (ErrorCode.PROCESS_LIMIT_REACHED,)  # why a restart failed, if the next may succeed
MAX_REMEMBERED = 64 * 1024  # bytes of a command with its variables that is to be started again: there may be hundreds

T = TypeVar("T")


class ProcessRegistry:
    """Background processes by id, in the order of their start."""

    def __init__(self, runner: CommandRunner, sessions: SessionRegistry) -> None:
        self.runner = runner
        self.logs = LogStore()
        self._sessions = sessions
        self._processes: dict[str, BackgroundProcess] = {}
        self._ended: list[tuple[BackgroundProcess, int]] = []

    def start(self, call: StartProcess) -> ProcessInfo:
        process_id = f"proc-{os.urandom(4).hex()}" if call.process_id is None else parse_process_id(call.process_id)
        former = self._processes.get(process_id)
        if former and not former.is_over:
            remedy = "Choose another id, or kill it first."
            message = f"process {process_id!r} is running already"
            raise error(ErrorCode.PROCESS_EXISTS, message, remedy=remedy, process_id=process_id)
        if sum(not process.is_over for process in self._processes.values()) >= MAX_RUNNING:
            message = f"the sandbox already has {MAX_RUNNING} background processes"
            remedy = "Kill those that are not needed any more."
            raise error(ErrorCode.TOO_MANY_PROCESSES, message, remedy=remedy, limit=MAX_RUNNING)
        start = self._sessions.where_left(call.session_id)
        run = to_exec(call, self._sessions.variables(call.session_id), self.runner)
        process = BackgroundProcess(self, process_id, call, run, start.path)
        process.start(start.directory)
        if former:
            self._forget(former)
        self._processes[process_id] = process
        return process.info

    def list(self) -> list[ProcessInfo]:
        return shorten_all([process.info for process in self._processes.values()])

    def get(self, process_id: str) -> BackgroundProcess:
        process = self._processes.get(parse_process_id(process_id))
        if process is None:
            remedy = "List the processes to see which there are; of those that are over only the latest are kept."
            message = f"there is no process {process_id!r}"
            raise error(ErrorCode.PROCESS_NOT_FOUND, message, remedy=remedy, process_id=process_id)
        return process

    def clean_up(self, keep: int = 0) -> int:
        """Forget those that are over, but for the `keep` that ended last."""
        forgotten = all_but_last(keep, self._over())
        for process in forgotten:
            self._forget(process)
        return len(forgotten)

    def on_exit(self, process: BackgroundProcess, exit_code: int) -> None:
        """Many may end at once. One look at all processes is enough for them."""
        if not self._ended:
            self._loop.call_soon(self._settle)
        self._ended.append((process, exit_code))

    def close(self) -> None:
        """For rehearsals; an agent proper ends with its sandbox."""
        self.clean_up()
        self.logs.close()

    def _settle(self) -> None:
        ended, self._ended = self._ended, []
        table = read_process_table()
        for process, exit_code in ended:
            process.first_process_ended(exit_code, table)
        self.clean_up(keep=MAX_OVER)
        for process in all_but_last(MAX_OVER_LOGGED, self._over()):
            process.drop_log(table)

    def _over(self) -> Sequence[BackgroundProcess]:
        """In the order of their end."""
        over = (process for process in self._processes.values() if process.is_over)
        return sorted(over, key=lambda process: process.ended_at)

    def _forget(self, process: BackgroundProcess) -> None:
        del self._processes[process.id]
        process.forget()

    def kill(self, call: KillProcess, owner: Owner) -> KillOperation:
        process, number = self.get(call.process_id), parse_signal(call.signal)
        return KillOperation(self._loop, owner, [process], number, lambda: process.info)

    def kill_all(self, call: KillAllProcesses, owner: Owner) -> KillOperation:
        running = [process for process in self._processes.values() if not process.is_over]
        count = ProcessCount(count=len(running))
        return KillOperation(self._loop, owner, running, signal.SIGTERM, lambda: count)

    def of(self, call: StreamProcessLog | WaitForPort | WaitForExit) -> BackgroundProcess:
        return self.get(call.process_id)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self.runner.loop


class BackgroundProcess:
    """A process, from its first start through its restarts to its end. `watchers` are called when it is over.

    A thousand are kept, and with 30 attributes or more each would have a dictionary of its own, which is 1 KiB.
    """

    def __init__(
        self, registry: ProcessRegistry, process_id: str, call: StartProcess, run: Exec, directory: str
    ) -> None:
        self.id = process_id
        self.status = ProcessStatus.STARTING
        self.watchers: set[Callable[[], None]] = set()
        self.ended_at = 0.0  # by a clock that nobody sets
        self._registry = registry
        self._session_id = call.session_id or DEFAULT_SESSION
        self._policy = call.restart
        self._timeout = call.timeout
        self._command = shorten(call.command)
        self._exec: Exec | None = run
        self._lasting_directory = directory
        self.log: ProcessLog = registry.logs.make_log()
        self._has_log = True
        self._start_time = datetime.now(UTC)
        self._end_time: datetime | None = None
        self._exit_code: int | None = None
        self._error: str | None = None
        self._restarts = 0
        self._pause = 0.0
        self._is_ending = self._is_unwanted = self._timed_out = False
        self._restart: asyncio.TimerHandle | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def _runner(self) -> CommandRunner:
        return self._registry.runner

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._runner.loop

    @property
    def is_over(self) -> bool:
        return self.status.is_over

    @property
    def age(self) -> float:
        """The seconds since its latest start; of one that is over there is nothing to wait for."""
        return float("inf") if self.is_over else time.monotonic() - self._run_began

    @property
    def is_gone(self) -> bool:
        """Whether it is over and left nobody behind."""
        return self.is_over and not self._tree.is_alive()

    @property
    def info(self) -> ProcessInfo:
        return ProcessInfo(
            id=self.id,
            pid=self._pid,
            command=self._command,
            status=self.status,
            start_time=self._start_time,
            end_time=self._end_time,
            exit_code=self._exit_code,
            session_id=self._session_id,
            restart=self._policy,
            restarts=self._restarts,
            timed_out=self._timed_out,
            error=self._error,
        )

    def start(self, directory: str) -> None:
        try:
            self._run(directory)
        except AtollError:
            self.log.forget()
            raise
        if self._policy is None:
            self._exec = None
        if self._timeout is not None:
            self._deadline = self._loop.call_later(self._timeout, self._time_out)

    def kill(self, number: int, table: list[ProcessStat] | None = None) -> None:
        """A signal for the whole tree, also for what is left of one that is over."""
        self._is_unwanted |= number in UNWANTING
        if self.status is ProcessStatus.STARTING:
            if self._is_unwanted:
                self._finish(ProcessStatus.KILLED)
            return
        self._is_ending |= number in ENDING
        if number == signal.SIGKILL:
            self._tree.kill()
        elif self._tree.signal(number, table) and number == signal.SIGTERM and self._grace is None:
            self._grace = self._loop.call_later(GRACE_SECONDS, self._lose_patience)

    def first_process_ended(self, exit_code: int, table: list[ProcessStat]) -> None:
        self._pipes.catch_up()
        left_some = self._tree.leader_ended(table)
        restarts = self._is_to_restart(exit_code)
        if left_some and (self._is_ending or restarts):
            self._tree.kill()
        elif self._is_ending:
            self._runner.endings.kill(self._tree)  # somebody may have forked away from this look
        self._exit_code = TIMED_OUT_EXIT_CODE if self._timed_out else exit_code
        if restarts:
            self._pipes.hand_over(self._runner.drains)
            self._restart_later()
        else:
            self._finish(final_status(exit_code, was_ended=self._is_ending))

    def drop_log(self, table: list[ProcessStat]) -> None:
        """Keep what is small: how it ended, and who is left of it."""
        if not self._has_log:
            return
        if not self._pipes.are_closed:
            self._tree.is_alive(table)  # those who hold its output are known by that for the last time
        self._command = shorten(self._command, COMMAND_KEPT)
        self._forget_log()

    def forget(self) -> None:
        self._stop_timers()
        self._forget_log()

    def _forget_log(self) -> None:
        self._has_log = False
        self._pipes.hand_over(self._runner.drains)
        self.log.forget()

    def _run(self, directory: str) -> None:
        assert self._exec, "what is not to be started again is forgotten"
        self._pid, pipes = self._runner.spawn(self._exec, directory)
        self._runner.reaper.watch(self._pid, lambda exit_code: self._registry.on_exit(self, exit_code))
        self._pipes = LogPipes(self._loop, self.log, pipes, self._on_silence)
        self._tree = BackgroundTree(self._pid, self._pipes.names)
        self._run_began = time.monotonic()
        self.status = ProcessStatus.RUNNING

    def _is_to_restart(self, exit_code: int) -> bool:
        if self._is_unwanted or self._timed_out or self._policy is None:
            return False
        return self._policy is RestartPolicy.ALWAYS or exit_code != 0

    def _restart_later(self) -> None:
        self.status = ProcessStatus.STARTING
        self._pause = next_pause(self._pause, time.monotonic() - self._run_began)
        self._restart = self._loop.call_later(self._pause, self._start_again)

    def _start_again(self) -> None:
        try:
            self._run(self._lasting_directory)
        except AtollError as cause:
            if cause.code in PASSING:
                self._run_began = time.monotonic()
                self._restart_later()
            else:
                self._error = cause.message
                self._finish(ProcessStatus.ERROR)
        else:
            self._restarts += 1
            self._exit_code = None

    def _time_out(self) -> None:
        self._runner.endings.ask(self._end_in_time)

    def _end_in_time(self, table: list[ProcessStat]) -> None:
        if self.is_over:
            return
        self._timed_out = True
        self._exit_code = TIMED_OUT_EXIT_CODE if self.status is ProcessStatus.STARTING else self._exit_code
        self.kill(signal.SIGTERM, table)

    def _lose_patience(self) -> None:
        self._grace = None
        self._runner.endings.kill(self._tree)

    def _finish(self, status: ProcessStatus) -> None:
        self.status = status
        self.log.mark_exit()
        self._end_time = datetime.now(UTC)
        self.ended_at = time.monotonic()
        self._exec = None
        self._stop_timers()
        self._on_silence()
        for watcher in tuple(self.watchers):
            watcher()

    def _on_silence(self) -> None:
        if self.is_over and self._pipes.are_closed:
            self.log.close()

    def _stop_timers(self) -> None:
        for timer in (self._restart, self._grace, self._deadline):
            if timer:
                timer.cancel()
        self._restart = self._grace = self._deadline = None


class LogPipes:
    """Our ends of a run's output, read into a log until nobody can write to them. The pipes are read at all times."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, log: ProcessLog, pipes: Pipes, on_closed: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._log = log
        self._on_closed = on_closed
        self._outputs = {pipes.stdout[0]: OutputStream.STDOUT, pipes.stderr[0]: OutputStream.STDERR}
        for fd in self._outputs:
            loop.add_reader(fd, self._on_readable, fd)

    @property
    def are_closed(self) -> bool:
        return not self._outputs

    def names(self) -> set[str]:
        """Of those that somebody may still write to, as /proc shows them."""
        return {pipe_name(fd) for fd in self._outputs}

    def catch_up(self) -> None:
        """Log what is there now, which a pipe's size bounds: a background child may write for ever."""
        for fd in tuple(self._outputs):
            allowed = MAX_LEFT_IN_PIPE
            while allowed > 0 and (length := self._read(fd)):
                allowed -= length

    def hand_over(self, drains: Drains) -> None:
        """Log no more of it."""
        for fd in self._outputs:
            self._loop.remove_reader(fd)
            drains.take(fd)
        self._outputs.clear()

    def _on_readable(self, fd: int) -> None:
        self._read(fd)

    def _read(self, fd: int) -> int:
        """How many bytes there were, at most READ_SIZE."""
        data = read_now(fd)
        if data:
            self._log.append(self._outputs[fd], data)
        elif data is not None:
            del self._outputs[fd]
            self._loop.remove_reader(fd)
            os.close(fd)
            if not self._outputs:
                self._on_closed()
        return len(data or b"")


def to_exec(call: StartProcess, variables: Mapping[str, str | None], runner: CommandRunner) -> Exec:
    """The command line: a shell for a line, the words themselves otherwise. `variables` are its session's."""
    env = {**variables, **call.env}
    argv = call.command
    if isinstance(argv, str):
        if not argv.strip():
            remedy = "Give a line for the shell, or a program and its arguments."
            raise invalid_command("the command is empty", remedy, command=argv[:200])
        shell, _ = find_shell(runner.env.merged(env).get("PATH", os.defpath))
        argv = [shell, "-c", argv]
    run = Exec(argv=argv, cwd=call.cwd, env=env, timeout=call.timeout)
    check_words(run)
    if call.restart and (length := len(encode_message(run))) > MAX_REMEMBERED:
        message = f"the command with its variables takes {length} bytes; {MAX_REMEMBERED} are remembered for a restart"
        raise invalid_command(message, "Put what is large into a file.", size=length, limit=MAX_REMEMBERED)
    return run


def final_status(exit_code: int, *, was_ended: bool) -> ProcessStatus:
    if was_ended or 128 < exit_code < 128 + signal.NSIG:  # as shells say that a signal did it
        return ProcessStatus.KILLED
    return ProcessStatus.COMPLETED if exit_code == 0 else ProcessStatus.FAILED


def all_but_last(count: int, items: Sequence[T]) -> Sequence[T]:
    return items[: max(0, len(items) - count)]


def next_pause(pause: float, seconds_run: float) -> float:
    if seconds_run >= LONG_RUN_SECONDS or not pause:
        return FIRST_PAUSE_SECONDS
    return min(2 * pause, LONGEST_PAUSE_SECONDS)
