"""Background processes: what a host asks of an agent, and what both say about them.

A process's output is its log. Everything in it has a number: how many bytes were logged up to its end, by both streams
together; the end of the process counts as one of them. So who has seen number N goes on with `since=N`, loses nothing,
gets nothing twice, and is told how many bytes are gone if the log did not keep them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from atoll.protocol.arguments import MAX_NUMBER, to_whole, wrong_argument
from atoll.protocol.calls import MAX_SHOWN, Call
from atoll.protocol.durations import Moment, in_words
from atoll.protocol.errors import AtollError, Context, ErrorCode, as_id, error, shown
from atoll.protocol.ids import SaidId
from atoll.protocol.plain import Plain
from atoll.protocol.said import Count, ExitCode, Pid, Text, UnixTime

MAX_PROCESS_ID = 63
MAX_COMMAND_SHOWN = 1000  # bytes
MAX_LISTED = 10_000  # processes, of which an agent knows some 1,500
MAX_ENTRIES = 6_000  # of a part of a log, which is less than 80 KiB with 14 bytes at least for each
MAX_COMMANDS_LISTED = 250_000  # bytes of all commands in a list, which is one frame; and of all errors
OK_STATUS = (200, 399)
MAX_WAIT_PATH = 8192
PORT_SECONDS = 60.0  # for which a port is waited for, if nothing else is said
READY_LINES, READY_BYTES = 20, 4096  # of a log, in the error about a process that is not ready
_PROCESS_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SIGNALS = {name: int(number) for name, number in signal.Signals.__members__.items()}


class ProcessStatus(StrEnum):
    """`killed`: by a signal, by `kill_process`, or at its time-out. `error`: it could not be started again."""

    STARTING = "starting"  # also while it waits to be started again
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    ERROR = "error"

    @property
    def is_over(self) -> bool:
        return self not in (ProcessStatus.STARTING, ProcessStatus.RUNNING)


class RestartPolicy(StrEnum):
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class PortMode(StrEnum):
    HTTP = "http"
    TCP = "tcp"


class ProcessInfo(Plain, frozen=True, kw_only=True, omit_defaults=True):
    """A background process. `command` is cut short if it is long; `pid` is the one inside, of its latest start."""

    id: SaidId
    pid: Pid
    command: Text | Annotated[list[Text], msgspec.Meta(max_length=MAX_COMMAND_SHOWN)]
    status: ProcessStatus
    start_time: Moment
    session_id: SaidId
    end_time: Moment | None = None
    exit_code: ExitCode | None = None
    restart: RestartPolicy | None = None
    restarts: Count = 0
    timed_out: bool = False
    error: Text | None = None


class ProcessList(msgspec.Struct, frozen=True, kw_only=True):
    processes: Annotated[list[ProcessInfo], msgspec.Meta(max_length=MAX_LISTED)]


class ProcessCount(msgspec.Struct, frozen=True, kw_only=True):
    count: Count


class ProcessCall(Call[ProcessInfo], frozen=True, kw_only=True):
    """A call about one process."""

    asks = True

    process_id: str

    @property
    def subject(self) -> Context:
        return {"process_id": self.process_id[:MAX_SHOWN]}


class StartProcess(Call[ProcessInfo], frozen=True, kw_only=True, tag="start_process"):
    """A start of a process that belongs to nobody: it lives on when its caller, its session or the server is gone.

    `command` is a line for a shell of its own, or words that no shell touches. It starts in the session's directory
    and with its variables, as its last command left them. `timeout` counts from the first start.
    """

    command: str | list[str]
    process_id: str | None = None
    session_id: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    timeout: float | None = None
    restart: RestartPolicy | None = None

    @property
    def subject(self) -> Context:
        return {} if self.process_id is None else {"process_id": self.process_id[:MAX_SHOWN]}


class ListProcesses(Call[ProcessList], frozen=True, kw_only=True, tag="list_processes"):
    """The processes there are, in the order of their start."""

    changes: ClassVar[bool] = False

    asks = True


class GetProcess(ProcessCall, frozen=True, kw_only=True, tag="get_process"):
    """A process, as it is now."""

    changes: ClassVar[bool] = False


class KillProcess(ProcessCall, frozen=True, kw_only=True, tag="kill_process"):
    """Send a signal to the whole tree.

    SIGTERM is followed by SIGKILL after a grace period; SIGTERM and SIGKILL are answered when the process has ended.
    They, SIGINT and SIGQUIT end it for good, also if it would be started again otherwise.
    """

    signal: int = int(signal.SIGTERM)


class KillAllProcesses(Call[ProcessCount], frozen=True, kw_only=True, tag="kill_all_processes"):
    """SIGTERM to all that run, and so on; answered when they have ended."""

    asks = True


class CleanUpProcesses(Call[ProcessCount], frozen=True, kw_only=True, tag="clean_up_processes"):
    """Forget those that are over, with their logs."""

    asks = True


class StreamProcessLog(ProcessCall, frozen=True, kw_only=True, tag="stream_process_log"):
    """EVENT LogPart, as many as it takes.

    First what is kept of the log after `since`. With `follow` then what comes, until the process is over and nobody is
    left who could write, or for `timeout` seconds. A reader who is slow misses what is no longer kept, and is told.
    """

    changes: ClassVar[bool] = False

    since: int = 0
    follow: bool = True
    timeout: float | None = None

    @property
    def patience(self) -> float | None:
        return self.timeout


class WaitForPort(ProcessCall, frozen=True, kw_only=True, tag="wait_for_port"):
    """Answered once something inside takes connections on `port`, and for HTTP answers with such a status.

    PROCESS_READY_TIMEOUT after `timeout` seconds; PROCESS_EXITED_BEFORE_READY if the process and all it started ended.
    """

    changes: ClassVar[bool] = False

    port: int
    mode: PortMode = PortMode.HTTP
    path: str = "/"
    min_status: int = OK_STATUS[0]
    max_status: int = OK_STATUS[1]
    timeout: float | None = None

    @property
    def patience(self) -> float | None:
        return self.timeout


class WaitForExit(ProcessCall, frozen=True, kw_only=True, tag="wait_for_exit"):
    """Answered once the process is over; PROCESS_EXIT_TIMEOUT after `timeout` seconds."""

    changes: ClassVar[bool] = False

    timeout: float | None = None

    @property
    def patience(self) -> float | None:
        return self.timeout


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The bytes read at once from one stream.

    There may be thousands in a frame, so their fields have no names in it, and the collector does not go through them:
    they refer to nothing that could refer to them. By their number alone they made it go through everything.
    """

    number: Count
    time: UnixTime
    stream: OutputStream
    data: Annotated[bytes, msgspec.Meta(min_length=1)]  # an empty one would cost nothing to send, and be read for ever


class LogPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """First `dropped` bytes that are not kept any more, then `entries`. `number` is where the log goes on after them.

    `ended` comes once, where the process ended, in a part of its own; what it left running may write more.
    """

    number: Count
    dropped: Count = 0
    entries: Annotated[list[LogEntry], msgspec.Meta(max_length=MAX_ENTRIES)] = []
    ended: ProcessInfo | None = None


def parse_process_id(text: object) -> str:
    if not isinstance(text, str) or not _PROCESS_ID.fullmatch(text):
        raise error(
            ErrorCode.INVALID_PROCESS_ID,
            f"{shown(text, 200)} is not a process id",
            remedy=f"Use 1 to {MAX_PROCESS_ID} letters, digits, dots, underscores, hyphens; a letter or digit first.",
            process_id=as_id(text),
        )
    return text


def parse_signal(value: object) -> int:
    """A signal's number, from that or a name such as "SIGTERM" or "TERM"."""
    number = to_whole(value)
    if isinstance(value, str):
        name = value.upper()
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 4 else None
        number = number or _SIGNALS.get(name) or _SIGNALS.get(f"SIG{name}")
    if number is None or not 1 <= number < signal.NSIG:
        remedy = 'Give a name such as "SIGTERM" or "SIGHUP", or its number.'
        message = f"{shown(value)} is not a signal"
        raise error(ErrorCode.INVALID_SIGNAL, message, remedy=remedy, signal=as_id(value))
    return number


def parse_restart(value: object) -> RestartPolicy | None:
    if value is None:
        return None
    try:
        return RestartPolicy(value)  # type: ignore[arg-type]
    except ValueError as cause:
        remedy = 'Give "on-failure", "always", or None for never.'
        raise wrong_argument("restart", value, "is not a rule for restarting", remedy=remedy) from cause


def check_port(value: object) -> int:
    port = to_whole(value)
    if port is None or not 1 <= port <= 65535:
        raise error(
            ErrorCode.INVALID_PORT,
            f"{shown(value, 50)} is not a port",
            remedy="Give a number from 1 to 65535.",
            port=port if port is not None and abs(port) <= MAX_NUMBER else as_id(value),
        )
    return port


def check_wait(call: WaitForPort) -> WaitForPort:
    """Raise for a port, path or status that there is not."""
    check_port(call.port)
    if not call.path.startswith("/") or len(call.path) > MAX_WAIT_PATH or not re.fullmatch(r"[!-~]+", call.path):
        remedy = "It begins with / and has no spaces or letters outside ASCII; encode those as %20 and so on."
        raise wrong_argument("path", call.path, "is not a path of a URL", remedy=remedy)
    if not 100 <= call.min_status <= call.max_status <= 599:
        remedy = "Give one from 100 to 599, or the lowest and highest."
        raise wrong_argument(
            "status", (call.min_status, call.max_status), "is no range of HTTP statuses", remedy=remedy
        )
    return call


def shorten_all(processes: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Processes as a list shows them: the more there are, the less is shown of each command."""
    length = min(MAX_COMMAND_SHOWN, MAX_COMMANDS_LISTED // max(1, len(processes)))
    return [
        msgspec.structs.replace(
            info, command=shorten(info.command, length), error=info.error and _cut(info.error, length)
        )
        for info in processes
    ]


def shorten(command: str | Sequence[str], length: int = MAX_COMMAND_SHOWN) -> str | list[str]:
    """`length` bytes of it, and a mark if that is not all."""
    if isinstance(command, str):
        return _cut(command, length)
    shown: list[str] = []
    left = length
    for word in command:
        if left <= 0:
            return [*shown, "…"]
        shown.append(_cut(word, left))
        left -= len(word.encode()) + 8  # an empty word has its price too
    return shown


def _cut(text: str, length: int) -> str:
    data = text.encode()
    return text if len(data) <= length else data[:length].decode(errors="ignore") + "…"


def last_lines(data: bytes) -> str:
    """The end of a log, as an error shows it."""
    text = data[-READY_BYTES:].decode(errors="replace")
    return "\n".join(text.splitlines()[-READY_LINES:])


def not_ready(
    process: ProcessInfo, condition: str, seconds: float | None, log: str, seen: str | None = None
) -> AtollError:
    """Without a limit in `seconds` only an agent that misbehaves ends a wait. `seen` is what was there at last."""
    when = "before its agent ended the wait" if seconds is None else f"within {in_words(seconds)}"
    return error(
        ErrorCode.PROCESS_READY_TIMEOUT,
        f"process {process.id!r} did not {condition} {when}{f': at last {seen}' if seen else ''}{_as_ending(log)}",
        remedy="Look at its log, or give it more time with timeout=.",
        process_id=process.id,
        condition=condition,
        timeout=seconds,
        log=log,
        **({} if seen is None else {"seen": seen}),
    )


def exited_early(process: ProcessInfo, condition: str, log: str) -> AtollError:
    code = f"with exit code {process.exit_code}" if process.error is None else f"({process.error})"
    return error(
        ErrorCode.PROCESS_EXITED_BEFORE_READY,
        f"process {process.id!r} ended {code} before it could {condition}{_as_ending(log)}",
        remedy="Its log says why, as far as it wrote something.",
        process_id=process.id,
        condition=condition,
        exit_code=process.exit_code,
        log=log,
    )


def _as_ending(log: str) -> str:
    return f"; its log ends:\n{log}" if log else "; its log is empty"
