"""Background processes as values: what is looked for in a log, names of signals, states, what is cut short."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.agent.processes.processes import (
    LONGEST_PAUSE_SECONDS,
    MAX_OVER,
    MAX_RUNNING,
    final_status,
    next_pause,
)
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.frames import MAX_PAYLOAD
from atoll.protocol.processes import (
    ProcessInfo,
    ProcessList,
    ProcessStatus,
    not_ready,
    parse_signal,
    shorten,
    shorten_all,
)
from atoll.values.processes import LogSearch


def search(wanted: str | re.Pattern[str], *pieces: str) -> str | None:
    looking = LogSearch(wanted)
    found = next((found for piece in pieces if (found := looking.feed("stdout", piece))), None) or looking.finish()
    return found.line if found else None


@given(text=st.text(min_size=1), before=st.text(), after=st.text(), data=st.data())
def test_a_text_is_found_wherever_it_is_cut(text: str, before: str, after: str, data: st.DataObject) -> None:
    whole = before + text + after
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert search(text, *pieces) is not None


def test_the_line_around_it_is_told() -> None:
    assert search("listening", "one\nnow lis", "tening") == "now listening"
    assert search("b\nc", "a\nb\nc d\ne") == "b\nc d"
    assert search("ready", "one\r\nready now\r\n") == "ready now"
    assert search("ready", "red", "ay") is None


def test_the_two_streams_are_not_mixed_up() -> None:
    looking = LogSearch("ready")
    assert looking.feed("stdout", "rea") is None
    assert looking.feed("stderr", "dy") is None
    assert looking.feed("stdout", "dy")


def test_nothing_is_found_across_a_gap() -> None:
    looking = LogSearch("ready")
    assert looking.feed("stdout", "rea") is None
    looking.skip()
    assert looking.feed("stdout", "dy") is None


def test_a_pattern_is_tried_on_whole_lines() -> None:
    assert search(re.compile(r"port (\d+)$"), "on port 80", "80\n") == "on port 8080"
    assert search(re.compile(r"^b$"), "a\nb\nc\n") == "b"
    assert search(re.compile("a.*c"), "a\nb\nc\n") is None
    assert search(re.compile("prompt> $"), "prompt> ") == "prompt> "  # as whole as it gets


@pytest.mark.parametrize("wanted", ["", None, 7, b"x", re.compile(b"x")])
def test_what_cannot_be_looked_for_is_refused(wanted: object) -> None:
    with pytest.raises(ValueError) as caught:
        LogSearch(wanted)  # type: ignore[arg-type]
    assert isinstance(caught.value, AtollError)


@pytest.mark.parametrize(
    ("given", "number"), [("SIGTERM", 15), ("term", 15), ("HUP", 1), (9, 9), ("9", 9), ("SIGRTMIN", 34), (64, 64)]
)
def test_signals_have_names_and_numbers(given: str | int, number: int) -> None:
    assert parse_signal(given) == number


@pytest.mark.parametrize("given", ["", "SIGNOTHING", "0", 0, -9, 65, True, None, 1.5, "SIG_DFL", "1000"])
def test_what_is_no_signal_is_refused(given: object) -> None:
    with pytest.raises(ValueError) as caught:
        parse_signal(given)
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.INVALID_SIGNAL


def test_how_it_ended_decides_the_status() -> None:
    assert final_status(0, was_ended=False) is ProcessStatus.COMPLETED
    assert final_status(1, was_ended=False) is ProcessStatus.FAILED
    assert final_status(128, was_ended=False) is ProcessStatus.FAILED
    assert final_status(139, was_ended=False) is ProcessStatus.KILLED
    assert final_status(255, was_ended=False) is ProcessStatus.FAILED
    assert final_status(0, was_ended=True) is ProcessStatus.KILLED


def test_pauses_double_up_to_a_limit_and_begin_anew_after_a_long_run() -> None:
    pauses = [0.0]
    for _ in range(12):
        pauses.append(next_pause(pauses[-1], seconds_run=1.0))
    assert pauses[1:4] == [0.1, 0.2, 0.4]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    assert next_pause(LONGEST_PAUSE_SECONDS, seconds_run=11.0) == 0.1


@pytest.mark.parametrize(("seconds", "said"), [(1.5, "within 1.5 seconds"), (None, "before its agent ended the wait")])
def test_a_process_that_is_not_ready_is_told_with_or_without_a_limit(seconds: float | None, said: str) -> None:
    fields = {"id": "web", "pid": 7, "command": "x", "status": "running", "session_id": "default"}
    process = msgspec.convert(fields | {"start_time": "2000-01-01T00:00:00Z"}, ProcessInfo)
    problem = not_ready(process, "log 'up'", seconds, "")
    assert problem.message == f"process 'web' did not log 'up' {said}; its log is empty"
    assert problem.code is ErrorCode.PROCESS_READY_TIMEOUT and problem.remedy


@given(command=st.one_of(st.text(), st.lists(st.text())))
def test_a_short_command_is_shown_as_it_is_and_a_long_one_fits(command: str | list[str]) -> None:
    encoded = msgspec.msgpack.encode(shorten(command))
    assert len(encoded) < 1200
    if len(msgspec.msgpack.encode(command)) < 100:
        assert shorten(command) == command


@pytest.mark.parametrize("command", ["\U0001f600" * 100_000, ["\U0001f600" * 9] * 10_000, [""] * 100_000])
def test_the_longest_list_of_processes_fits_into_a_frame(command: str | list[str]) -> None:
    one = msgspec.convert(
        {
            "id": "x" * 63,
            "pid": 2**22,
            "command": shorten(command),
            "status": "completed",
            "start_time": "2000-01-01T00:00:00Z",
            "end_time": "2000-01-01T00:00:00Z",
            "exit_code": 255,
            "session_id": "x" * 63,
            "restart": "on-failure",
            "restarts": 2**31,
            "timed_out": True,
            "error": "x" * 1000,
        },
        ProcessInfo,
    )
    frame = msgspec.msgpack.encode(ProcessList(processes=shorten_all([one] * (MAX_RUNNING + MAX_OVER))))
    assert len(frame) <= MAX_PAYLOAD
    few = [one] * 100
    assert shorten_all(few) == few  # a short list shows of each as much as it shows of itself
