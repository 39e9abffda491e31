"""A command as JSON has it, for clients that are not the SDK."""

from __future__ import annotations

from datetime import datetime

import msgspec


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`command` is for the session's shell, or a list of words that no shell touches.

    `max_output` bounds each of the two streams in bytes; what is beyond is dropped, and `truncated` says so. A JSON
    answer holds 1 MiB of each unless this says otherwise, and 8 MiB at most; a stream of events has no bound itself.
    """

    command: str | list[str]
    session_id: str = "default"
    cwd: str | None = None
    env: dict[str, str | None] = {}
    timeout: float | str | None = None
    stdin: str | None = None
    stdin_base64: str | None = None
    max_output: int | None = None


class ExecResultBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Text, with U+FFFD where it was none; the exact bytes then come along in base64."""

    success: bool
    exit_code: int
    stdout: str
    stderr: str
    command: str | list[str]
    duration: float
    timestamp: datetime
    session_id: str
    timed_out: bool = False
    truncated: bool = False
    session_ended: bool = False
    state_lost: int = 0
    stdout_base64: str | None = None
    stderr_base64: str | None = None


class ExecEventBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a stream: start, stdout, stderr, complete or error.

    `data` has U+FFFD where there was no text; the exact bytes of this event then come along in `data_base64`.
    """

    type: str
    timestamp: datetime
    data: str | None = None
    data_base64: str | None = None
    exit_code: int | None = None
    duration: float | None = None
    timed_out: bool = False
    truncated: bool = False
    session_ended: bool = False
    state_lost: int = 0
    code: str | None = None
    message: str | None = None
    remedy: str | None = None
