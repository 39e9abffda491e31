"""A process's log, folded: the same events and the same whole however it comes, and an agent that lies is found out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.errors import AgentMisbehavedError
from atoll.protocol.frames import Frame, FrameKind
from atoll.protocol.messages import encode_message
from atoll.protocol.process_log import (
    MAX_LOG,
    Dropped,
    Exited,
    LogEvent,
    LogEvents,
    LogFold,
    WholeLog,
    Written,
    portions,
)
from atoll.protocol.processes import (
    LogEntry,
    LogPart,
    OutputStream,
    ProcessInfo,
    ProcessStatus,
    StreamProcessLog,
)

CALL = StreamProcessLog(process_id="web")
INFO = ProcessInfo(
    id="web",
    pid=7,
    command="serve",
    status=ProcessStatus.COMPLETED,
    start_time=datetime(2026, 1, 1, tzinfo=UTC),
    session_id="default",
    exit_code=0,
)
DONE = Frame(FrameKind.DONE, encode_message(INFO))
STDOUT, STDERR = OutputStream.STDOUT, OutputStream.STDERR
writes = st.lists(
    st.tuples(
        st.sampled_from([STDOUT, STDERR]), st.binary(min_size=1, max_size=5) | st.sampled_from([b"\xc3", b"\xa9"])
    ),
    min_size=1,
)


def log_of(written: list[tuple[OutputStream, bytes]], dropped: int) -> LogPart:
    entries, number = [], dropped
    for stream, data in written:
        number += len(data)
        entries.append(LogEntry(number=number, time=1.0, stream=stream, data=data))
    return LogPart(number=number, dropped=dropped, entries=entries, ended=INFO)


def frame(part: object) -> Frame:
    return Frame(FrameKind.EVENT, encode_message(part))


@given(written=writes, dropped=st.integers(0, 9), most=st.integers(1, 9))
def test_a_log_is_the_same_in_one_part_and_in_many(
    written: list[tuple[OutputStream, bytes]], dropped: int, most: int
) -> None:
    part = log_of(written, dropped)
    whole, at_once, fold = WholeLog(), list(LogEvents().of(part)), LogFold(CALL)
    events = LogEvents()
    one_by_one: list[LogEvent] = []
    for some in portions(part, most):
        taken = fold.take(frame(some))
        assert taken == some and len(some.entries) <= most
        whole.add(taken)
        one_by_one += events.of(taken)
    assert fold.take(DONE) is None and fold.process == INFO
    assert one_by_one == at_once
    assert (whole.number, whole.dropped) == (part.number, dropped)
    for stream, kept in ((STDOUT, whole.stdout), (STDERR, whole.stderr)):
        assert kept == b"".join(data for where, data in written if where is stream)
    assert [event.data for event in at_once if isinstance(event, Written)] == [data for _, data in written]
    assert at_once[-1] == Exited(part.number, INFO)
    assert (at_once[0] == Dropped(dropped, dropped)) == bool(dropped)


def test_a_character_in_two_pieces_is_in_the_second_but_not_beyond_a_gap() -> None:
    def entry(number: int, data: bytes) -> LogEntry:
        return LogEntry(number=number, time=1.0, stream=STDOUT, data=data)

    events = LogEvents()
    first = [
        *events.of(LogPart(number=1, entries=[entry(1, b"\xc3")])),
        *events.of(LogPart(number=2, entries=[entry(2, b"\xa9")])),
    ]
    assert [event.text for event in first if isinstance(event, Written)] == [b"", "é".encode()]
    events = LogEvents()
    list(events.of(LogPart(number=1, entries=[entry(1, b"\xc3")])))
    gap, after = events.of(LogPart(number=9, dropped=7, entries=[entry(9, b"\xa9")]))
    assert gap == Dropped(8, 7)
    assert isinstance(after, Written) and after.text == b"\xa9"


@pytest.mark.parametrize(
    "lie",
    [
        frame(LogPart(number=1)),
        frame({"number": 1, "entries": [[1, 0.0, "stdout", b""]]}),
        frame({"number": 1, "entries": [[1, 0.0, "stdlog", b"x"]]}),
        frame({"number": 1, "entries": [[1, -1.0, "stdout", b"x"]]}),
        Frame(FrameKind.STDOUT, b"x"),
        Frame(FrameKind.DATA, b"x"),
        Frame(FrameKind.EVENT, b"\xc1"),
        Frame(FrameKind.DONE, b"\xc1"),
    ],
)
def test_what_is_no_part_of_a_log_is_misbehaviour(lie: Frame) -> None:
    with pytest.raises(AgentMisbehavedError):
        LogFold(CALL).take(lie)


def test_more_than_an_agent_can_have_kept_is_misbehaviour() -> None:
    megabyte = LogPart(number=1, entries=[LogEntry(number=1, time=1.0, stream=STDERR, data=bytes(2**20))])
    log = WholeLog()
    for _ in range(MAX_LOG // 2**20):
        log.add(megabyte)
    with pytest.raises(AgentMisbehavedError):
        log.add(megabyte)
