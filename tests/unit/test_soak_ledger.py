"""The soak's ledger, which must find what it is there for: a soak that cannot fail proves nothing."""

from __future__ import annotations

from tests.soak.ledger import Ledger

PATH, LOG = "/workspace/a", "/workspace/log"


def test_an_acknowledged_file_must_be_there_and_an_unacknowledged_one_may() -> None:
    ledger = Ledger()
    ledger.will_write(PATH, b"one")
    assert ledger.judge_file(PATH, None) == []
    ledger.will_write(PATH, b"one")
    ledger.wrote(PATH, b"one")
    assert ledger.judge_file(PATH, b"one") == []
    assert ledger.judge_file(PATH, None)
    assert ledger.judge_file(PATH, b"other")
    ledger.will_write(PATH, b"two")
    assert ledger.judge_file(PATH, b"two") == []
    assert ledger.judge_file(PATH, b"one"), "once it is seen to be the new one it cannot be the old one again"


def test_what_was_appended_is_there_once() -> None:
    ledger = Ledger(appended={"a"}, tried={"a", "b"})
    assert ledger.judge_appended(["a"]) == ledger.judge_appended(["b", "a"]) == []
    assert ledger.judge_appended(["b"])[0].startswith("lost: a")
    assert ledger.judge_appended(["a", "a"])[0].startswith("twice: a")
    assert ledger.judge_appended(["a", "c"])[0].startswith("lost: 'c'")


def test_a_session_counts_on_unless_it_says_that_it_lost_something() -> None:
    ledger = Ledger()
    assert ledger.judge_count("first", 1, is_told_of_loss=False) == []
    assert ledger.judge_count("first", 2, is_told_of_loss=False) == []
    assert ledger.judge_count("first", 2, is_told_of_loss=True) == []
    assert ledger.judge_count("second", 1, is_told_of_loss=False) == []
    assert ledger.judge_count("second", 1, is_told_of_loss=False)


def test_a_destruction_that_nobody_acknowledged_is_whole_or_did_not_happen() -> None:
    def ledger() -> Ledger:
        return Ledger(files={PATH: {b"one"}, "/workspace/perhaps": {b"x", None}}, appended={"a"}, tried={"a"})

    assert ledger().judge_destroyed({PATH, LOG}, LOG) == []
    assert ledger().judge_destroyed(set(), LOG) == []
    assert ledger().judge_destroyed({LOG}, LOG)
