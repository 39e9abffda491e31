"""The log of a background process: what is kept, what is dropped, and that every reader knows which."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.agent.processes import log as process_log
from atoll.agent.processes.log import SEGMENT_BYTES, Bounds, LogStore, ProcessLog
from atoll.protocol.processes import MAX_ENTRIES, LogEntry, OutputStream

STDOUT, STDERR = OutputStream
SMALL = Bounds(memory_each=2, memory=5, file_each=3, file=8)


def open_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def no_file() -> int:
    raise OSError(28, "No space left on device")


def store_of(open_file: Callable[[], int] = open_file) -> closing[LogStore]:
    """Closed however its block is left: Hypothesis leaves it in the middle of an example that it gives up."""
    return closing(LogStore(SMALL, open_file))


def content(length: int, start: int = 0) -> bytes:
    """Bytes that tell where they belong."""
    first, last = start // 4, (start + length) // 4 + 1
    text = b"".join(number.to_bytes(4, "big") for number in range(first, last))
    return text[start - 4 * first :][:length]


def write(log: ProcessLog, length: int, stream: OutputStream = STDOUT) -> None:
    log.append(stream, content(length, log.end))


def test_the_exit_is_between_what_came_before_and_what_comes_after() -> None:
    with store_of() as store:
        log = store.make_log()
        log.append(STDOUT, b"before")
        log.mark_exit()
        assert (log.end, log.exit_number) == (7, 7)
        log.append(STDERR, b"after")
        assert log.last_lines() == "beforeafter"
        first, nothing, rest = log.read(2), log.read(6), log.read(7)
        assert (first.number, first.dropped, [entry.data for entry in first.entries]) == (6, 0, [b"fore"])
        assert (nothing.number, nothing.dropped, nothing.entries) == (6, 0, [])
        assert (rest.number, rest.dropped, [(entry.number, entry.data) for entry in rest.entries]) == (
            12,
            0,
            [(12, b"after")],
        )


def test_an_exit_that_is_older_than_what_is_kept_is_counted_as_no_byte() -> None:
    with store_of() as store:
        log = store.make_log()
        log.append(STDOUT, b"before")
        log.mark_exit()
        log.append(STDOUT, bytes(20 * SEGMENT_BYTES))
        before, after = log.read(0), log.read(7)
        assert (before.number, before.dropped, before.entries) == (6, 6, [])
        kept, position = 0, after.number
        kept += sum(len(entry.data) for entry in after.entries)
        while position < log.end:
            part = log.read(position)
            kept, position = kept + sum(len(entry.data) for entry in part.entries), part.number
            assert part.dropped == 0
        assert after.dropped + kept == 20 * SEGMENT_BYTES and after.dropped > 0
        log.forget()


def read_all(log: ProcessLog, since: int = 0) -> tuple[int, list[LogEntry]]:
    """How much was dropped, and the rest; each byte where it belongs."""
    dropped, entries, position = 0, [], since
    while position < log.end:
        part = log.read(position)
        dropped += part.dropped
        position += part.dropped
        for entry in part.entries:
            assert entry.data == content(len(entry.data), position)
            position += len(entry.data)
            assert entry.number == position
        assert part.number == position
        entries += part.entries
    assert position == log.end
    return dropped, entries


lengths = st.lists(
    st.one_of(st.integers(1, 200), st.integers(1, 4 * SEGMENT_BYTES), st.just(SEGMENT_BYTES)), max_size=30
)
streams = st.sampled_from(OutputStream)


@settings(deadline=None)
@given(writes=st.lists(st.tuples(st.integers(0, 3), streams, st.integers(1, 3 * SEGMENT_BYTES)), max_size=60))
def test_every_log_keeps_its_latest_and_counts_the_rest(writes: list[tuple[int, OutputStream, int]]) -> None:
    with store_of() as store:
        logs = [store.make_log() for _ in range(4)]
        for number, stream, length in writes:
            write(logs[number], length, stream)
        for log in logs:
            dropped, entries = read_all(log)
            kept = sum(len(entry.data) for entry in entries)
            assert dropped + kept == log.end
            assert log.end == 0 or kept > 0
            assert kept <= (SMALL.memory_each + SMALL.file_each + 1) * SEGMENT_BYTES


@settings(deadline=None)
@given(writes=lengths, file=st.booleans(), data=st.data())
def test_a_reader_that_resumes_anywhere_gets_exactly_the_rest(
    writes: list[int], file: bool, data: st.DataObject
) -> None:
    with store_of(open_file if file else no_file) as store:
        log = store.make_log()
        for length in writes:
            write(log, length)
        since = data.draw(st.integers(0, log.end))
        dropped, entries = read_all(log, since)
        assert dropped + sum(len(entry.data) for entry in entries) == log.end - since


class GivenUp(BaseException):
    """What Hypothesis raises in the middle of an example that has become too large."""


class Unwilling:
    def draw(self, _: object) -> NoReturn:
        raise GivenUp


def test_an_example_that_is_given_up_half_way_leaves_no_descriptor() -> None:
    example = test_a_reader_that_resumes_anywhere_gets_exactly_the_rest.hypothesis.inner_test  # type: ignore[attr-defined]
    before = os.listdir("/proc/self/fd")
    with pytest.raises(GivenUp):
        example(writes=[10 * SEGMENT_BYTES], file=True, data=Unwilling())
    assert os.listdir("/proc/self/fd") == before


def test_what_is_short_is_one_entry_with_its_stream_and_time() -> None:
    with store_of() as store:
        log = store.make_log()
        log.append(STDOUT, b"out")
        log.append(STDERR, b"err\n")
        first, second = log.read(0).entries
        assert (first.number, first.stream, first.data) == (3, STDOUT, b"out")
        assert (second.number, second.stream, second.data) == (7, STDERR, b"err\n")
        assert 0 <= second.time - first.time < 60


def test_a_part_of_a_log_has_no_more_entries_than_a_server_takes() -> None:
    with store_of() as store:
        log = store.make_log()
        for _ in range(MAX_ENTRIES + 1):
            log.append(STDOUT, b"x")
        assert MAX_ENTRIES // 2 < len(log.read(0).entries) <= MAX_ENTRIES


def test_memory_and_file_are_bounded_for_all_logs_together(tmp_path: Path) -> None:
    sizes: list[int] = []

    def open_and_note() -> int:
        sizes.append(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
        return sizes[-1]

    with store_of(open_and_note) as store:
        logs = [store.make_log() for _ in range(10)]
        for _ in range(20):
            for log in logs:
                write(log, SEGMENT_BYTES // 2)
        assert sum(log.in_memory for log in logs) <= SMALL.memory
        assert sum(log.in_file for log in logs) <= SMALL.file
        assert os.fstat(sizes[0]).st_size <= SMALL.file * SEGMENT_BYTES
        assert len(sizes) == 1


def test_one_that_floods_takes_nothing_from_those_that_have_little() -> None:
    with store_of() as store:
        quiet, loud = store.make_log(), store.make_log()
        write(quiet, SEGMENT_BYTES + 100)
        write(loud, 100 * SEGMENT_BYTES)
        assert read_all(quiet)[0] == 0
        assert read_all(loud)[0] > 90 * SEGMENT_BYTES


def test_a_disk_that_is_full_costs_history_and_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    is_full, tries = True, 0

    def open_unless_full() -> int:
        nonlocal tries
        tries += 1
        return no_file() if is_full else open_file()

    with store_of(open_unless_full) as store:
        log = store.make_log()
        write(log, 50 * SEGMENT_BYTES)
        assert (log.in_file, tries) == (0, 1)  # a try at a full disk may take long, so there are few
        assert read_all(log)[0] > 0
        is_full = False
        monkeypatch.setattr(store, "_file_rests_until", 0.0)
        write(log, 50 * SEGMENT_BYTES)
        assert log.in_file == SMALL.file_each
        read_all(log)


def test_a_disk_that_gives_nothing_back_is_a_gap() -> None:
    with store_of() as store:
        log = store.make_log()
        write(log, 5 * SEGMENT_BYTES)
        assert log.in_file > 0
        assert store._file is not None
        os.truncate(store._file, 0)
        assert read_all(log)[0] > 0


def test_forgetting_a_log_makes_room_and_the_last_one_takes_the_file_with_it() -> None:
    with store_of() as store:
        logs = [store.make_log() for _ in range(3)]
        for log in logs:
            write(log, 20 * SEGMENT_BYTES)
        before = len(os.listdir("/proc/self/fd"))
        for log in logs:
            log.forget()
            assert log.is_closed
            assert log.read(0).dropped == log.end
        assert len(os.listdir("/proc/self/fd")) == before - 1
        fresh = store.make_log()
        write(fresh, 5 * SEGMENT_BYTES)
        assert read_all(fresh)[0] == 0
        fresh.forget()


def test_listeners_hear_of_more_and_of_the_end() -> None:
    with store_of() as store:
        log = store.make_log()
        heard: list[int] = []
        log.listeners.add(lambda: heard.append(log.end))
        write(log, 10)
        write(log, 10)
        log.close()
        assert heard == [10, 20, 20]


def test_the_last_lines_are_those_of_both_streams() -> None:
    with store_of() as store:
        log = store.make_log()
        for number in range(100):
            log.append(STDOUT if number % 2 else STDERR, b"line %d\n" % number)
        assert log.last_lines().splitlines() == [f"line {number}" for number in range(80, 100)]


def test_the_file_has_no_name() -> None:
    fd = process_log.open_nameless_file()
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)
