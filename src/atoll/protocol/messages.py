"""What travels inside CALL, DONE and FAILED frames, defined once for both sides."""

from __future__ import annotations

import msgspec

from atoll.protocol.errors import ErrorBody

PROTOCOL_VERSION = 1
TIMED_OUT_EXIT_CODE = 124  # as coreutils' timeout does


class Exec(msgspec.Struct, frozen=True, kw_only=True, tag="exec", forbid_unknown_fields=True, omit_defaults=True):
    """Run a program, with no shell in between.

    `env` is added to the sandbox's own variables; None takes one away. With `stdin` the host sends INPUT frames,
    without it the program reads end of file at once. Past `max_output` bytes a stream is read on and dropped.
    """

    argv: list[str]
    cwd: str | None = None
    env: dict[str, str | None] = {}
    stdin: bool = False
    timeout: float | None = None
    max_output: int | None = None


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping", forbid_unknown_fields=True, omit_defaults=True):
    """Ask whether the agent answers, and which it is."""


Call = Exec | Ping


class ExecDone(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. A program killed by a signal has exit code 128 + signal, as in a shell."""

    exit_code: int
    duration: float
    timed_out: bool = False
    truncated: bool = False


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    protocol_version: int
    commands_running: int


_encoder = msgspec.msgpack.Encoder()
_call_decoder: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
_exec_done_decoder = msgspec.msgpack.Decoder(ExecDone)
_pong_decoder = msgspec.msgpack.Decoder(Pong)
_error_decoder = msgspec.msgpack.Decoder(ErrorBody)

encode_message = _encoder.encode
decode_call = _call_decoder.decode
decode_exec_done = _exec_done_decoder.decode
decode_pong = _pong_decoder.decode
decode_error = _error_decoder.decode
