"""What travels inside CALL, DONE and FAILED frames, defined once for both sides."""

from __future__ import annotations

from typing import Annotated

import msgspec

from atoll.protocol import files, processes, terminals
from atoll.protocol.durations import Moment
from atoll.protocol.errors import Context, ErrorBody
from atoll.protocol.ids import SaidId
from atoll.protocol.names import named
from atoll.protocol.said import Count, Directory, Duration, ExitCode

PROTOCOL_VERSION = 1
TIMED_OUT_EXIT_CODE = 124  # as coreutils' timeout does
DEFAULT_SESSION = "default"
DEFAULT_DIRECTORY = "/workspace"
MAX_ERROR = 64 * 1024  # bytes of an error: a message, a remedy, the end of a log
_SHOWN = 200  # characters of what a caller may have made long, in the context of an error


class Exec(msgspec.Struct, frozen=True, kw_only=True, tag="exec", forbid_unknown_fields=True, omit_defaults=True):
    """Run a program, with no shell in between. In a session it waits for its turn and starts in its directory.

    `env` is added to the sandbox's own variables; None takes one away. With `stdin` the host sends INPUT frames,
    without it the program reads end of file at once. Past `max_output` bytes a stream is read on and dropped.
    """

    argv: list[str]
    session_id: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    stdin: bool = False
    timeout: float | None = None
    max_output: int | None = None


class ExecShell(
    msgspec.Struct, frozen=True, kw_only=True, tag="exec_shell", forbid_unknown_fields=True, omit_defaults=True
):
    """Run a command in the persistent shell of a session, after those that were asked for before.

    `cwd` and `env` hold for this command alone; None takes a variable away. The rest is as in Exec.
    """

    command: str
    session_id: str = DEFAULT_SESSION
    cwd: str | None = None
    env: dict[str, str | None] = {}
    stdin: bool = False
    timeout: float | None = None
    max_output: int | None = None


class CreateSession(
    msgspec.Struct, frozen=True, kw_only=True, tag="create_session", forbid_unknown_fields=True, omit_defaults=True
):
    """Another shell, with its own directory, variables, functions and options. Answered with SessionInfo."""

    session_id: str
    cwd: str = DEFAULT_DIRECTORY
    env: dict[str, str | None] = {}


class DeleteSession(msgspec.Struct, frozen=True, kw_only=True, tag="delete_session", forbid_unknown_fields=True):
    """End its shell and what runs in it. Background processes live on. Answered with SessionInfo."""

    session_id: str


class ListSessions(msgspec.Struct, frozen=True, kw_only=True, tag="list_sessions", forbid_unknown_fields=True):
    """Answered with Sessions."""


class SetEnvironment(msgspec.Struct, frozen=True, kw_only=True, tag="set_environment", forbid_unknown_fields=True):
    """Variables for every command and every session from now on; None takes one away. Answered with Sessions."""

    env: dict[str, str | None]


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping", forbid_unknown_fields=True, omit_defaults=True):
    """Ask whether the agent answers, and which it is."""


Call = (Exec | ExecShell | CreateSession | DeleteSession | ListSessions | SetEnvironment | Ping) | (
    files.Call | processes.Call | terminals.Call
)


class ExecDone(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. A program killed by a signal has exit code 128 + signal, as in a shell."""

    exit_code: ExitCode
    duration: Duration
    timed_out: bool = False
    truncated: bool = False
    session_ended: bool = False  # the shell is gone, as after `exit`; the next command gets a new one
    state_lost: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # of how many commands before this one, answered


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: SaidId
    cwd: Directory
    created_at: Moment
    commands_waiting: Count  # with the one that runs


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Annotated[list[SessionInfo], msgspec.Meta(max_length=64)]


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    protocol_version: Count
    commands_running: Count


Result = ExecDone | SessionInfo | Sessions | Pong | files.Result | processes.Result | terminals.Result


def subject(call: Call) -> Context:
    """What a call is about, for the errors it meets."""
    match call:
        case files.MoveFile(source=source, target=target) | files.CopyFile(source=source, target=target):
            return {**named(source=source, target=target)}
        case files.FileCall():
            return {**named(path=call.path)}
        case Exec(argv=[command, *_]):
            return {"command": command[:_SHOWN], "session_id": call.session_id}
        case ExecShell() | CreateSession() | DeleteSession():
            return {"session_id": call.session_id[:_SHOWN]}
        case processes.ProcessCall():
            process_id = getattr(call, "process_id", None)
            return {} if process_id is None else {"process_id": process_id[:_SHOWN]}
        case terminals.TerminalCall():
            return {"terminal_id": call.terminal_id[:_SHOWN]}
    return {}


class _Queued(msgspec.Struct):
    """Of any call, what decides in whose queue it stands."""

    type: str
    session_id: str | None = None


def session_of(message: bytes) -> str | None:
    """The session in which this call waits for its turn, if it is a command in one."""
    try:
        call = _queued_decoder.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # its agent will say so
    if call.type == "exec_shell":
        return call.session_id or DEFAULT_SESSION
    return call.session_id if call.type == "exec" else None


_encoder = msgspec.msgpack.Encoder()
_queued_decoder = msgspec.msgpack.Decoder(_Queued)
_call_decoder: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
_exec_done_decoder = msgspec.msgpack.Decoder(ExecDone)
_session_decoder = msgspec.msgpack.Decoder(SessionInfo)
_sessions_decoder = msgspec.msgpack.Decoder(Sessions)
_pong_decoder = msgspec.msgpack.Decoder(Pong)
_error_decoder = msgspec.msgpack.Decoder(ErrorBody)

encode_message = _encoder.encode
decode_call = _call_decoder.decode
decode_exec_done = _exec_done_decoder.decode
decode_session = _session_decoder.decode
decode_sessions = _sessions_decoder.decode
decode_pong = _pong_decoder.decode


def decode_error(message: bytes) -> ErrorBody:
    if len(message) > MAX_ERROR:
        raise msgspec.ValidationError(f"it has {len(message)} bytes; an error has {MAX_ERROR} at most")
    return _error_decoder.decode(message)
