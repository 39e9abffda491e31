"""Hostile bytes that the gateway reads: questions and answers of DNS, and the first message of TLS."""

from __future__ import annotations

import os
import ssl
import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.network import dns
from atoll.network.addresses import SYNTHETIC
from atoll.network.client_hello import MAX_HELLO, BadHello, Hello, Incomplete, NoTls, read_hello
from atoll.network.names import MAX_NAMES, Names

NAMES = st.lists(st.from_regex(r"\A[a-z0-9_-]{1,63}\Z"), min_size=1, max_size=4).map(".".join)


def client_hello(name: str | None) -> bytes:
    """As OpenSSL writes it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def record(content: bytes) -> bytes:
    return struct.pack("!BHH", 22, 0x0301, len(content)) + content


@given(NAMES, st.integers(0, 65_535), st.sampled_from(dns.Type))
def test_a_question_is_read_as_it_was_written(name: str, identity: int, kind: dns.Type) -> None:
    question = dns.read_question(dns.ask(identity, name, kind))
    assert (question.id, question.name, question.type) == (identity, name, kind)


@given(NAMES, st.lists(st.ip_addresses(v=4), max_size=20), st.integers(0, 2**31))
def test_an_answer_is_read_as_it_was_written(name: str, addresses: list[IPv4Address], seconds: int) -> None:
    asked = dns.ask(7, name, dns.Type.A)
    written = dns.answer(dns.read_question(asked), dns.Result.DONE, tuple(addresses), seconds)
    found = dns.read_answer(written, asked)
    assert found == dns.Answer(0, tuple(addresses), seconds if addresses else 0)


@given(st.binary(max_size=600))
def test_any_bytes_are_a_question_or_an_error(data: bytes) -> None:
    try:
        dns.read_question(data)
    except dns.BadMessage:
        dns.refusal(data)


@given(st.data())
def test_a_damaged_answer_is_an_answer_or_an_error(data: st.DataObject) -> None:
    asked = dns.ask(7, "www.example.org", dns.Type.A)
    whole = dns.answer(dns.read_question(asked), dns.Result.DONE, (IPv4Address("1.2.3.4"),) * 3, 60)
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(dns.BadMessage):
        dns.read_answer(bytes(damaged), asked)


def test_a_chain_of_names_is_followed_and_what_is_beside_it_is_not() -> None:
    asked = dns.ask(7, "a.example", dns.Type.AAAA)
    raw = dns.read_question(asked).raw

    def encoded(name: str) -> bytes:
        return dns.ask(0, name, dns.Type.A)[12:-4]

    def resource(owner: str, kind: int, data: bytes) -> bytes:
        return encoded(owner) + struct.pack("!HHIH", kind, 1, 60, len(data)) + data

    answers = (
        resource("a.example", 5, encoded("b.example")),
        resource("other.example", 28, bytes(16)),
        resource("b.example", 1, bytes(4)),
        resource("b.example", 28, IPv6Address("2001:db8::7").packed),
    )
    message = struct.pack("!HHHHHH", 7, 0x8180, 1, len(answers), 0, 0) + raw + b"".join(answers)
    assert dns.read_answer(message, asked).addresses == (IPv6Address("2001:db8::7"),)


@pytest.mark.parametrize("end", [b"\xc0\x0c", b"\xc0\x0e\xc0\x0c", b"\xc0", b"\x40", b"\x3f", b"\x01a" * 200])
def test_a_name_that_leads_nowhere_is_refused(end: bytes) -> None:
    with pytest.raises(dns.BadMessage):
        dns.read_question(struct.pack("!HHHHHH", 7, 0, 1, 0, 0, 0) + end + b"\0\1\0\1")


def test_an_answer_to_another_question_is_none() -> None:
    asked = dns.ask(7, "www.example.org", dns.Type.A)
    for other in (
        dns.ask(8, "www.example.org", dns.Type.A),
        dns.ask(7, "x.example.org", dns.Type.A),
        dns.ask(7, "www.example.org", dns.Type.AAAA),
    ):
        written = dns.answer(dns.read_question(other), dns.Result.DONE, (IPv4Address("1.2.3.4"),), 60)
        with pytest.raises(dns.BadMessage):
            dns.read_answer(written, asked)
    with pytest.raises(dns.BadMessage):
        dns.read_answer(asked, asked)


def test_a_dot_within_a_label_makes_another_name() -> None:
    message = struct.pack("!HHHHHH", 7, 0, 1, 0, 0, 0) + b"\x0ba.example.x\x03org\0" + b"\0\1\0\1"
    assert dns.read_question(message).name != "a.example.x.org"


@pytest.mark.parametrize("name", ["www.example.org", None, "A.Example.ORG"])
def test_the_server_name_of_a_real_hello_is_read(name: str | None) -> None:
    hello = client_hello(name)
    assert read_hello(hello) == Hello(name.lower() if name else None)
    for end in range(len(hello)):
        assert read_hello(hello[:end]) is Incomplete.INCOMPLETE


def test_a_hello_in_small_records_is_put_together() -> None:
    whole = client_hello("www.example.org")
    message = whole[5:]
    pieces = b"".join(record(message[at : at + 3]) for at in range(0, len(message), 3))
    assert read_hello(pieces) == Hello("www.example.org")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x", b"\x16\x05\0\0\1", b"\x80\x2e\1\3\1", b"\0"])
def test_what_is_no_tls_is_told_at_once(data: bytes) -> None:
    assert read_hello(data) is NoTls.NO_TLS


@pytest.mark.parametrize(
    "data",
    [
        record(b"\x02\0\0\4abcd"),
        record(b"\x01\xff\xff\xff"),
        b"\x16\3\1\0\0",
        b"\x16\3\1\xff\xff",
        record(b"\x01\0") + b"\x17\3\1\0\1x",
        record(b"\x01\0\0\4abcd"),
        record(b"\x01\0\x7f\xff") + record(b"x" * 16_000) * 3,
    ],
)
def test_what_only_begins_like_tls_is_refused(data: bytes) -> None:
    with pytest.raises(BadHello):
        read_hello(data)


def test_two_server_names_are_refused() -> None:
    hello = bytearray(client_hello("a.example")[5:])
    at = hello.index(b"\0\0\0\x0e\0\x0c\0\0\x09a.example")
    extension = bytes(hello[at : at + 18])
    hello[at:at] = extension
    size = len(hello) - 4
    hello[1:4] = size.to_bytes(3)
    extensions = at - 2
    while int.from_bytes(hello[extensions : extensions + 2]) != len(hello) - extensions - 2 - 18:
        extensions -= 1
    hello[extensions : extensions + 2] = (len(hello) - extensions - 2).to_bytes(2)
    with pytest.raises(BadHello, match="more than one"):
        read_hello(record(bytes(hello)))


@given(st.binary(max_size=2_000))
def test_any_bytes_are_judged(data: bytes) -> None:
    for stream in (data, b"\x16\3\1" + data, record(b"\1" + data[:1_000])):
        with suppress(BadHello):
            assert isinstance(read_hello(stream), Hello | Incomplete | NoTls)


def test_a_hello_has_its_bound() -> None:
    stream = b"".join(record(b"x") for _ in range(MAX_HELLO))
    with pytest.raises(BadHello):
        read_hello(b"\x16\3\1\0\4\1\0\x7f\0" + stream)


def test_every_name_has_an_address_and_the_oldest_gives_way() -> None:
    names = Names()
    first = names.address_of("first.example")
    assert names.name_of(first) == "first.example" and first in SYNTHETIC
    others = [names.address_of(f"{number}.example") for number in range(MAX_NAMES - 1)]
    assert len({first, *others}) == MAX_NAMES
    assert names.address_of("first.example") == first
    names.address_of("one-too-many.example")
    assert len(names) == MAX_NAMES
    assert names.name_of(others[0]) is None and names.name_of(first) == "first.example"
    assert names.address_of("0.example") not in others


def test_addresses_of_names_are_used_again_only_after_all_others() -> None:
    names, seen = Names(), set()
    for _ in range(3 * MAX_NAMES):
        address = names.address_of(os.urandom(8).hex())
        assert address not in seen
        seen.add(address)
