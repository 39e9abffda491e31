"""Addresses of previews: which port of which sandbox a host name means, and the token that says who may.

    8080-user-123-abcdefghij234567.localhost        a name for each, so that each is an origin of its own
    localhost/p/8080-user-123-abcdefghij234567/     a path, for places without names of their own; one origin for all

1. The port comes first and has no hyphen, the token last and has none: what is between them is the sandbox.
2. A label of DNS has 63 characters at most. A sandbox whose id leaves no room for the rest goes by an alias, which has
   an underscore, so that it is nobody's id.
3. Names are the same in any case (RFC 4343). What has no one meaning has none.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.ports import FIRST_PORT, LAST_PORT, MAX_TOKEN

MAX_LABEL = 63
MAX_SANDBOX = MAX_LABEL - len(f"{LAST_PORT}-") - len("-") - MAX_TOKEN
ALIAS_RANDOM = 10
ALIAS_START = MAX_SANDBOX - len("_") - ALIAS_RANDOM
MAX_HOST = 253
PATHS = "/p/"

_LABEL = re.compile(
    r"(?P<port>[1-9][0-9]{3,4})-(?P<sandbox>[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)-(?P<token>[a-z0-9_]{1,16})"
)
_AUTHORITY = re.compile(r"(?P<name>[A-Za-z0-9_.-]+?)\.?(?::[0-9]{1,5})?")
_PATH = re.compile(rf"{PATHS}(?P<label>[a-z0-9_-]+)(?P<rest>[/?].*)?", re.DOTALL)


class PreviewAddress(NamedTuple):
    """A port of a sandbox, by its id or its alias, and the token that whoever comes has."""

    port: int
    sandbox: str
    token: str

    @property
    def label(self) -> str:
        return f"{self.port}-{self.sandbox}-{self.token}"


class PreviewPlace(NamedTuple):
    """Where previews are served: `authority` is the domain, with a port unless that is the usual one."""

    scheme: str
    authority: str
    by_path: bool = False

    @property
    def domain(self) -> str:
        return domain_of(self.authority)

    def url(self, address: PreviewAddress) -> str:
        if self.by_path:
            return f"{self.scheme}://{self.authority}{PATHS}{address.label}/"
        return f"{self.scheme}://{address.label}.{self.authority}/"


def parse_label(label: str) -> PreviewAddress | None:
    found = _LABEL.fullmatch(label)
    if found is None or len(label) > MAX_LABEL:
        return None
    port = int(found["port"])
    if not FIRST_PORT <= port <= LAST_PORT:
        return None
    return PreviewAddress(port, found["sandbox"], found["token"])


def parse_host(host: str, domain: str) -> PreviewAddress | None:
    """The address in a Host header, where previews are names below `domain`. Its port is whoever's that listens."""
    name = domain_of(host)
    if not name.endswith(f".{domain}"):
        return None
    return parse_label(name.removesuffix(f".{domain}"))


def parse_path(target: str) -> tuple[PreviewAddress, str] | None:
    """The address in the path of a request, and what is left of that for the service."""
    found = _PATH.fullmatch(target)
    address = parse_label(found["label"]) if found else None
    if found is None or address is None:
        return None
    rest = found["rest"] or "/"
    return address, rest if rest.startswith("/") else f"/{rest}"


def domain_of(authority: str) -> str:
    """A host without its port and without the dot that an absolute name ends in; nothing of what is no host."""
    found = _AUTHORITY.fullmatch(authority) if len(authority) <= MAX_HOST + len(".:65535") else None
    return found["name"].lower() if found else ""


def needs_alias(sandbox: str) -> bool:
    return len(sandbox) > MAX_SANDBOX


def make_alias(sandbox: str, random: str) -> str:
    """A name for one whose id is too long: how that begins, so that people know it, and ALIAS_RANDOM characters."""
    return f"{parse_sandbox_id(sandbox)[:ALIAS_START]}_{random[:ALIAS_RANDOM]}"
