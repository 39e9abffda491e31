"""The scope of a key, decided without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.kinds import KINDS
from atoll.store.keys import KeyInfo, KeyScope, check_pattern

FITS = (
    ("user-*", "user-1"),
    ("user-*", "user-"),
    ("*", "anything"),
    ("*-dev", "user-dev"),
    ("a*b*c", "a1b2b3c"),
    ("exact", "exact"),
)
FITS_NOT = (
    ("user-*", "xuser-1"),
    ("user-*", "user"),
    ("user-*", "user-1\n"),
    ("user-*", "user-1/../root"),
    ("user-*", "user-1\0"),
    ("user-*", "USER-1"),
    ("user-*", "user-é"),
    ("user-*", ""),
    ("*", "a/b"),
    ("*", "a\n"),
    ("exact", "exact-not"),
    ("a.c", "abc"),
    ("[a-z]", "a"),
    ("", "a"),
)
READING = {
    *("ping", "read_file", "list_files", "stat_file", "pack_files", "watch_files", "list_processes", "get_process"),
    *("stream_process_log", "wait_for_port", "wait_for_exit", "list_sessions", "list_terminals", "wait_terminal"),
}


@pytest.mark.parametrize(("pattern", "sandbox"), FITS)
def test_a_pattern_fits_ids_of_its_shape(pattern: str, sandbox: str) -> None:
    assert KeyScope(patterns=("nothing", pattern)).allows_id(sandbox)


@pytest.mark.parametrize(("pattern", "sandbox"), FITS_NOT)
def test_a_pattern_fits_nothing_else(pattern: str, sandbox: str) -> None:
    assert not KeyScope(patterns=(pattern,)).allows_id(sandbox)


@given(st.text())
def test_only_what_can_be_in_an_id_is_a_pattern(pattern: str) -> None:
    try:
        check_pattern(pattern)
    except AtollError as problem:
        assert problem.code is ErrorCode.INVALID_REQUEST and problem.remedy
    else:
        assert 1 <= len(pattern) <= 100
        assert set(pattern) <= set("abcdefghijklmnopqrstuvwxyz0123456789-*")


def test_all_labels_of_a_key_are_asked_for() -> None:
    scope = KeyScope(labels={"team": "red", "tier": "1"})
    assert scope.allows_labels({"team": "red", "tier": "1", "more": "x"})
    assert not scope.allows_labels({"team": "red"})
    assert not scope.allows_labels({"team": "blue", "tier": "1"})
    assert KeyScope().allows_labels({}) and not KeyScope().is_limited
    assert scope.is_limited and KeyScope(patterns=("a",)).is_limited and not KeyScope(reads_only=True).is_limited


def test_what_a_later_version_restricts_is_not_taken_for_no_restriction() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"patterns": ["a"], "only_on_mondays": true}', type=KeyScope)


def test_a_key_is_good_until_it_expires() -> None:
    now = datetime.now(UTC)
    key = KeyInfo(id="1", name="x", created_at=now)
    assert not key.has_expired
    assert msgspec.structs.replace(key, expires_at=now).has_expired
    assert not msgspec.structs.replace(key, expires_at=now + timedelta(hours=1)).has_expired


def test_of_every_kind_of_call_it_is_said_whether_it_only_reads() -> None:
    """Whoever brings a new kind finds that it is refused to keys that only read, until it says otherwise."""
    assert {str(kind.__struct_config__.tag) for kind in KINDS if not kind.changes} == READING
