# Generated from client/processes.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Background processes: started, watched, read, waited for, ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, SupportsIndex

import msgspec

from atoll.client_sync.commands import Environment
from atoll.client_sync.handles import Handle
from atoll.client_sync.plumbing.feeds import Feed
from atoll.client_sync.plumbing.remote_sandbox import Frames, RemoteSandbox
from atoll.protocol.arguments import (
    Directory,
    Word,
    check_command,
    check_directory,
    check_flag,
    check_number_seen,
    check_variables,
    to_whole,
    wrong_argument,
)
from atoll.protocol.durations import Duration, parse_duration
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import Frame
from atoll.protocol.process_log import Dropped, Exited, LogEvent, LogEvents, LogFold, WholeLog, Written
from atoll.protocol.processes import (
    OK_STATUS,
    PORT_SECONDS,
    READY_BYTES,
    CleanUpProcesses,
    GetProcess,
    KillAllProcesses,
    KillProcess,
    ListProcesses,
    PortMode,
    ProcessInfo,
    ProcessStatus,
    RestartPolicy,
    StartProcess,
    StreamProcessLog,
    WaitForExit,
    WaitForPort,
    check_port,
    check_wait,
    exited_early,
    last_lines,
    not_ready,
    parse_process_id,
    parse_restart,
    parse_signal,
)
from atoll.values.processes import LogMatch, LogSearch, ProcessEvent, ProcessLogs

StatusGiven = SupportsIndex | Sequence[SupportsIndex]
Restart = RestartPolicy | Literal["on-failure", "always"]


class Processes:
    """The background processes of a sandbox, for it or a session. They belong to the sandbox."""

    _sandbox: RemoteSandbox
    _session_id: str

    def start_process(
        self,
        command: str | Sequence[Word],
        *,
        process_id: str | None = None,
        cwd: Directory | None = None,
        env: Environment | None = None,
        timeout: Duration | None = None,
        restart: Restart | None = None,
    ) -> Process:
        """Start a process that goes on in the background, also when this program, the session or the server is gone.

        `command` is a string for a shell of its own, or a list of words that no shell touches. It starts in the
        session's directory and with its variables, as its last finished command left them. `process_id` is a name of
        your choice. After `timeout` it is killed. `restart="on-failure"`
        or `"always"` starts it again when it has ended, after a pause that grows.
        """
        call = StartProcess(
            command=check_command(command),
            process_id=None if process_id is None else parse_process_id(process_id),
            session_id=self._session_id,
            cwd=check_directory(cwd),
            env=check_variables(env),
            timeout=_seconds(timeout),
            restart=parse_restart(restart),
        )
        started = self._sandbox.ask(call)
        return Process(self._sandbox, msgspec.structs.replace(started, command=call.command))

    spawn = start_process

    def list_processes(self) -> list[Process]:
        """The processes of the sandbox in the order of their start: those that run, and the latest that are over."""
        found = self._sandbox.ask(ListProcesses())
        return [Process(self._sandbox, info) for info in found.processes]

    def get_process(self, id: str) -> Process:
        """The process with this id. PROCESS_NOT_FOUND if there is none."""
        return Process(self._sandbox, self._sandbox.ask(GetProcess(process_id=parse_process_id(id))))

    def is_process_running(self, id: str) -> bool:
        """Also while it waits to be started again. False for one that nobody knows."""
        try:
            info = self._sandbox.ask(GetProcess(process_id=parse_process_id(id)))
        except AtollError as problem:
            if problem.code is ErrorCode.PROCESS_NOT_FOUND:
                return False
            raise
        return not info.status.is_over

    def kill_process(self, id: str, signal: str | SupportsIndex = "SIGTERM") -> Process:
        """Send a signal to a process and all it has started. One that is over is no error.

        SIGTERM is followed by SIGKILL after five seconds. With these two it returns when the process has ended.
        """
        call = KillProcess(process_id=parse_process_id(id), signal=parse_signal(signal))
        return Process(self._sandbox, self._sandbox.ask(call))

    def kill_all_processes(self) -> int:
        """End all that run, as `kill_process` does; how many there were."""
        return (self._sandbox.ask(KillAllProcesses())).count

    def cleanup_completed_processes(self) -> int:
        """Forget those that are over, with their logs; how many there were."""
        return (self._sandbox.ask(CleanUpProcesses())).count

    def get_process_logs(self, id: str) -> ProcessLogs:
        """The output that is kept of a process: the latest megabytes."""
        return _read_logs(self._sandbox, parse_process_id(id))

    def stream_process_logs(self, id: str, follow: bool = True, since: SupportsIndex | None = None) -> ProcessStream:
        """The output that is kept of a process, then what comes, as it comes:

            for event in sandbox.stream_process_logs("server"):
                print(event.data, end="")

        Ends when the process is over and nothing it started can write any more, or without `follow` at once. With
        `since=event.number` it goes on after that event: nothing is lost, nothing comes twice. A reader who is slower
        than the log is long gets a `dropped` event, and never slows the process.
        """
        return _stream(self._sandbox, id, follow, since)


class Process(Handle):
    """A background process as it was when somebody asked; `refresh()` asks again.

    Two of the same id are equal, also if it runs in one and is over in the other.
    """

    def __init__(self, sandbox: RemoteSandbox, info: ProcessInfo) -> None:
        self._sandbox = sandbox
        self._info = info

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def pid(self) -> int:
        """Inside the sandbox; of its latest start."""
        return self._info.pid

    @property
    def command(self) -> str | list[str]:
        """The line or the words that were started. In a list of processes they are cut short if they are long."""
        return self._info.command

    @property
    def status(self) -> ProcessStatus:
        """starting, running, completed (exit code 0), failed, killed (by a signal or its time-out), or error."""
        return self._info.status

    @property
    def start_time(self) -> datetime:
        return self._info.start_time

    @property
    def end_time(self) -> datetime | None:
        return self._info.end_time

    @property
    def exit_code(self) -> int | None:
        """128 + signal if that ended it; 124 after its time-out."""
        return self._info.exit_code

    @property
    def session_id(self) -> str:
        return self._info.session_id

    @property
    def restart(self) -> RestartPolicy | None:
        return self._info.restart

    @property
    def restarts(self) -> int:
        return self._info.restarts

    @property
    def timed_out(self) -> bool:
        return self._info.timed_out

    @property
    def error(self) -> str | None:
        """The reason why it could not be started again."""
        return self._info.error

    @property
    def info(self) -> ProcessInfo:
        """The facts above, as one value."""
        return self._info

    def to_dict(self) -> dict[str, Any]:
        """The facts above, as `json.dumps` takes them."""
        return self._info.to_dict()

    def refresh(self) -> Process:
        """The process as it is now."""
        return Process(self._sandbox, self._sandbox.ask(GetProcess(process_id=self.id)))

    def kill(self, signal: str | SupportsIndex = "SIGTERM") -> Process:
        """Does as `kill_process`."""
        call = KillProcess(process_id=self.id, signal=parse_signal(signal))
        return Process(self._sandbox, self._sandbox.ask(call))

    def logs(self) -> ProcessLogs:
        """Does as `get_process_logs`."""
        return _read_logs(self._sandbox, self.id)

    def stream_logs(self, follow: bool = True, since: SupportsIndex | None = None) -> ProcessStream:
        """Does as `stream_process_logs`."""
        return _stream(self._sandbox, self.id, follow, since)

    def wait_for_log(self, wanted: str | re.Pattern[str], *, timeout: Duration | None = None) -> LogMatch:
        """Wait until something is in the log; what is there already counts.

        A string is found wherever it is, a compiled pattern is tried on each line. PROCESS_READY_TIMEOUT, which is a
        TimeoutError, when the time is up; PROCESS_EXITED_BEFORE_READY if the process ended without it.
        """
        search = LogSearch(wanted)
        seconds = _seconds(timeout)
        shown = repr(wanted if isinstance(wanted, str) else wanted.pattern)
        tail = b""
        with ProcessStream(self._sandbox, StreamProcessLog(process_id=self.id, timeout=seconds)) as events:
            for event in events:
                if event.type == "dropped":
                    search.skip()
                elif event.data_bytes:
                    tail = (tail + event.data_bytes)[-READY_BYTES:]
                    if found := search.feed(event.type, event.data):
                        return found
        if found := search.finish():
            return found
        process = events.process
        assert process, "a stream that came to its end has said how the process is"
        condition = f"write {shown:.200}"
        if process.status.is_over:
            raise exited_early(process, condition, last_lines(tail))
        raise not_ready(process, condition, seconds, last_lines(tail))

    def wait_for_port(
        self,
        port: SupportsIndex,
        *,
        mode: PortMode | Literal["http", "tcp"] = PortMode.HTTP,
        path: str = "/",
        status: StatusGiven = OK_STATUS,
        timeout: Duration | None = PORT_SECONDS,
    ) -> Process:
        """Wait until something inside takes connections on `port`, and with mode="http" answers GET `path`.

        `status` is the one that counts, or the lowest and the highest. PROCESS_READY_TIMEOUT, which is a TimeoutError,
        when the time is up, which is never with None; it says what was there at last. PROCESS_EXITED_BEFORE_READY if
        the process and all it started ended before.
        """
        lowest, highest = _checked_status(status)
        if not isinstance(path, str):
            raise wrong_argument("path", path, "is not a path of a URL", "Give text that begins with /.")
        call = WaitForPort(
            process_id=self.id,
            port=check_port(port),
            mode=_checked_mode(mode),
            path=path,
            min_status=lowest,
            max_status=highest,
            timeout=_seconds(timeout),
        )
        return Process(self._sandbox, self._sandbox.ask(check_wait(call)))

    def wait_for_exit(self, *, timeout: Duration | None = None) -> Process:
        """The process once it is over, for good if it is one that restarts. PROCESS_EXIT_TIMEOUT if the time is up."""
        call = WaitForExit(process_id=self.id, timeout=_seconds(timeout))
        return Process(self._sandbox, self._sandbox.ask(call))

    def __repr__(self) -> str:
        code = "" if self.exit_code is None else f", exit_code={self.exit_code}"
        return f"<Process {self.id!r} {self.status.value}, pid={self.pid}{code}>"


class ProcessStream(Feed[ProcessEvent]):
    """The events of a log. Dropping it, or leaving its `with` block, ends the reading and not the process."""

    def __init__(self, sandbox: RemoteSandbox, call: StreamProcessLog) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._call = call
        self._frames: Frames[ProcessInfo] | None = None
        self._fold, self._events = LogFold(call), LogEvents()
        self.process: ProcessInfo | None = None  # as it is at the end of the stream

    def __repr__(self) -> str:
        return f"<ProcessStream of {self._call.process_id!r}>"

    def _receive(self) -> None:
        if self._frames is None:
            self._frames = self._sandbox.call(self._call, scope=self._scope)
        self._take(self._frames.next())

    def _take(self, frame: Frame) -> None:
        if part := self._fold.take(frame):
            self._items.extend(map(_to_event, self._events.of(part)))
        else:
            self.process = self._fold.process
            self._is_over = True


def _to_event(event: LogEvent) -> ProcessEvent:
    match event:
        case Dropped(number, missing):
            return ProcessEvent(type="dropped", number=number, timestamp=datetime.now(UTC), dropped=missing)
        case Exited(number, process):
            when = process.end_time or datetime.now(UTC)
            return ProcessEvent(
                type="exit", number=number, timestamp=when, exit_code=process.exit_code, status=process.status
            )
        case Written(number, stream, time, data, text):
            when = datetime.fromtimestamp(time, UTC)
            return ProcessEvent(type=stream.value, number=number, timestamp=when, data_bytes=data, text_bytes=text)


def _read_logs(sandbox: RemoteSandbox, process_id: str) -> ProcessLogs:
    call = StreamProcessLog(process_id=process_id, follow=False)
    fold, log = LogFold(call), WholeLog()
    frames = sandbox.call(call)
    try:
        while part := fold.take(frames.next()):
            log.add(part)
    finally:
        frames.close()
    return ProcessLogs(stdout_bytes=log.stdout, stderr_bytes=log.stderr, number=log.number, dropped=log.dropped)


def _stream(sandbox: RemoteSandbox, process_id: str, follow: bool, since: SupportsIndex | None) -> ProcessStream:
    number = check_number_seen(since)
    call = StreamProcessLog(process_id=parse_process_id(process_id), since=number, follow=check_flag(follow, "follow"))
    return ProcessStream(sandbox, call)


def _checked_status(status: StatusGiven) -> tuple[int, int]:
    """The lowest and the highest that count."""
    given = status if isinstance(status, Sequence) else (status, status)
    bounds = [number for bound in given if (number := to_whole(bound)) is not None]
    if len(given) != 2 or len(bounds) != 2:
        raise wrong_argument("status", status, "is no HTTP status", remedy="Give one, or the lowest and the highest.")
    return bounds[0], bounds[1]


def _checked_mode(mode: PortMode | str) -> PortMode:
    try:
        return PortMode(mode)
    except ValueError as cause:
        raise wrong_argument("mode", mode, "is no way to ask a port", remedy='Use "http" or "tcp".') from cause


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else parse_duration(timeout)
