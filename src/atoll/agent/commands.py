"""Runs programs for the host: a process group of its own, exact bytes out, nothing left behind when asked to end.

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
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from atoll.agent.guard import SpawnGuard
from atoll.agent.process_tree import ProcessTree
from atoll.agent.spawn import Environment, Pipes, check_words, spawn
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import TIMED_OUT_EXIT_CODE, Exec, ExecDone

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from atoll.agent.reaper import Reaper

READ_SIZE = 64 * 1024
KILL_GRACE_SECONDS = 0.5
MAX_DRAINED_PIPES = 256
INPUT_HELD = 256 * 1024
MAX_LEFT_IN_PIPE = 2**20  # the largest a pipe may be made without privileges
OOM_SCORE_OF_COMMANDS, OOM_SCORE_OF_AGENT = b"500", b"0"  # the kernel's OOM killer takes commands first


class CommandOwner(Protocol):
    """Who asked for a command and gets what comes of it."""

    def send_output(self, kind: FrameKind, data: bytes) -> None: ...
    def command_done(self, done: ExecDone) -> None: ...
    def input_drained(self) -> None: ...


class CommandRunner:
    """Starts commands in `env`, and drains what their background children go on writing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reaper: Reaper) -> None:
        self.loop = loop
        self.env = Environment({})
        self.running: set[Command] = set()
        self.guard = SpawnGuard()
        self.reap = reaper.reap
        self._reaper = reaper
        self.oom_score_fd = -1  # comes when the agent is opened
        self._drained: list[int] = []

    def start(self, call: Exec, owner: CommandOwner) -> Command:
        check_words(call)
        with self.guard:
            pipes = Pipes(call.stdin)
            pid = self._spawn(call, pipes)
        command = Command(self, pid, pipes, call, owner)
        self._reaper.watch(pid, command.on_exit)
        self.running.add(command)
        return command

    def _spawn(self, call: Exec, pipes: Pipes) -> int:
        # Children inherit the score. Raising our own for the length of a vfork costs two writes; setting it in the
        # child would cost a full fork.
        os.pwrite(self.oom_score_fd, OOM_SCORE_OF_COMMANDS, 0)
        try:
            return spawn(call, pipes, self.env)
        finally:
            os.pwrite(self.oom_score_fd, OOM_SCORE_OF_AGENT, 0)

    def drain(self, fd: int) -> None:
        """Read `fd` and drop it all, until nobody can write to it any more."""
        if _read(fd, READ_SIZE) == b"":
            os.close(fd)
            return
        if len(self._drained) >= MAX_DRAINED_PIPES:
            self._stop_draining(self._drained[0])
        self._drained.append(fd)
        self.loop.add_reader(fd, self._drop, fd)

    def _drop(self, fd: int) -> None:
        if _read(fd, READ_SIZE) == b"":
            self._stop_draining(fd)

    def _stop_draining(self, fd: int) -> None:
        self._drained.remove(fd)
        self.loop.remove_reader(fd)
        os.close(fd)


class Command:
    """One running program."""

    def __init__(
        self,
        runner: CommandRunner,
        pid: int,
        pipes: Pipes,
        call: Exec,
        owner: CommandOwner,
    ) -> None:
        self._runner = runner
        self._loop = runner.loop
        self._has_ended = False
        self._owner: CommandOwner | None = owner
        self._tree = ProcessTree(pid)
        self._started = time.monotonic()
        self._timed_out = self._truncated = self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._allowance = {FrameKind.STDOUT: call.max_output, FrameKind.STDERR: call.max_output}
        self._outputs = {pipes.stdout[0]: FrameKind.STDOUT, pipes.stderr[0]: FrameKind.STDERR}
        self._input = InputPipe(self._loop, pipes.stdin[1], owner.input_drained) if pipes.stdin else None
        self.resume_output()
        if call.timeout is not None:
            self._timer = self._loop.call_later(call.timeout, self._time_out)

    def resume_output(self) -> None:
        for fd in self._outputs:
            self._loop.add_reader(fd, self._on_readable, fd)

    def pause_output(self) -> None:
        for fd in self._outputs:
            self._loop.remove_reader(fd)

    def feed(self, data: bytes) -> bool:
        """Bytes for standard input, none for its end. False: wait for `input_drained` before sending more."""
        return self._input is None or self._input.feed(data)

    def cancel(self) -> None:
        """The owner is gone; so shall be the command."""
        self._owner = None
        self.resume_output()  # nobody is left to push back
        self._end()

    def on_exit(self, exit_code: int) -> None:
        self._has_ended = True
        if self._timer:
            self._timer.cancel()
        if self._is_ending:
            self._tree.kill()
        self._finish_streams()
        self._runner.running.discard(self)
        if self._owner:
            self._owner.command_done(
                ExecDone(
                    exit_code=TIMED_OUT_EXIT_CODE if self._timed_out else exit_code,
                    duration=time.monotonic() - self._started,
                    timed_out=self._timed_out,
                    truncated=self._truncated,
                )
            )

    def _time_out(self) -> None:
        self._timed_out = True
        self._end()

    def _end(self) -> None:
        if self._is_ending or self._has_ended:
            return
        self._is_ending = True
        if self._timer:
            self._timer.cancel()
        self._tree.terminate()
        self._timer = self._loop.call_later(KILL_GRACE_SECONDS, self._tree.kill)

    def _on_readable(self, fd: int) -> None:
        if data := _read(fd, READ_SIZE):
            self._deliver(self._outputs[fd], data)
        elif data is not None:
            del self._outputs[fd]
            if not self._outputs:
                # Most likely it has just ended. To ask is quicker than to wait for the signal's turn of the loop.
                self._runner.reap()
            self._loop.remove_reader(fd)
            os.close(fd)

    def _deliver(self, kind: FrameKind, data: bytes) -> None:
        allowed = self._allowance[kind]
        if allowed is not None:
            self._truncated |= len(data) > allowed
            data = data[:allowed]
            self._allowance[kind] = allowed - len(data)
        if data and self._owner:
            self._owner.send_output(kind, data)

    def _finish_streams(self) -> None:
        for fd, kind in self._outputs.items():
            self._loop.remove_reader(fd)
            # Only about what is there now, which a pipe's size bounds: a background child may write for ever.
            allowed = MAX_LEFT_IN_PIPE
            while allowed > 0 and (data := _read(fd, READ_SIZE)):
                allowed -= len(data)
                self._deliver(kind, data)
            self._runner.drain(fd)
        self._outputs.clear()
        if self._input:
            self._input.close()


class InputPipe:
    """A command's standard input. It holds what the command has not read yet, up to INPUT_HELD bytes and a frame."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, on_drained: Callable[[], None]) -> None:
        self._loop = loop
        self._fd: int | None = fd
        self._on_drained = on_drained
        self._held = bytearray()
        self._ends = False

    def feed(self, data: bytes) -> bool:
        if self._fd is None or self._ends:
            return True  # the reader closed its end: what comes now is for nobody
        self._ends = not data
        self._held += data
        self._write()
        return len(self._held) < INPUT_HELD

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None
            self._held.clear()

    def _write(self) -> None:
        assert self._fd is not None
        was_full = len(self._held) >= INPUT_HELD
        try:
            while self._held:
                del self._held[: os.write(self._fd, self._held[:READ_SIZE])]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._write)
        except BrokenPipeError:
            self.close()
        else:
            self._loop.remove_writer(self._fd)
            if self._ends:
                self.close()
        if was_full and len(self._held) < INPUT_HELD:
            self._on_drained()


def _read(fd: int, size: int) -> bytes | None:
    """Up to `size` bytes; none at the end of the file; None if there is nothing yet."""
    with suppress(BlockingIOError):
        return os.read(fd, size)
    return None
