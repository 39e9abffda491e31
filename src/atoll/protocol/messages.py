"""Messages inside CALL, DONE and FAILED frames, in MessagePack."""

from __future__ import annotations

import msgspec

from atoll.protocol import files, processes, terminals
from atoll.protocol.agents import Ping
from atoll.protocol.commands import Exec, ExecShell
from atoll.protocol.errors import Context
from atoll.protocol.names import named
from atoll.protocol.sessions import (
    CreateSession,
    DeleteSession,
    ListSessions,
    SetEnvironment,
)

_SHOWN = 200  # characters of what a caller may have made long, in the context of an error

AnyCall = (Exec | ExecShell | CreateSession | DeleteSession | ListSessions | SetEnvironment | Ping) | (
    files.AnyCall | processes.AnyCall | terminals.AnyCall
)


def subject(call: AnyCall) -> Context:
    """What a call is about, for the errors it meets."""
    match call:
        case files.MoveFile() | files.CopyFile():
            return {**named(source=call.source, target=call.target)}
        case files.PathCall():
            return {**named(path=call.path)}
        case Exec(argv=[command, *_]):
            return {"command": command[:_SHOWN], "session_id": call.session_id}
        case ExecShell() | CreateSession() | DeleteSession():
            return {"session_id": call.session_id[:_SHOWN]}
        case processes.StartProcess() | processes.ProcessCall() if call.process_id is not None:
            return {"process_id": call.process_id[:_SHOWN]}
        case terminals.TerminalCall():
            return {"terminal_id": call.terminal_id[:_SHOWN]}
    return {}


_encoder = msgspec.msgpack.Encoder()
_call_decoder: msgspec.msgpack.Decoder[AnyCall] = msgspec.msgpack.Decoder(AnyCall)

encode_message = _encoder.encode
decode_call = _call_decoder.decode
