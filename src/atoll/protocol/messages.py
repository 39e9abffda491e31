"""Messages inside CALL, DONE and FAILED frames, in MessagePack."""

from __future__ import annotations

import msgspec

from atoll.protocol import files, processes, terminals
from atoll.protocol.agents import Ping, Pong
from atoll.protocol.commands import Exec, ExecDone, ExecShell
from atoll.protocol.errors import Context, ErrorBody
from atoll.protocol.names import named
from atoll.protocol.sessions import (
    DEFAULT_SESSION,
    CreateSession,
    DeleteSession,
    ListSessions,
    SessionInfo,
    Sessions,
    SetEnvironment,
)

MAX_ERROR = 64 * 1024  # bytes of an error: a message, a remedy, the end of a log
_SHOWN = 200  # characters of what a caller may have made long, in the context of an error

Call = (Exec | ExecShell | CreateSession | DeleteSession | ListSessions | SetEnvironment | Ping) | (
    files.Call | processes.Call | terminals.Call
)
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
_error_decoder = msgspec.msgpack.Decoder(ErrorBody)

encode_message = _encoder.encode
decode_call = _call_decoder.decode


def decode_error(message: bytes) -> ErrorBody:
    if len(message) > MAX_ERROR:
        raise msgspec.ValidationError(f"it has {len(message)} bytes; an error has {MAX_ERROR} at most")
    return _error_decoder.decode(message)
