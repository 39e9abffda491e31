"""Workers: processes that work on files, so that PID 1 never waits for a disk, a FIFO or a million entries.

Rules:
1. A worker is a fork of PID 1 without exec. So it needs nothing of the image, loads nothing, and is as closed to the
   rest of the sandbox as PID 1 is: no debugger, no descriptors to be had from /proc. It holds nothing of the agent's.
2. It does one operation at a time, and has the host's connection for as long as that takes, and for a moment longer:
   further calls about files come to it without us. PID 1 neither reads nor writes there meanwhile; it only sees the
   host leave. It asks for connections back when others wait for a worker, and workers look for that between calls.
3. Whatever becomes of a worker, the operation has an end. One that was killed says, in memory that both share,
   whether it was in the middle of a frame: if not, the host is told, and otherwise the connection is closed. Of one
   that was killed at its last frame nobody knows whether that was sent, but the host: it is told which call that was.
   What has been answered stays so, and no later call is concerned.
4. An operation whose host has left is ended: SIGTERM, to tidy up, and SIGKILL after a grace period. A worker between
   two calls sees for itself that the host has left, and is ended only if it does not say so.
5. What nobody uses goes: an idle worker ends after some seconds.
6. Who stops a worker holds its operation up for a moment only: those that somebody waits for are told to go on.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from atoll.agent.commands.group import group
from atoll.agent.commands.spawn import no_room
from atoll.agent.files.files import perform
from atoll.agent.files.progress import Phase, Progress
from atoll.agent.files.worker import Job, WorkerProcess, encode_job, receive_packet, send_packet
from atoll.cpu.own import OWN
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.files import AnyCall, WatchFiles
from atoll.protocol.messages import encode_message

if TYPE_CHECKING:
    import asyncio

    from atoll.agent.commands.runner import CommandRunner
    from atoll.agent.operations import Loan, Owner
    from atoll.agent.sessions.sessions import SessionRegistry

MAX_WORKERS = 32
MAX_WATCHERS = 16  # workers that are given a task without an end
IDLE_WORKERS = 4
IDLE_SECONDS = 3.0  # after those for which a worker keeps a connection
KILL_GRACE_SECONDS = 0.5
GO_ON_SECONDS = 1.0
PROCESS_NAME = b"atoll-files"

_CONTROL = 3  # where a worker has its end
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None)


class WorkerPool:
    """Workers, and operations that wait for one."""

    def __init__(self, runner: CommandRunner, sessions: SessionRegistry) -> None:
        self._runner = runner
        self._sessions = sessions
        self._loop = runner.loop
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._waiting: deque[WorkerOperation] = deque()
        self._is_watched = self._is_closing = False
        sessions.on_move = self._session_moved

    @property
    def is_in_use(self) -> bool:
        """Whether calls may be answered of which PID 1 hears nothing."""
        return self._count(endless=False) > 0

    def operation(self, call: AnyCall, owner: Owner) -> WorkerOperation:
        directory = os.fsencode(self._sessions.starting_point(call.session_id).directory)
        is_endless = isinstance(call, WatchFiles)
        return WorkerOperation(self, encode_message(call), owner, directory, is_endless=is_endless)

    def submit(self, operation: WorkerOperation) -> None:
        if operation.is_endless and self._count(endless=True) >= MAX_WATCHERS:
            message = f"the sandbox already has {MAX_WATCHERS} watches"
            raise error(ErrorCode.AGENT_BUSY, message, remedy="End some of them.", limit=MAX_WATCHERS)
        if operation.is_endless or self._count(endless=False) < MAX_WORKERS:
            self._start(operation)
        else:
            self._waiting.append(operation)  # no more than there are connections
            self._ask_back()

    def withdraw(self, operation: WorkerOperation) -> None:
        with suppress(ValueError):
            self._waiting.remove(operation)

    def close(self) -> None:
        """For rehearsals: each worker ends as soon as it has nothing to do."""
        self._is_closing = True
        self._ask_back()
        for worker in self._idle[:]:
            self._dismiss(worker)

    def _ask_back(self) -> None:
        """Have connections given back between two calls."""
        for worker in self._busy:
            worker.ask_back()

    def _session_moved(self) -> None:
        """Where a session is was told to workers before, and to those who wait for one."""
        for worker in self._busy:
            worker.progress.is_outdated = True
        for operation in self._waiting:
            operation.is_outdated = True

    def freed(self, worker: Worker) -> None:
        """The worker has done its work."""
        self._busy.discard(worker)
        if len(self._idle) < IDLE_WORKERS and not self._is_closing:
            self._idle.append(worker)
            worker.expires = self._loop.call_later(IDLE_SECONDS, self._dismiss, worker)
        else:
            worker.dismiss()
        self._start_next()

    def lost(self, worker: Worker) -> None:
        """The worker has ended."""
        self._busy.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        self._start_next()

    def _dismiss(self, worker: Worker) -> None:
        self._idle.remove(worker)
        worker.dismiss()

    def _start_next(self) -> None:
        while self._waiting and self._count(endless=False) < MAX_WORKERS:
            operation = self._waiting.popleft()
            try:
                self._start(operation)
            except AtollError as cause:
                operation.fail(cause)

    def _start(self, operation: WorkerOperation) -> None:
        worker = self._idle.pop() if self._idle else Worker(self, self._runner)
        self._busy.add(worker)
        worker.start(operation)
        if not self._is_watched:
            self._is_watched = True
            self._loop.call_later(GO_ON_SECONDS, self._keep_going)

    def _keep_going(self) -> None:
        waited_for = [worker for worker in self._busy if not worker.is_endless]
        for worker in waited_for:
            worker.signal(signal.SIGCONT)
        self._is_watched = bool(waited_for)
        if waited_for:
            self._loop.call_later(GO_ON_SECONDS, self._keep_going)

    def _count(self, *, endless: bool) -> int:
        return sum(worker.is_endless is endless for worker in self._busy)


class Worker:
    """A worker as PID 1 sees it."""

    def __init__(self, pool: WorkerPool, runner: CommandRunner) -> None:
        self.is_endless = False
        self.expires: asyncio.TimerHandle | None = None
        self._is_asked_back = self._is_ending = False
        self._pool = pool
        self._loop = runner.loop
        self._operation: WorkerOperation | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        try:
            self._memory = mmap.mmap(-1, Progress.SIZE)
            self.progress = Progress(self._memory)
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as cause:
            raise _no_worker(cause) from cause
        with theirs:
            self.pid = self._fork(runner, theirs)
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._on_packet)
        runner.reaper.watch(self.pid, self._on_exit)

    def start(self, operation: WorkerOperation) -> None:
        if self.expires:
            self.expires.cancel()
            self.expires = None
        self._operation = operation
        self._is_asked_back = False
        self.progress.begin(is_outdated=operation.is_outdated)
        self.is_endless = operation.is_endless
        operation.worker = self
        loan = operation.loan
        job = encode_job(Job(operation.call, operation.directory, loan.unread))
        with suppress(OSError):  # it has just ended, of which we shall hear
            send_packet(self._control, job, [loan.fd])

    def ask_back(self) -> None:
        """Have the connection given back as soon as it is not needed."""
        if not (self.is_endless or self._is_asked_back):
            self._is_asked_back = True
            with suppress(OSError):  # it ends just now
                send_packet(self._control, b"")

    def leave(self) -> None:
        """Its host has left, so nobody wants the result any more, if there is to be one."""
        self._operation = None
        if self.progress.phase == Phase.KEPT:
            self._kill_timer = self._loop.call_later(KILL_GRACE_SECONDS, self._end)
        else:
            self._end()

    def _end(self) -> None:
        self._is_ending = True
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        self._kill_timer = self._loop.call_later(KILL_GRACE_SECONDS, self.signal, signal.SIGKILL)

    def dismiss(self) -> None:
        """Let it end by itself, since it hears no more."""
        if self.expires:
            self.expires.cancel()
        self._loop.remove_reader(self._control)
        self._control.close()
        # Unless somebody has stopped it.
        self._kill_timer = self._loop.call_later(KILL_GRACE_SECONDS, self.signal, signal.SIGKILL)

    def _on_packet(self) -> None:
        if self._take_packet():
            self._pool.freed(self)

    def _take_packet(self) -> bool:
        """Whether it has said that it is done."""
        try:
            packet = receive_packet(self._control)
        except BlockingIOError:
            return False
        except OSError:
            packet = None
        if packet is None:  # it ends, of which we hear by other means
            self._loop.remove_reader(self._control)
        if packet is None or self._is_ending:
            return False
        operation, self._operation = self._operation, None
        self.is_endless = False
        if operation:
            operation.owner.catch_up(self.progress.calls, None)
            operation.owner.take_back(packet.payload)
        elif self._kill_timer:  # its host left while it waited for a call
            self._kill_timer.cancel()
        return True

    def _on_exit(self, exit_code: int) -> None:
        if self._control.fileno() >= 0:
            self._take_packet()  # its last words
            self._loop.remove_reader(self._control)
            self._control.close()
        for timer in (self.expires, self._kill_timer):
            if timer:
                timer.cancel()
        operation, self._operation = self._operation, None
        self._pool.lost(self)
        if operation:
            operation.worker_lost(self.progress)
        self._memory.close()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _fork(self, runner: CommandRunner, theirs: socket.socket) -> int:
        with runner.commands_oom_score():
            try:
                pid = os.fork()
            except OSError as cause:
                self._control.close()
                self._memory.close()
                raise _no_worker(cause) from cause
            if pid == 0:
                _become_worker(theirs.fileno(), self.progress)
        return pid


class WorkerOperation:
    """An operation that a worker does."""

    def __init__(self, pool: WorkerPool, call: bytes, owner: Owner, directory: bytes, *, is_endless: bool) -> None:
        self.call = call
        self.owner = owner
        self.directory = directory
        self.is_endless = is_endless
        self.is_outdated = False  # whether `directory` may be
        self._had_bad_luck = False
        self.loan: Loan
        self.worker: Worker | None = None
        self._pool = pool

    def begin(self) -> None:
        self.loan = self.owner.lend()
        self._submit()

    def _submit(self) -> None:
        try:
            self._pool.submit(self)
        except AtollError as cause:
            self.fail(cause)

    def cancel(self) -> None:
        if self.worker:
            self.worker.leave()
        else:
            self._pool.withdraw(self)

    def fail(self, cause: AtollError) -> None:
        """No worker has had it."""
        self.owner.take_back(self.loan.unread, cause)

    def worker_lost(self, progress: Progress) -> None:
        self.worker = None
        phase = progress.phase
        self.owner.catch_up(progress.calls, progress.latest)
        if phase == Phase.MID_FRAME:
            self.owner.hang_up()
        elif phase == Phase.NOT_BEGUN and not self._had_bad_luck:
            self._had_bad_luck = self.is_outdated = True  # it got a worker that was killed while it was idle
            self._submit()
        elif phase == Phase.KEPT:
            self.owner.take_back(b"")
        elif phase == Phase.ANSWERING:
            self.owner.take_back_in_doubt(_killed())
        else:
            self.owner.give_up(_killed())

    def pause(self) -> None:
        """A worker sees for itself that the connection is full."""

    def resume(self) -> None: ...

    def feed(self, data: bytes) -> bool:
        raise NotImplementedError  # who has the connection reads for himself


def _become_worker(control: int, progress: Progress) -> NoReturn:
    try:
        group.join()
        # Before anything is closed: a signal would write to whatever has the number of the agent's descriptor then.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _libc.prctl(_PR_SET_NAME, PROCESS_NAME, 0, 0, 0)
        gc.freeze()  # what is the agent's stays as it is: to collect it would close descriptors that are not its own
        os.dup2(control, _CONTROL, inheritable=False)
        # Not os.closerange, which may have been built to try every number.
        _libc.syscall(
            ctypes.c_long(OWN.calls["close_range"]), ctypes.c_uint(_CONTROL + 1), ctypes.c_uint(0xFFFFFFFF), 0
        )
        os.umask(0)
        WorkerProcess(_CONTROL, progress, perform).serve()
    finally:
        os._exit(0)


def _killed() -> AtollError:
    return error(
        ErrorCode.AGENT_LOST,
        "the process that worked on this was killed inside the sandbox",
        remedy="Something in the sandbox killed it, or memory ran out. Try again.",
    )


def _no_worker(cause: OSError) -> AtollError:
    return no_room("a file operation", cause.strerror)
