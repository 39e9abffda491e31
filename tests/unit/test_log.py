"""The log: lines that nobody can forge, files that do not grow, writers that hold up nobody."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from pathlib import Path

import pytest

from atoll.protocol.errors import AtollError
from atoll.telemetry import log as log_module
from atoll.telemetry.log import SELDOM, QueuedHandler, Seldom, opened_log
from atoll.telemetry.log_file import LogFile
from atoll.telemetry.log_lines import MAX_MESSAGE, MAX_TRACE_LINES, JsonLines, LogFormat, TextLines, about

HOSTILE = "a\n2026-01-01 00:00:00.000 INFO forged: b\x1b[31m\x9b31m\u202e\u2028\r\0\udc80"

logger = logging.getLogger("atoll.test")


def entry(message: str, *values: object, exc_info: bool = False, **fields: str) -> logging.LogRecord:
    trace = sys.exc_info() if exc_info else None
    return logger.makeRecord("atoll.test", logging.INFO, "", 0, message, values, trace, extra=about(**fields))


def test_an_entry_in_words_is_one_line_whatever_it_names() -> None:
    line = TextLines().format(entry("sandbox %s", HOSTILE))
    assert line.isprintable()
    assert r"sandbox a\n2026-01-01 00:00:00.000 INFO forged: b\x1b[31m\x9b31m\u202e\u2028\r\x00\udc80" in line


def test_an_entry_in_json_is_one_line_of_ascii_with_its_fields() -> None:
    line = JsonLines().format(entry("sandbox %s", HOSTILE, sandbox=HOSTILE))
    assert line.isascii() and line.isprintable()
    assert json.loads(line)["sandbox"] == HOSTILE
    assert json.loads(line)["level"] == "info"


def test_a_trace_is_indented_so_that_no_line_of_it_is_taken_for_an_entry() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = entry("it failed", exc_info=True)
    first, *trace = TextLines().format(record).split("\n")
    assert first.endswith("it failed")
    assert trace and all(line.startswith("    ") and line.isprintable() for line in trace)
    assert "forged" in json.loads(JsonLines().format(record))["traceback"]


def test_an_entry_has_a_bound() -> None:
    def fail(depth: int) -> None:
        if depth:
            fail(depth - 1)
        raise ValueError("y" * 10**6)

    assert len(TextLines().format(entry("x" * 10**6))) < MAX_MESSAGE + 100
    try:
        try:
            fail(30)
        except ValueError:
            try:
                fail(30)
            except ValueError:
                fail(30)
    except ValueError:
        lines = TextLines().format(entry("z", exc_info=True)).split("\n")
    assert len(lines) <= MAX_TRACE_LINES + 2
    assert max(map(len, lines)) < MAX_MESSAGE


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_full_file_is_put_away_and_the_oldest_goes(tmp_path: Path, kept: int) -> None:
    file = LogFile(tmp_path / "log", 100, kept)
    for number in range(50):
        file.write(b"%029d\n" % number)
    file.close()
    names = ["log", *(f"log.{number}" for number in range(1, kept + 1))]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    lines = b"".join((tmp_path / name).read_bytes() for name in reversed(names)).split()
    assert [int(line) for line in lines] == list(range(50))[-len(lines) :]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_put_away_by_others_is_opened_anew(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log", 100, 1)
    file.write(b"one\n")
    (tmp_path / "log").rename(tmp_path / "put-away")
    file.reopen()
    file.write(b"two\n")
    file.close()
    assert (tmp_path / "put-away").read_text() == "one\n"
    assert (tmp_path / "log").read_text() == "two\n"


def test_a_place_that_cannot_be_written_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="no-such") as caught:
        LogFile(tmp_path / "no-such/log", 100, 1)
    assert caught.value.remedy


def test_whoever_logs_never_waits_and_the_log_says_what_is_missing(tmp_path: Path) -> None:
    """The disk here is a pipe that nobody reads."""
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    handler = QueuedHandler(LogFile(tmp_path / "log", 100, 1), LogFormat.TEXT, room=10)
    for _ in range(500):
        handler.handle(entry("x" * 1_000))
    os.set_blocking(reader, True)
    said, missing = b"", 0
    while missing + said.count(b": xxx") < 500:
        said += os.read(reader, 65536)
        missing = sum(map(int, re.findall(rb"(\d+) entries are missing here", said)))
    handler.close()
    os.close(reader)
    assert missing + said.count(b": xxx") == 500
    assert missing > 0


def test_what_waits_at_the_end_is_written(tmp_path: Path) -> None:
    with opened_log(LogFile(tmp_path / "log", 10**6, 1), LogFormat.JSON):
        for number in range(1_000):
            logger.info("%d", number)
    assert [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()] == [
        str(one) for one in range(1_000)
    ]


def test_what_strangers_cause_is_told_so_often_and_no_more(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seldom = Seldom(logger)
    for number in range(1_000):
        seldom.log(logging.WARNING, "refused %d", number)
    told = [record.getMessage() for record in caplog.records]
    assert told[:SELDOM] == [f"refused {number}" for number in range(SELDOM)]
    assert told[SELDOM:] == ["more like this are left out for 10 seconds"]
    monkeypatch.setattr(log_module, "SELDOM_SECONDS", 0.0)
    seldom.log(logging.WARNING, "refused again")
    assert [record.getMessage() for record in caplog.records][-2:] == [
        "980 entries like the next one were left out",
        "refused again",
    ]
