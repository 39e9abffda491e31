"""Addresses of previews: each means one port of one sandbox, or nothing at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.preview.address import (
    MAX_LABEL,
    MAX_SANDBOX,
    PreviewAddress,
    PreviewPlace,
    domain_of,
    make_alias,
    needs_alias,
    parse_host,
    parse_label,
    parse_path,
)
from atoll.preview.exposing import BASE32, admits, random_text
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.limits import Limits
from atoll.protocol.ports import ExposeRequest, check_expose, is_token, parse_exposable
from atoll.supervisor.records import KeptPort, SandboxRecord

IDS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
TOKENS = st.from_regex(r"[a-z0-9_]{1,16}", fullmatch=True)
PORTS = st.integers(1024, 65_535)
PLACE = PreviewPlace("http", "localhost:7071")


def address_for(port: int, sandbox: str, token: str) -> PreviewAddress:
    name = make_alias(sandbox, random_text(16)) if needs_alias(sandbox) else sandbox
    return PreviewAddress(port, name, token)


@given(PORTS, IDS, TOKENS)
def test_a_url_leads_back_to_what_it_was_made_of(port: int, sandbox: str, token: str) -> None:
    address = address_for(port, sandbox, token)
    assert len(address.label) <= MAX_LABEL
    host = PLACE.url(address).removeprefix("http://").removesuffix("/")
    assert parse_host(host, PLACE.domain) == address == parse_host(host.upper(), "localhost")
    path = PreviewPlace("https", "example.org", by_path=True).url(address).removeprefix("https://example.org")
    assert parse_path(path) == (address, "/")
    assert parse_path(path + "a?b") == (address, "/a?b")


@given(st.text(max_size=80))
def test_whatever_a_label_is_it_means_one_thing_or_nothing(text: str) -> None:
    found = parse_label(text)
    assert found is None or found.label == text
    assert parse_host(text, "localhost") is None or text.lower().partition(":")[0].rstrip(".").endswith(".localhost")
    parse_path(text)


@given(st.from_regex(rf"[a-z0-9][a-z0-9-]{{{MAX_SANDBOX - 1},61}}[a-z0-9]", fullmatch=True))
def test_an_alias_is_nobodys_id(sandbox: str) -> None:
    alias = make_alias(sandbox, random_text(16))
    assert len(alias) <= MAX_SANDBOX
    with pytest.raises(ValueError):
        parse_sandbox_id(alias)


@pytest.mark.parametrize(
    "label",
    [
        "80-a-t",
        "1023-a-t",
        "65536-a-t",
        "08080-a-t",
        "8080-a",
        "8080--t",
        "8080-a-",
        "8080-a-T",
        "8080-a-t.b",
        "8080-a-é",
        "8080--a-t",
        "8080-a--t",
        "8080-a-" + "t" * 17,
        "8080-" + "a" * 60 + "-t",
        " 8080-a-t",
        "8080-a-t\n",
    ],
)
def test_a_label_that_is_not_quite_one_means_nothing(label: str) -> None:
    assert parse_label(label) is None


@pytest.mark.parametrize("host", ["", "localhost", "a:b", "8080-a-t.localhost@evil", "8080-a-t.localhost:70710000"])
def test_a_host_that_is_none_means_nothing(host: str) -> None:
    assert parse_host(host, "localhost") is None


def test_an_absolute_name_is_the_same_name() -> None:
    assert domain_of("Example.ORG.:80") == "example.org"
    assert parse_host("8080-a-t.localhost.:7071", "localhost") == PreviewAddress(8080, "a", "t")


def test_tokens_are_random_and_are_tokens() -> None:
    found = {random_text(16) for _ in range(100)}
    assert len(found) == 100
    assert all(is_token(token) and set(token) <= set(BASE32) and len(token) == 16 for token in found)


@pytest.mark.parametrize("token", ["", "A", "a" * 17, "a-b", "a.b", "ä", "a\n"])
def test_a_token_that_cannot_be_in_a_url_is_refused_and_not_told(token: str) -> None:
    with pytest.raises(AtollError) as caught:
        check_expose(ExposeRequest(token=token))
    assert caught.value.code is ErrorCode.INVALID_TOKEN
    assert not token or repr(token) not in str(caught.value)


@pytest.mark.parametrize("port", [0, 80, 1023, 65_536, -1, "8080", None, 8080.5, True, 10**40])
def test_a_port_that_cannot_be_exposed_is_refused(port: object) -> None:
    with pytest.raises(AtollError) as caught:
        parse_exposable(port)
    assert caught.value.code is ErrorCode.INVALID_PORT


@pytest.mark.parametrize(
    "asked", [{"name": ""}, {"name": "a\nb"}, {"name": "a" * 65}, {"expires": 0}, {"expires": "x"}]
)
def test_a_name_or_time_that_cannot_be_is_refused(asked: dict[str, str | float]) -> None:
    with pytest.raises(AtollError):
        check_expose(ExposeRequest(**asked))  # type: ignore[arg-type]


def record_with(*ports: KeptPort) -> SandboxRecord:
    return SandboxRecord(
        id=parse_sandbox_id("a"),
        image="host",
        image_state="",
        limits=Limits(),
        created_at=datetime.now(UTC),
        ports=ports,
    )


def test_only_the_token_of_the_port_lets_in_and_only_until_its_time_is_up() -> None:
    now = datetime.now(UTC)
    over = KeptPort(port=9090, token="t", exposed_at=now, expires_at=now - timedelta(seconds=1))
    record = record_with(KeptPort(port=8080, token="t", exposed_at=now), over)
    assert admits(record, PreviewAddress(8080, "a", "t"))
    assert not admits(record, PreviewAddress(8080, "a", "u"))
    assert not admits(record, PreviewAddress(8081, "a", "t"))
    assert not admits(record, PreviewAddress(8081, "a", ""))
    assert not admits(record, PreviewAddress(9090, "a", "t"))
