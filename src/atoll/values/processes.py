"""A background process, as the SDK hands it out: its log, and what was found in it."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cached_property
from typing import Literal

from atoll.protocol.arguments import wrong_argument
from atoll.protocol.plain import Plain
from atoll.protocol.processes import ProcessStatus
from atoll.values.commands import beginning

MAX_LINE = 64 * 1024  # characters of a line that has no end which are kept


class ProcessLogs(Plain, frozen=True, kw_only=True, dict=True):
    """A process's output, as far as it is kept: text, with U+FFFD where it is not UTF-8, and the exact bytes.

    `dropped` bytes of older output are gone. `number` is where the log goes on: `since=` for `stream_process_logs`.
    """

    _PLAIN = ("stdout", "stderr", "number", "dropped")

    stdout_bytes: bytes
    stderr_bytes: bytes
    number: int
    dropped: int = 0

    @cached_property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @cached_property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    def __repr__(self) -> str:
        dropped = f", dropped={self.dropped}" if self.dropped else ""
        return f"ProcessLogs(stdout={beginning(self.stdout)}, stderr={beginning(self.stderr)}{dropped})"


class ProcessEvent(Plain, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Something of a process's log. Who has seen it goes on after it with `since=event.number`.

    `stdout` and `stderr` have the text in `data` and exactly what was written in `data_bytes`; `dropped` says how many
    bytes are missing here, since nobody read them while they were kept; `exit` that the process is over. What it left
    running may write more. A character whose bytes come in two pieces is in the `data` of the second: `text_bytes` are
    what it is made of.
    """

    _PLAIN = ("type", "number", "timestamp", "data", "dropped", "exit_code", "status")

    type: Literal["stdout", "stderr", "dropped", "exit"]
    number: int
    timestamp: datetime
    data_bytes: bytes = b""
    text_bytes: bytes = b""
    dropped: int = 0
    exit_code: int | None = None
    status: ProcessStatus | None = None

    @cached_property
    def data(self) -> str:
        return self.text_bytes.decode(errors="replace")

    def __repr__(self) -> str:
        match self.type:
            case "dropped":
                what = f"{self.dropped} bytes"
            case "exit":
                what = f"{self.status}, exit_code={self.exit_code}"
            case _:
                what = beginning(self.data)
        return f"ProcessEvent({self.number}, {self.type}, {what})"


class LogMatch(Plain, frozen=True, kw_only=True):
    """Where something was found in a log. `match` is there if it was a pattern."""

    _PLAIN = ("line", "stream")

    line: str
    stream: str
    match: re.Match[str] | None = None


class LogSearch:
    """Looks for a text, wherever it is, or for a pattern, line by line, in output that comes in pieces."""

    def __init__(self, wanted: str | re.Pattern[str]) -> None:
        if not isinstance(wanted, str | re.Pattern) or not (wanted if isinstance(wanted, str) else True):
            remedy = "Give a text, or a pattern made by re.compile()."
            raise wrong_argument("wanted", wanted, "cannot be looked for in a log", remedy=remedy)
        if isinstance(wanted, re.Pattern) and not isinstance(wanted.pattern, str):
            raise wrong_argument("wanted", wanted, "is a pattern for bytes", remedy="Make it from text.")
        self._wanted = wanted
        self._held = {"stdout": "", "stderr": ""}

    def feed(self, stream: str, text: str) -> LogMatch | None:
        held = self._held[stream] + text
        if isinstance(self._wanted, str):
            found = self._find(self._wanted, stream, held)
            self._held[stream] = held[-max(MAX_LINE, len(self._wanted)) :]
            return found
        *lines, rest = held.split("\n")
        self._held[stream] = rest[-MAX_LINE:]
        return next((found for line in lines if (found := self._match(self._wanted, stream, line))), None)

    def skip(self) -> None:
        """Something is missing here: what comes does not continue what came."""
        self._held = dict.fromkeys(self._held, "")

    def finish(self) -> LogMatch | None:
        """No more comes, so a line that has no end is as whole as it gets."""
        if isinstance(self._wanted, str):
            return None
        lines = self._held.items()
        return next((found for stream, line in lines if (found := self._match(self._wanted, stream, line))), None)

    def _find(self, wanted: str, stream: str, held: str) -> LogMatch | None:
        place = held.find(wanted)
        if place < 0:
            return None
        start = held.rfind("\n", 0, place) + 1
        end = held.find("\n", place + len(wanted))
        return LogMatch(line=held[start : end if end >= 0 else None].rstrip("\r\n"), stream=stream)

    def _match(self, wanted: re.Pattern[str], stream: str, line: str) -> LogMatch | None:
        line = line.removesuffix("\r")
        match = wanted.search(line)
        return LogMatch(line=line, stream=stream, match=match) if match else None
