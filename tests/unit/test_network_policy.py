"""What a sandbox may reach: rules as they are written, addresses and their kinds, and the judgement."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.network.addresses import SYNTHETIC, Address, Kind, kind_of
from atoll.network.policy import Policy
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.network import NetworkPolicy, is_name, parse_network, parse_rule

LABELS = st.from_regex(r"\A[a-z]([a-z0-9-]{0,20}[a-z0-9])?\Z")
NAMES = st.lists(LABELS, min_size=1, max_size=5).map(".".join)
V4 = st.ip_addresses(v=4)
ADDRESSES = st.one_of(V4, st.ip_addresses(v=6))
PORTS = st.integers(1, 65_535)


def policy(allow: list[str] | None = None, deny: list[str] | None = None, **ranges: str) -> Policy:
    given = parse_network({"allow": ["public"] if allow is None else allow, "deny": deny or []})
    return Policy.of(given, **{name: (ip_network(text),) for name, text in ranges.items()})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, NetworkPolicy()),
        ("public", NetworkPolicy()),
        ("none", NetworkPolicy(allow=[])),
        ({"deny": ["Evil.Example"]}, NetworkPolicy(deny=["evil.example"])),
        (NetworkPolicy(allow=["*.example.org"]), NetworkPolicy(allow=["*.example.org"])),
    ],
)
def test_a_policy_is_given_in_several_ways(given: object, meant: NetworkPolicy) -> None:
    assert parse_network(given) == meant


@pytest.mark.parametrize("given", ["all", "", 3, True, ["x"], {"allow": "x"}, {"permit": []}, {"allow": ["x"] * 1_001}])
def test_what_is_no_policy_is_refused_with_its_value(given: object) -> None:
    with pytest.raises(AtollError) as caught:
        parse_network(given)
    assert caught.value.code is ErrorCode.INVALID_NETWORK_POLICY and caught.value.remedy


NO_NAMES = ". * *. a..b -a.example a/b exämple.org a.*.org x.* x.0x7f 2130706433 0x7f000001 127.1".split()
NO_RANGES = "10.0.0.0/33 10.0.0.1/8 10.0.0 010.0.0.1 1.2.3.4.5 [::1 [x] fd00::/129 a:b:c [::1]x".split()
NO_PORTS = "a:0 a:65536 a: a:9-8 a:1-2-3 a:-1".split()
NO_TEXTS = ["", " ", "a b", "a" * 64 + ".org", 3, None, b"a"]


@pytest.mark.parametrize("rule", [*NO_NAMES, *NO_RANGES, *NO_PORTS, *NO_TEXTS])
def test_what_is_no_rule_is_refused_with_its_value(rule: object) -> None:
    with pytest.raises(AtollError) as caught:
        parse_rule(rule)
    assert caught.value.code is ErrorCode.INVALID_NETWORK_POLICY and caught.value.remedy


@given(st.text(max_size=80))
def test_any_text_is_a_rule_or_an_error_with_a_remedy(text: str) -> None:
    try:
        rule = parse_rule(text)
    except AtollError as problem:
        assert problem.code is ErrorCode.INVALID_NETWORK_POLICY
    else:
        assert parse_rule(rule.text) == rule


@given(NAMES, PORTS)
def test_a_name_is_allowed_by_itself_and_by_a_pattern_above_it(name: str, port: int) -> None:
    assert policy([name]).judge_name(name, port).is_allowed
    assert policy(["*." + name]).judge_name("www." + name, port).is_allowed
    assert not policy(["*." + name]).judge_name(name, port).is_allowed
    assert not policy([name]).judge_name("www." + name, port).is_allowed
    assert not policy([name]).judge_name("x" + name, port).is_allowed
    assert not policy(["*." + name]).judge_name("www.x" + name, port).is_allowed


@given(NAMES, PORTS, PORTS)
def test_a_port_bounds_a_rule(name: str, port: int, other: int) -> None:
    assert policy([f"{name}:{port}"]).judge_name(name, other).is_allowed == (port == other)
    low, high = sorted((port, other))
    assert policy([f"{name}:{low}-{high}"]).judge_name(name, port).is_allowed
    assert policy([f"{name}:{port}"]).is_asked_for(name).is_allowed


@given(NAMES, PORTS)
def test_deny_counts_before_allow(name: str, port: int) -> None:
    found = policy([name], [name]).judge_name(name, port)
    assert not found.is_allowed and found.rule == name
    assert not policy(deny=[name]).is_asked_for(name).is_allowed
    assert policy(deny=[f"{name}:{port}"]).is_asked_for(name).is_allowed  # on another port it may be


@given(ADDRESSES, PORTS)
def test_an_address_that_is_not_public_is_never_reached_by_default(address: Address, port: int) -> None:
    is_public = kind_of(address) is Kind.PUBLIC
    assert policy().judge_address(address, port).is_allowed == is_public
    assert policy().judge_resolved(address, port).is_allowed == is_public
    assert not policy().judge_resolved(address, port, is_own=True).is_allowed
    assert not policy([]).judge_address(address, port).is_allowed
    assert not policy(["example.org"]).judge_address(address, port).is_allowed


@given(V4)
def test_what_stands_for_an_address_of_version_4_is_judged_as_that(address: IPv4Address) -> None:
    number = int(address)
    for other in (
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address((0x64FF9B << 96) | number),
        IPv6Address(0x2002 << 112 | number << 80),
    ):
        assert kind_of(other) is kind_of(address)


@given(ADDRESSES)
def test_public_is_no_more_than_python_takes_for_global(address: Address) -> None:
    if kind_of(address) is Kind.PUBLIC and address.version == 4:
        assert address.is_global and not address.is_multicast


KINDS = {
    Kind.FORBIDDEN: """127.0.0.1 127.255.255.254 0.0.0.0 169.254.169.254 224.0.0.1 255.255.255.255 :: ::1 fe80::1
        ::ffff:127.0.0.1 100.64.0.1 168.63.129.16 100.100.100.200 fd00:ec2::254 64:ff9b::a9fe:a9fe""",
    Kind.PRIVATE: """10.0.0.1 172.31.255.255 192.168.0.1 100.127.0.1 198.51.100.1 203.0.113.9 192.0.2.1 198.18.0.1
        240.0.0.1 fc00::1 2001:db8::1 ::ffff:10.0.0.1 2002:a00:1:: 2001::1 4000::1 3fff::1 ::1.2.3.4""",
    Kind.PUBLIC: "1.1.1.1 93.184.215.14 172.32.0.1 2606:4700::1111 2002:101:101::",
}


@pytest.mark.parametrize(("address", "kind"), [(text, kind) for kind, texts in KINDS.items() for text in texts.split()])
def test_addresses_are_of_a_kind(address: str, kind: Kind) -> None:
    assert kind_of(ip_address(address)) is kind


def test_a_rule_with_an_address_opens_what_is_private_and_nothing_opens_the_host() -> None:
    opened = policy(["10.1.2.0/24:443", "127.0.0.0/8", "169.254.169.254", "0.0.0.0/0", "::/0"])
    assert opened.judge_address(ip_address("10.1.2.3"), 443).rule == "10.1.2.0/24:443"
    for text in ("127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "100.64.0.1"):
        found = opened.judge_address(ip_address(text), 443)
        assert not found.is_allowed and found.rule == "never allowed"
    assert not opened.judge_address(ip_address("10.1.2.3"), 443, is_own=True).is_allowed
    assert not policy(["10.1.2.0/24:443"]).judge_address(ip_address("10.1.2.3"), 80).is_allowed


def test_a_name_that_leads_to_a_private_address_needs_a_rule_for_that_address_too() -> None:
    private = ip_address("10.1.2.3")
    assert not policy(["db.example.org"]).judge_resolved(private, 5432).is_allowed
    assert policy(["db.example.org", "10.1.2.0/24:5432"]).judge_resolved(private, 5432).is_allowed
    assert not policy(["db.example.org", "10.1.2.0/24:5432"]).judge_resolved(private, 22).is_allowed
    assert not policy(["db.example.org", "0.0.0.0/0"]).judge_resolved(ip_address("127.0.0.1"), 80).is_allowed


def test_the_operator_says_what_counts_as_public_and_what_nobody_reaches() -> None:
    documentation = ip_address("203.0.113.5")
    assert policy(counted="203.0.113.0/24").judge_resolved(documentation, 443).is_allowed
    assert policy(counted="203.0.113.0/24").judge_address(documentation, 443, is_own=True).is_allowed
    assert policy(counted="127.0.0.0/8").judge_address(ip_address("127.0.0.1"), 443).is_allowed
    assert not policy(["10.0.0.0/8"], refused="10.0.0.0/8").judge_address(ip_address("10.0.0.1"), 443).is_allowed
    assert not policy(refused="1.1.1.0/24").judge_resolved(ip_address("1.1.1.1"), 443).is_allowed


@pytest.mark.parametrize(
    ("allow", "name", "asked", "is_held"),
    [
        (["public"], "a.example", "a.example", True),
        (["public"], "a.example", None, True),
        (["public"], "a.example", "b.example", False),
        (["public"], "", "anything.example", True),
        (["a.example"], "a.example", "a.example", True),
        (["a.example"], "a.example", None, False),
        (["*.example"], "a.example", "b.example", False),
        (["10.0.0.0/8"], "", None, True),
    ],
)
def test_over_tls_the_same_name_must_be_asked_for(
    allow: list[str], name: str, asked: str | None, is_held: bool
) -> None:
    assert (policy(allow).judge_server_name(name, asked, 443) is None) == is_held


def test_a_denied_name_is_denied_by_its_address_too_if_it_is_asked_for_over_tls() -> None:
    found = policy(deny=["evil.example"]).judge_server_name("", "evil.example", 443)
    assert found and found.rule == "evil.example"


@given(st.text(alphabet="abc019-_.xX*:/[]", max_size=30))
def test_a_name_never_reads_as_an_address(text: str) -> None:
    if is_name(text):
        assert not text.rpartition(".")[2].isdigit()
        with pytest.raises(ValueError):
            ip_address(text)


def test_synthetic_addresses_are_not_public() -> None:
    assert kind_of(SYNTHETIC[1]) is Kind.PRIVATE
