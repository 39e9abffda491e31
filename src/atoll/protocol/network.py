"""The network of a sandbox: what a user says about it, and what is said of each attempt to reach somebody.

A rule is a name, a pattern of names, an address or a range of addresses, each with a port or a range of ports if only
those are meant: `api.example.com`, `*.example.org:443`, `10.1.2.0/24:8000-8100`, `[2001:db8::/32]:443`. `public` is
everything that is on the public internet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

import msgspec

from atoll.protocol.errors import AtollError, ErrorCode, error, shown
from atoll.protocol.plain import Plain

PUBLIC, NONE = "public", "none"
MAX_RULES = 1_000
MAX_NAME, MAX_LABEL = 253, 63
MAX_CONNECTIONS = 1_000  # kept of each sandbox, the latest
ALL_PORTS = (1, 65_535)

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")
# What some programs take for an address, in decimal, octal or hexadecimal: a name never ends so.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_WITH_PORTS = re.compile(r"(?:\[(?P<bracketed>[^\]]*)\]|(?P<plain>[^:\[\]]*))(?::(?P<ports>[^:]*))?")
_REMEDY = (
    'Give names ("api.example.com", "*.example.org"), addresses ("10.1.2.3", "10.1.2.0/24", "[fd00::/64]") or '
    '"public", with ":443" or ":8000-8100" behind if only such ports are meant.'
)


class NetworkPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The peers a sandbox may reach: those that a rule of `allow` covers and none of `deny`. Without rules of its own,
    all that are public; with an empty `allow`, none.
    """

    allow: list[str] = msgspec.field(default_factory=lambda: [PUBLIC])
    deny: list[str] = []


class NetworkChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy from now on: "public", "none", or the rules."""

    network: str | dict[str, Any] | None = None


class Rule(msgspec.Struct, frozen=True):
    """A rule, read: the text it was, and either names, addresses, or neither, which is everything public."""

    text: str
    ports: tuple[int, int] = ALL_PORTS
    name: str = ""
    is_pattern: bool = False  # all names below `name`, and not itself
    range: IPv4Network | IPv6Network | None = None

    @property
    def is_public(self) -> bool:
        return not self.name and self.range is None


class Verdict(StrEnum):
    ALLOWED = "allowed"
    DENIED = "denied"
    FAILED = "failed"  # it was allowed, and nobody was reached


class Connection(Plain, frozen=True, kw_only=True):
    """An attempt of a sandbox to reach somebody. `name` is empty where an address was given, `address` where none was
    looked up; `port` is 0 for a question of DNS that was refused. `rule` says what allowed or denied it, `detail` the
    rest in words. `ended` is None while it is open. `count` says for how many, one after the other, this stands.
    """

    number: int
    time: datetime
    name: str
    address: str
    port: int
    verdict: Verdict
    rule: str
    detail: str = ""
    sent: int = 0
    received: int = 0
    ended: datetime | None = None
    count: int = 1


class ConnectionList(msgspec.Struct, frozen=True, kw_only=True):
    """The latest, in the order of their beginning; `dropped` is how many were before those."""

    connections: list[Connection]
    dropped: int = 0


def parse_network(given: object) -> NetworkPolicy:
    """The policy that a user gave: nothing, "public", "none", a policy, or its fields."""
    if given is None or given == PUBLIC:
        return NetworkPolicy()
    if given == NONE:
        return NetworkPolicy(allow=[])
    if isinstance(given, NetworkPolicy):
        allow, deny = given.allow, given.deny
    elif isinstance(given, dict) and set(given) <= {"allow", "deny"}:
        allow, deny = given.get("allow", [PUBLIC]), given.get("deny", [])
    else:
        raise _invalid(given, "is no policy", 'Give "public", "none", or NetworkPolicy(allow=[...], deny=[...]).')
    return NetworkPolicy(allow=_checked(allow, "allow"), deny=_checked(deny, "deny"))


def _checked(rules: object, name: str) -> list[str]:
    if not isinstance(rules, list | tuple):
        raise _invalid(rules, f"is no list of rules to {name}", f"Give {name} a list of texts.")
    if len(rules) > MAX_RULES:
        raise _invalid(len(rules), f"rules to {name} are too many", f"Give {MAX_RULES} at most.")
    return [parse_rule(rule).text for rule in rules]


def suggest(connections: Iterable[Connection]) -> NetworkPolicy:
    """The policy that allows what was allowed and reached, and nothing else."""
    rules = {_rule_for(one): None for one in connections if one.verdict is Verdict.ALLOWED}
    return NetworkPolicy(allow=sorted(rules))


def _rule_for(connection: Connection) -> str:
    host = connection.name or connection.address
    return f"[{host}]:{connection.port}" if ":" in host else f"{host}:{connection.port}"


def parse_rules(rules: Iterable[str]) -> tuple[Rule, ...]:
    return tuple(map(parse_rule, rules))


def parse_rule(given: object) -> Rule:
    """A rule, or an error that says what one looks like."""
    if not isinstance(given, str) or not given.isascii():
        remedy = "Give an international name as DNS has it, such as xn--bcher-kva.example." if given else _REMEDY
        raise _invalid(given, "is no rule", remedy)
    text = given.strip().lower()
    if text.count(":") > 1 and not text.startswith("["):
        return Rule(text, range=_parse_range(text, given))
    match = _WITH_PORTS.fullmatch(text)
    if match is None:
        raise _invalid(given, "is no rule", _REMEDY)
    ports = ALL_PORTS if match["ports"] is None else _parse_ports(match["ports"], given)
    if match["bracketed"] is not None:
        return Rule(text, ports, range=_parse_range(match["bracketed"], given))
    what: str = match["plain"]
    if what == PUBLIC:
        return Rule(text, ports)
    if "/" in what or _NUMBER.fullmatch(what.rpartition(".")[2]):
        return Rule(text, ports, range=_parse_range(what, given))
    is_pattern = what.startswith("*.")
    name = what.removeprefix("*.").removesuffix(".")
    if not is_name(name):
        raise _invalid(given, "is no rule", _REMEDY)
    return Rule(text, ports, name=name, is_pattern=is_pattern)


def is_name(name: str) -> bool:
    """Whether this is a name that DNS may know, in lower case, without a dot at its end."""
    labels = name.split(".")
    return (
        0 < len(name) <= MAX_NAME
        and all(len(label) <= MAX_LABEL and _LABEL.fullmatch(label) for label in labels)
        and not _NUMBER.fullmatch(labels[-1])
    )


def _parse_range(text: str, given: object) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as cause:
        raise _invalid(given, f"is no rule: {cause}", _REMEDY) from cause


def _parse_ports(text: str, given: object) -> tuple[int, int]:
    match = _PORTS.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= ALL_PORTS[1]:
        raise _invalid(given, "is no rule", "Ports are from 1 to 65535, the lower one first.")
    return first, last


def _invalid(value: object, what: str, remedy: str) -> AtollError:
    return error(
        ErrorCode.INVALID_NETWORK_POLICY, f"{shown(value)} {what}", remedy=remedy, field="network", value=shown(value)
    )
