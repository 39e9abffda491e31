"""Operations on a background process that take their time: reading its log, waiting for it, ending it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.agent.commands.process_tree import read_process_table
from atoll.agent.commands.spawn import MAX_TIMEOUT_SECONDS
from atoll.agent.processes.port_probe import Probe
from atoll.protocol.durations import in_words
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import FrameKind
from atoll.protocol.messages import encode_message
from atoll.protocol.processes import LogPart, PortMode, check_wait, exited_early, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from atoll.agent.operations import Owner
    from atoll.agent.processes.processes import BackgroundProcess
    from atoll.protocol.processes import StreamProcessLog, WaitForExit, WaitForPort

KILL_PATIENCE_SECONDS = 10.0  # for what has been killed to be gone: the kernel may be busy with it
SETTLING_SECONDS = 0.25  # of a process's life, in which a log is read to its end and not to where it is
FIRST_PROBE_PAUSE, LONGEST_PROBE_PAUSE = 0.02, 0.25


class ProcessOperation:
    """An operation that takes no input, and is about to end once `timeout` is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner, timeout: float | None) -> None:
        if timeout is not None and not 0 <= timeout <= MAX_TIMEOUT_SECONDS:
            remedy = f"Give 0 to {MAX_TIMEOUT_SECONDS} seconds, or none for no limit."
            message = f"a timeout of {timeout} seconds cannot be kept"
            raise error(ErrorCode.INVALID_REQUEST, message, remedy=remedy, timeout=timeout)
        self._loop = loop
        self._owner = owner
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def begin(self) -> None:
        if self._timeout is not None:
            self._timer = self._loop.call_later(self._timeout, self._time_out)

    def cancel(self) -> None:
        self._is_over = True
        if self._timer:
            self._timer.cancel()

    def pause(self) -> None:
        """Most have but one thing to say."""

    def resume(self) -> None: ...

    def feed(self, data: bytes) -> bool:
        return True

    def _time_out(self) -> None:
        raise NotImplementedError

    def _done(self, result: msgspec.Struct) -> None:
        if not self._is_over:
            self.cancel()
            self._owner.done(result)

    def _fail(self, cause: AtollError) -> None:
        if not self._is_over:
            self.cancel()
            self._owner.fail(cause)


class KillOperation(ProcessOperation):
    """A signal to some processes. If it is one that must end them, it waits until it has."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        processes: Sequence[BackgroundProcess],
        number: int,
        result: Callable[[], msgspec.Struct],
    ) -> None:
        super().__init__(loop, owner, KILL_PATIENCE_SECONDS)
        self._processes = processes
        self._number = number
        self._result = result

    def begin(self) -> None:
        super().begin()
        table = read_process_table()
        for process in self._processes:
            process.watchers.add(self._look)
            process.kill(self._number, table)
        self._look()

    def cancel(self) -> None:
        super().cancel()
        for process in self._processes:
            process.watchers.discard(self._look)

    def _look(self) -> None:
        must_end = self._number in (signal.SIGTERM, signal.SIGKILL)
        if not must_end or all(process.is_over for process in self._processes):
            self._done(self._result())

    def _time_out(self) -> None:
        self._done(self._result())


class LogOperation(ProcessOperation):
    """A reader of a log: part by part while its owner takes them, one in each turn of the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Owner, process: BackgroundProcess, call: StreamProcessLog
    ) -> None:
        super().__init__(loop, owner, call.timeout)
        self._process = process
        self._log = process.log
        if not 0 <= call.since <= self._log.end:
            message = f"since={call.since} is no number of this log, which has got to {self._log.end}"
            remedy = "Give the number of the last event you have seen."
            raise error(ErrorCode.INVALID_REQUEST, message, remedy=remedy, since=call.since, end=self._log.end)
        self._position = call.since
        self._follows = call.follow
        self._last: int | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._is_paused = self._is_scheduled = False

    def begin(self) -> None:
        super().begin()
        if not self._follows and (seconds := SETTLING_SECONDS - self._process.age) > 0:
            self._settling = self._loop.call_later(seconds, self._read)
            self._process.watchers.add(self._read)
        if self._settling is None or self._process.is_over:
            self._read()

    def _read(self) -> None:
        """All there is, if that is all: whoever asks right after the start gets what a quick command writes."""
        self._stop_settling()
        self._last = None if self._follows else self._log.end
        self._log.listeners.add(self._wake)
        self._process.watchers.add(self._wake)
        self._wake()

    def _stop_settling(self) -> None:
        self._process.watchers.discard(self._read)
        if self._settling:
            self._settling.cancel()

    def cancel(self) -> None:
        super().cancel()
        self._stop_settling()
        self._log.listeners.discard(self._wake)
        self._process.watchers.discard(self._wake)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._last is not None or self._follows:
            self._wake()

    def _wake(self) -> None:
        if not (self._is_scheduled or self._is_paused or self._is_over):
            self._is_scheduled = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        self._is_scheduled = False
        if self._is_paused or self._is_over:
            return
        if self._position < (self._log.end if self._last is None else self._last):
            part = self._next_part()
            self._position = part.number
            self._owner.send(FrameKind.EVENT, encode_message(part))
            self._wake()
        elif self._last is not None or self._log.is_closed:
            self._done(self._process.info)

    def _next_part(self) -> LogPart:
        """The next part: output up to the exit, the exit, output after it."""
        if self._log.exit_number == self._position + 1:
            return LogPart(number=self._log.exit_number, ended=self._process.info)
        return self._log.read(self._position)

    def _time_out(self) -> None:
        self._done(self._process.info)


class WaitForExitOperation(ProcessOperation):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Owner, process: BackgroundProcess, call: WaitForExit
    ) -> None:
        super().__init__(loop, owner, call.timeout)
        self._process = process

    def begin(self) -> None:
        super().begin()
        self._process.watchers.add(self._look)
        self._look()

    def cancel(self) -> None:
        super().cancel()
        self._process.watchers.discard(self._look)

    def _look(self) -> None:
        if self._process.is_over:
            self._done(self._process.info)

    def _time_out(self) -> None:
        message = f"process {self._process.id!r} did not end within {in_words(self._timeout or 0)}"
        remedy = "It goes on; wait again, or kill it."
        context = {"process_id": self._process.id, "timeout": self._timeout}
        self._fail(error(ErrorCode.PROCESS_EXIT_TIMEOUT, message, remedy=remedy, **context))


class WaitForPortOperation(ProcessOperation):
    """Tries again and again. A process that is over may have left something that is about to open the port."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Owner, process: BackgroundProcess, call: WaitForPort
    ) -> None:
        super().__init__(loop, owner, call.timeout)
        self._process = process
        self._call = check_wait(call)
        self._probe = Probe(loop, self._call)
        self._trying: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def begin(self) -> None:
        super().begin()
        self._process.watchers.add(self._ended.set)
        self._trying = self._loop.create_task(self._try())

    def cancel(self) -> None:
        super().cancel()
        self._process.watchers.discard(self._ended.set)
        if self._trying and self._trying is not asyncio.current_task(self._loop):
            self._trying.cancel()

    async def _try(self) -> None:
        pause = FIRST_PROBE_PAUSE
        while not await self._probe.is_open():
            if self._process.is_gone:
                self._fail(exited_early(self._process.info, self._condition, self._process.log.last_lines()))
                return
            await self._rest(pause)
            pause = min(1.5 * pause, LONGEST_PROBE_PAUSE)
        self._done(self._process.info)

    async def _rest(self, seconds: float) -> None:
        """Until the next try; less if the process ends, which decides much."""
        if self._process.is_over:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    @property
    def _condition(self) -> str:
        if self._call.mode is PortMode.TCP:
            return f"take connections on port {self._call.port}"
        statuses = f"{self._call.min_status} to {self._call.max_status}"
        if self._call.min_status == self._call.max_status:
            statuses = str(self._call.min_status)
        return f"answer GET {self._call.path} on port {self._call.port} with status {statuses}"

    def _time_out(self) -> None:
        info, log = self._process.info, self._process.log.last_lines()
        self._fail(not_ready(info, self._condition, self._timeout, log, self._probe.seen))
