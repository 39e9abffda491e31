"""Commands, as the SDK hands them out: results and events."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Literal

from atoll.protocol.errors import AtollError
from atoll.protocol.plain import Plain

SHOWN = 60  # characters of output in a repr


class ExecResult(Plain, frozen=True, kw_only=True, dict=True):
    """A command that ended. A non-zero exit code is a result, not an exception.

    `stdout` and `stderr` are text, with U+FFFD where the bytes are not UTF-8; `stdout_bytes` and `stderr_bytes` are
    exact. `truncated` says that output beyond `max_output` was dropped, `session_ended` that the shell is gone, as
    after `exit`. After a time-out `timed_out` is set and the exit code is 124. `state_lost` is of how many commands
    before this one the directory, variables and functions are lost: their shell was killed before it had saved them.
    """

    _PLAIN = (
        "success",
        "exit_code",
        "stdout",
        "stderr",
        "command",
        "duration",
        "timestamp",
        "session_id",
        "session_ended",
        "timed_out",
        "truncated",
        "state_lost",
    )

    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    command: str | list[str]
    duration: float
    timestamp: datetime
    session_id: str
    session_ended: bool = False
    timed_out: bool = False
    truncated: bool = False
    state_lost: int = 0

    @property
    def success(self) -> bool:
        return self.exit_code == 0

    @cached_property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @cached_property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    def __repr__(self) -> str:
        parts = [f"exit_code={self.exit_code}", f"stdout={beginning(self.stdout)}"]
        if self.stderr_bytes:
            parts.append(f"stderr={beginning(self.stderr)}")
        parts += [f"{name}=True" for name in ("timed_out", "truncated", "session_ended") if getattr(self, name)]
        if self.state_lost:
            parts.append(f"state_lost={self.state_lost}")
        return f"ExecResult({', '.join(parts)}, duration={self.duration:.3f})"


class ExecEvent(Plain, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Something that happened to a command.

    `start` comes when it was asked for; `stdout` and `stderr` as it writes, with the text in `data` and exactly what
    was written in `data_bytes`; `complete` when it ended, with its exit code; `error` if it could not be run.
    A character whose bytes come in two pieces is in the `data` of the second: `text_bytes` are what it is made of.
    """

    _PLAIN = (
        "type",
        "timestamp",
        "data",
        "exit_code",
        "duration",
        "timed_out",
        "truncated",
        "session_ended",
        "state_lost",
        "error",
    )

    type: Literal["start", "stdout", "stderr", "complete", "error"]
    timestamp: datetime
    data_bytes: bytes = b""
    text_bytes: bytes = b""
    exit_code: int | None = None
    duration: float | None = None
    timed_out: bool = False
    truncated: bool = False
    session_ended: bool = False
    state_lost: int = 0
    error: AtollError | None = None

    @cached_property
    def data(self) -> str:
        return self.error.message if self.error else self.text_bytes.decode(errors="replace")

    def __repr__(self) -> str:
        match self.type:
            case "stdout" | "stderr":
                return f"ExecEvent({self.type}, {beginning(self.data)})"
            case "complete":
                return f"ExecEvent(complete, exit_code={self.exit_code})"
            case "error":
                return f"ExecEvent(error, {beginning(self.data)})"
            case _:
                return f"ExecEvent({self.type})"


def beginning(text: str) -> str:
    """A repr that stays on one line."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}…"
