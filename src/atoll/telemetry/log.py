"""The log of a server: what its operator wants to know of, one line each.

Rules:
1. Nobody waits for it. A thread writes what is put into a queue; entries for which there is no room are counted, and
   the log says how many are missing.
2. It does not grow, see `log_file.py`; and what strangers can cause is logged so often and no more, see `Seldom`.
3. No command, no variable, no key is in it, by default or otherwise: entries name things by their ids.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.telemetry.log_file import Sink
from atoll.telemetry.log_lines import JsonLines, LogFormat, TextLines

MAX_WAITING = 4_096
END_SECONDS = 2.0  # a disk that stands still does not keep the server from its end
ACCESS, AUDIT = "atoll.access", "atoll.audit"  # loggers of what was asked for, and of what was done
SELDOM, SELDOM_SECONDS = 20, 10.0

logger = logging.getLogger("atoll.telemetry")


class QueuedHandler(logging.Handler):
    """Takes entries from any thread, and never waits."""

    def __init__(self, sink: Sink, format: LogFormat, room: int = MAX_WAITING) -> None:
        super().__init__()
        self.setFormatter(JsonLines() if format is LogFormat.JSON else TextLines())
        self._sink = sink
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(room)
        self._missing = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        # What it is about may change until it is written, so it is put into words now.
        record.msg, record.args = record.getMessage(), None
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._count_missing(1)

    def close(self) -> None:
        """Write what is waiting, unless that takes too long."""
        super().close()
        try:
            self._waiting.put(None, timeout=END_SECONDS)
        except queue.Full:
            return
        self._thread.join(END_SECONDS)

    def _write_all(self) -> None:
        while record := self._waiting.get():
            if not self._write(record):
                self._count_missing(1)
            elif self._missing and self._waiting.empty():
                self._confess()
        self._sink.close()

    def _write(self, record: logging.LogRecord) -> bool:
        try:
            self._sink.write(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except Exception:  # whatever is wrong with one entry, the next is written, and says that one is missing
            return False
        return True

    def _confess(self) -> None:
        with self._counting:
            missing, self._missing = self._missing, 0
        message = f"{missing} entries are missing here: they could not be written, or not as fast as they came"
        if not self._write(logger.makeRecord(logger.name, logging.WARNING, "", 0, message, (), None)):
            self._count_missing(missing)

    def _count_missing(self, entries: int) -> None:
        with self._counting:
            self._missing += entries


@contextmanager
def opened_log(sink: Sink, format: LogFormat, name: str = "") -> Iterator[None]:
    """All loggers write there while this lasts; or one by its name, which then writes nowhere else."""
    handler = QueuedHandler(sink, format)
    writer = logging.getLogger(name)
    level = writer.level
    writer.addHandler(handler)
    writer.setLevel(logging.INFO)
    writer.propagate = not name
    try:
        yield
    finally:
        writer.removeHandler(handler)
        writer.setLevel(level)
        writer.propagate = True
        handler.close()


class Seldom:
    """For what strangers can cause: so many entries in SELDOM_SECONDS, and then that more are left out."""

    def __init__(self, logger: logging.Logger, most: int = SELDOM) -> None:
        self._logger = logger
        self._most = most
        self._begin = 0.0
        self._count = 0
        self._left_out = 0

    def log(self, level: int, message: str, *values: object, **options: object) -> None:
        now = time.monotonic()
        if now - self._begin >= SELDOM_SECONDS:
            if self._left_out:
                self._logger.warning("%d entries like the next one were left out", self._left_out)
            self._begin, self._count, self._left_out = now, 0, 0
        self._count += 1
        if self._count > self._most:
            self._left_out += 1
            return
        self._logger.log(level, message, *values, **options)  # type: ignore[arg-type]
        if self._count == self._most:
            self._logger.warning("more like this are left out for %g seconds", SELDOM_SECONDS)
