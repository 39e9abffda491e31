"""Policy: whether a sandbox may reach somebody, and which rule says so. Values in, a judgement out.

1. `deny` counts before `allow`, and what no rule of `allow` covers is denied.
2. A name is judged before anybody is asked for its addresses: what is denied causes no question.
3. A rule with a name allows the name; where it leads is judged too. An address that is not public needs a rule with an
   address. What is the host's own, or a metadata service's, no rule allows.
4. Over TLS the client must ask for the same name; if it asks for none, a list of names does not cover it.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from atoll.network.addresses import Address, Kind, Network, kind_of, meant
from atoll.protocol.network import NetworkPolicy, Rule, parse_rules

NO_RULE = "no rule allows it"


class Judgement(msgspec.Struct, frozen=True):
    """The rule that decided, and the rest in words."""

    is_allowed: bool
    rule: str
    detail: str = ""


class Policy(msgspec.Struct, frozen=True):
    """A policy, read; with what the operator says of addresses."""

    allow: tuple[Rule, ...]
    deny: tuple[Rule, ...]
    counted: tuple[Network, ...] = ()  # as public
    refused: tuple[Network, ...] = ()

    @classmethod
    def of(cls, given: NetworkPolicy, counted: tuple[Network, ...] = (), refused: tuple[Network, ...] = ()) -> Policy:
        return cls(_read(tuple(given.allow)), _read(tuple(given.deny)), counted, refused)

    def is_asked_for(self, name: str) -> Judgement:
        """Whether a name is to be known at all: on some port it may be allowed."""
        return self.judge_name(name, None)

    def judge_name(self, name: str, port: int | None) -> Judgement:
        """Without a port, whether there is one on which it may be allowed."""
        for rule in self.deny:
            if _covers_name(rule, name) and (rule.ports == _ALL if port is None else _covers_port(rule, port)):
                return Judgement(False, rule.text)
        for rule in self.allow:
            if (rule.is_public or _covers_name(rule, name)) and (port is None or _covers_port(rule, port)):
                return Judgement(True, rule.text)
        return Judgement(False, NO_RULE)

    def judge_address(self, address: Address, port: int, *, is_own: bool = False) -> Judgement:
        """Judge an address that the sandbox gave itself. `is_own` says that it is one of this host's."""
        denied, kind = self._denied(address, port, is_own)
        if denied:
            return denied
        for rule in self.allow:
            covers = _covers_address(rule, address) or (rule.is_public and kind in _IS_PUBLIC)
            if covers and _covers_port(rule, port):
                return Judgement(True, rule.text)
        return Judgement(False, NO_RULE, "" if kind in _IS_PUBLIC else f"the address is {kind.value}")

    def judge_resolved(self, address: Address, port: int, *, is_own: bool = False) -> Judgement:
        """Judge an address that an allowed name leads to."""
        denied, kind = self._denied(address, port, is_own)
        if denied:
            return denied
        if kind in _IS_PUBLIC:
            return Judgement(True, kind.value)
        for rule in self.allow:
            if _covers_address(rule, address) and _covers_port(rule, port):
                return Judgement(True, rule.text)
        return Judgement(False, NO_RULE, f"the name leads to an address that is {kind.value}")

    def _denied(self, address: Address, port: int, is_own: bool) -> tuple[Judgement | None, Kind]:
        kind = kind_of(address, self.counted, self.refused)
        if is_own and kind is not Kind.OPERATORS:
            kind = Kind.FORBIDDEN
        if kind in (Kind.FORBIDDEN, Kind.REFUSED):
            return Judgement(False, NEVER, f"the address is {kind.value}"), kind
        for rule in self.deny:
            covers = _covers_address(rule, address) or (rule.is_public and kind in _IS_PUBLIC)
            if covers and _covers_port(rule, port):
                return Judgement(False, rule.text), kind
        return None, kind

    def judge_server_name(self, name: str, asked: str | None, port: int) -> Judgement | None:
        """Judge the name that a client asks for over TLS at the one it reached; None if nothing speaks against it. An
        empty `name` is that of somebody who was reached by his address.
        """
        if asked is None:
            is_list = name and not any(rule.is_public for rule in self.allow)
            return Judgement(False, SERVER_NAME, "it asks for no name over TLS") if is_list else None
        if name and asked != name:
            return Judgement(False, SERVER_NAME, f"over TLS it asks for {asked:.253}")
        for rule in self.deny:
            if _covers_name(rule, asked) and _covers_port(rule, port):
                return Judgement(False, rule.text, f"over TLS it asks for {asked:.253}")
        return None


NEVER, SERVER_NAME = "never allowed", "the server name must be the name"
_ALL = (1, 65_535)
_IS_PUBLIC = (Kind.PUBLIC, Kind.OPERATORS)


@lru_cache(maxsize=256)
def _read(rules: tuple[str, ...]) -> tuple[Rule, ...]:
    """Most sandboxes have the same few."""
    return parse_rules(rules)


def _covers_name(rule: Rule, name: str) -> bool:
    if not rule.name:
        return False
    return name.endswith(f".{rule.name}") if rule.is_pattern else name == rule.name


def _covers_address(rule: Rule, address: Address) -> bool:
    address = meant(address)
    return rule.range is not None and rule.range.version == address.version and address in rule.range


def _covers_port(rule: Rule, port: int) -> bool:
    first, last = rule.ports
    return first <= port <= last
