"""Who belongs to a command, decided on tables of processes."""

import pytest

from atoll.agent.process_tree import ProcessStat, members_of, parse_stat


def process(pid: int, parent: int, session: int, *, start: int = 1, zombie: bool = False) -> ProcessStat:
    return ProcessStat(pid, parent, session, start, b"Z" if zombie else b"S", b"sh")


@pytest.mark.parametrize("name", [b"sh", b"a b", b") S 1 1 1", b"((", b"\xff\xfe"])
def test_a_name_full_of_brackets_does_not_shift_the_fields(name: bytes) -> None:
    tail = b"S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2 3"
    assert parse_stat(b"42 (" + name + b") " + tail) == ProcessStat(42, 7, 41, 9876, b"S", name)


def test_descendants_and_session_mates_belong_and_others_do_not() -> None:
    table = [
        process(1, 0, 1),
        process(10, 1, 10),
        process(11, 10, 10),
        process(12, 11, 12),  # moved to a session of its own
        process(13, 1, 10),  # lost its parent
        process(20, 1, 20),
        process(21, 20, 20),
    ]
    assert {pid for pid, _ in members_of(10, set(), table)} == {10, 11, 12, 13}


def test_one_seen_before_is_found_when_its_parents_are_gone_but_not_a_reused_pid() -> None:
    table = [process(1, 0, 1), process(12, 1, 12, start=5), process(14, 12, 14), process(15, 1, 15, start=9)]
    assert {pid for pid, _ in members_of(10, {(12, 5), (15, 3)}, table)} == {12, 14}


def test_the_dead_are_not_counted() -> None:
    assert members_of(10, set(), [process(10, 1, 10, zombie=True)]) == set()
