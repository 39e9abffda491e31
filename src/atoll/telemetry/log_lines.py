"""An entry of the log as a line: in words for people, or in JSON for programs.

What clients and sandboxes chose, such as a name, can neither begin another line nor tell a terminal anything: whatever
is no printable character is written as an escape. A trace takes further lines in words, each indented.
"""

from __future__ import annotations

import json
import logging
from enum import StrEnum
from typing import Any

from atoll.protocol.printable import printable

MAX_MESSAGE = 2_000
MAX_TRACE_LINES, MAX_TRACE_LINE = 100, 500


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class TextLines(logging.Formatter):
    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        message = printable(record.getMessage())[:MAX_MESSAGE]
        head = f"{self.formatTime(record)} {record.levelname} {record.name}: {message}"
        return "\n    ".join((head, *trace_of(record)))


class JsonLines(logging.Formatter):
    """With what an entry is about as fields of their own, see `about`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_MESSAGE],
            **getattr(record, "fields", {}),
        }
        if trace := trace_of(record):
            line["traceback"] = "\n".join(trace)
        return json.dumps(line)  # in ASCII, so that no reader has to know which characters do what


def about(**fields: str | int) -> dict[str, dict[str, str | int]]:
    """The fields of what an entry is about, for `extra=`."""
    return {"fields": fields}


def trace_of(record: logging.LogRecord) -> list[str]:
    """The first and the last lines, if there are very many."""
    if not record.exc_info:
        return []
    trace = logging.Formatter().formatException(record.exc_info)
    lines = [printable(line)[:MAX_TRACE_LINE] for line in trace.split("\n")]
    if len(lines) > MAX_TRACE_LINES:
        half = MAX_TRACE_LINES // 2
        lines[half:-half] = [f"({len(lines) - 2 * half} lines left out)"]
    return lines
