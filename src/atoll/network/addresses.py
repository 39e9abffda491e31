"""Addresses: which are on the public internet, which may never be reached, and which stand for names.

The kinds are those of the registries of special addresses (RFC 6890 and what came after), written down here, because
what the standard library says of them differs from version to version.
"""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Of synthetic addresses, one for each name that a sandbox asks for. Two machines that test each other use this range,
# and nobody on the internet has an address in it.
SYNTHETIC = IPv4Network("198.18.0.0/15")


class Kind(Enum):
    """The value is what people are told."""

    PUBLIC = "public"
    OPERATORS = "counted as public by the operator"
    PRIVATE = "not public"  # policy may allow it, by its address
    FORBIDDEN = "of the host, its links, or a cloud's metadata service"  # no policy allows it
    REFUSED = "refused by the operator"


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ip_network, texts))


_FORBIDDEN = _networks(
    "0.0.0.0/8",  # this host
    "100.64.0.0/29",  # a sandbox's own and its gateway's
    "127.0.0.0/8",
    "169.254.0.0/16",  # the link, and most clouds' metadata
    "224.0.0.0/4",
    "255.255.255.255/32",
    # Metadata, or what it is fetched from, of Azure, Alibaba and Oracle
    "168.63.129.16/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "::/127",  # nobody, and this host
    "fe80::/10",
    "ff00::/8",
    "fd00:ec2::/32",  # Amazon's metadata
    "fd20:ce::254/128",  # Google's
)
_NOT_PUBLIC = _networks(
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
    # Of version 6 only 2000::/3 was ever given out, and in it these are something else.
    "2001::/23",
    "2001:db8::/32",
    "2620:4f:8000::/48",
    "3fff::/20",
)
_GIVEN_OUT = IPv6Network("2000::/3")
_TRANSLATED = IPv6Network("64:ff9b::/96")


def kind_of(address: Address, counted: tuple[Network, ...] = (), refused: tuple[Network, ...] = ()) -> Kind:
    """`counted` are ranges that the operator counts as public, `refused` those that he wants nobody to reach."""
    address = meant(address)
    if _is_in(address, refused):
        return Kind.REFUSED
    if _is_in(address, counted):
        return Kind.OPERATORS
    if _is_in(address, _FORBIDDEN):
        return Kind.FORBIDDEN
    if _is_in(address, _NOT_PUBLIC) or (address.version == 6 and address not in _GIVEN_OUT):
        return Kind.PRIVATE
    return Kind.PUBLIC


def meant(address: Address) -> Address:
    """The address of version 4 that one of version 6 leads to, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
