"""The rules of a sandbox's network: whatever it sends arrives at a listener in its own namespace, or nowhere.

    lo        127.0.0.1/8, the gateway's address, the sandbox's own; every other address is said to be behind it too
    raw       what stays on 127/8 is not tracked: it costs nothing, and fills no table
    nat       TCP goes to the gateway's port, DNS to its other one; where each was meant for, the kernel remembers
    filter    what is new is held to a rate, and what goes neither there nor to the sandbox itself is refused

There is no wire: without the gateway nobody is reached. IPv6 has no route, so it fails at once. A route of `local`
type for everything would do without nat, but make every address the sandbox's own.
"""

from __future__ import annotations

import socket
import struct
from enum import IntEnum

from atoll.engine.native.netlink import (
    ACK,
    APPEND,
    CREATE,
    EXCLUSIVE,
    NETLINK_NETFILTER,
    NETLINK_ROUTE,
    ask,
    attribute,
    long_number,
    message,
    nested,
    number,
    text,
)

GATEWAY, OWN = "100.64.0.1", "100.64.0.2"
# Rare: what binds one of these to all addresses inside is told that it is in use.
TCP_PORT, DNS_PORT = 61_417, 61_453
DNS = 53
# Connections and questions. Each is remembered when it is over, in memory of the kernel that is counted for nobody:
# with the kernel's own two minutes that would be 10 MB.
NEW_PER_SECOND, NEW_AT_ONCE = 200, 1_000
REMEMBERED_SECONDS = {"tcp_timeout_time_wait": 10, "udp_timeout": 5, "udp_timeout_stream": 5}

_LO = 1  # the index of the loopback interface in every namespace
_TABLE = "atoll"
_INET = 2


class _Route(IntEnum):
    NEW_ADDRESS = 20
    NEW_ROUTE = 24


class _Nft(IntEnum):
    """Messages of the packet filter, with its number in the upper byte."""

    NEW_TABLE = 10 << 8
    NEW_CHAIN = 10 << 8 | 3
    NEW_RULE = 10 << 8 | 6


_BATCH_BEGIN, _BATCH_END, _SUBSYSTEM = 16, 17, 10
_LOCAL_OUT = 3
_ACCEPT, _DROP = 1, 0
_REGISTER, _OTHER_REGISTER, _VERDICT = 1, 2, 0
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_SOURCE, _DESTINATION, _DESTINATION_PORT = (_NETWORK_HEADER, 12, 4), (_NETWORK_HEADER, 16, 4), (_TRANSPORT_HEADER, 2, 2)
_PROTOCOL_KEY, _STATE_KEY = 16, 0  # of what is known of a packet, of a connection
_STATE_NEW = 8
_EQUAL, _UNEQUAL = 0, 1
_TO_DESTINATION = 1  # nat
_OVER = 1  # a limit that matches what is beyond it
_PER_SECOND = 1
_UNREACHABLE, _TCP_RESET, _PROHIBITED = 0, 1, 13  # kinds of refusals, and the code of one


def _packed(address: str) -> bytes:
    return socket.inet_aton(address)


def _expression(name: str, *data: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *data))


def _load(place: tuple[int, int, int], register: int = _REGISTER) -> bytes:
    base, offset, length = place
    return _expression("payload", number(1, register), number(2, base), number(3, offset), number(4, length))


def _compare(value: bytes, operator: int = _EQUAL) -> bytes:
    return _expression("cmp", number(1, _REGISTER), number(2, operator), nested(3, attribute(1, value)))


def _masked(mask: bytes) -> bytes:
    data = nested(4, attribute(1, mask)), nested(5, attribute(1, bytes(len(mask))))
    return _expression("bitwise", number(1, _REGISTER), number(2, _REGISTER), number(3, len(mask)), *data)


def _on_loopback(place: tuple[int, int, int]) -> bytes:
    return _load(place) + _masked(b"\xff\0\0\0") + _compare(b"\x7f\0\0\0")


def _is_to(address: str) -> bytes:
    return _load(_DESTINATION) + _compare(_packed(address))


def _is_protocol(protocol: int) -> bytes:
    return _expression("meta", number(2, _PROTOCOL_KEY), number(1, _REGISTER)) + _compare(bytes([protocol]))


def _is_new() -> bytes:
    state = struct.pack("=I", _STATE_NEW)
    data = nested(4, attribute(1, state)), nested(5, attribute(1, bytes(4)))
    mask = _expression("bitwise", number(1, _REGISTER), number(2, _REGISTER), number(3, 4), *data)
    return _expression("ct", number(2, _STATE_KEY), number(1, _REGISTER)) + mask + _compare(bytes(4), operator=_UNEQUAL)


def _is_beyond(per_second: int, at_once: int) -> bytes:
    return _expression(
        "limit",
        long_number(1, per_second),
        long_number(2, _PER_SECOND),
        number(3, at_once),
        number(4, 0),
        number(5, _OVER),
    )


def _accept() -> bytes:
    return _expression("immediate", number(1, _VERDICT), nested(2, nested(2, number(1, _ACCEPT))))


def _send_to(address: str, port: int) -> bytes:
    return (
        _expression("immediate", number(1, _REGISTER), nested(2, attribute(1, _packed(address))))
        + _expression("immediate", number(1, _OTHER_REGISTER), nested(2, attribute(1, port.to_bytes(2, "big"))))
        + _expression(
            "nat", number(1, _TO_DESTINATION), number(2, _INET), number(3, _REGISTER), number(5, _OTHER_REGISTER)
        )
    )


def _refuse(kind: int, code: int = 0) -> bytes:
    return _expression("reject", number(1, kind), attribute(2, bytes([code])))


_CHAINS = {"raw": ("filter", -300), "nat": ("nat", -100), "filter": ("filter", 0)}
_RULES = {
    "raw": (_on_loopback(_SOURCE) + _on_loopback(_DESTINATION) + _expression("notrack"),),
    "nat": (
        _on_loopback(_DESTINATION) + _accept(),
        _is_to(OWN) + _accept(),
        _is_protocol(socket.IPPROTO_TCP) + _send_to(GATEWAY, TCP_PORT),
        _is_protocol(socket.IPPROTO_UDP)
        + _load(_DESTINATION_PORT)
        + _compare(DNS.to_bytes(2, "big"))
        + _send_to(GATEWAY, DNS_PORT),
    ),
    "filter": (
        _on_loopback(_DESTINATION) + _accept(),
        _is_protocol(socket.IPPROTO_TCP) + _is_new() + _is_beyond(NEW_PER_SECOND, NEW_AT_ONCE) + _refuse(_TCP_RESET),
        _is_new() + _is_beyond(NEW_PER_SECOND, NEW_AT_ONCE) + _refuse(_UNREACHABLE, _PROHIBITED),
        _is_to(GATEWAY) + _accept(),
        _is_to(OWN) + _accept(),
        _refuse(_UNREACHABLE, _PROHIBITED),
    ),
}
# As many as messages of the batch that are acknowledged.
_RULE_COUNT = 1 + len(_CHAINS) + sum(map(len, _RULES.values()))


def _nft(kind: int, flags: int, *attributes: bytes) -> bytes:
    return message(kind, flags | ACK, bytes([_INET, 0, 0, 0]) + b"".join(attributes))


def _batch_mark(kind: int) -> bytes:
    return message(kind, 0, bytes([0, 0]) + _SUBSYSTEM.to_bytes(2, "big"))


def packet_filter() -> bytes:
    """The whole table as one batch, which the kernel takes or refuses as a whole."""
    chains = (
        _nft(
            _Nft.NEW_CHAIN,
            CREATE,
            text(1, _TABLE),
            text(3, name),
            nested(4, number(1, _LOCAL_OUT), number(2, priority & 0xFFFFFFFF)),
            number(5, _ACCEPT),
            text(7, kind),
        )
        for name, (kind, priority) in _CHAINS.items()
    )
    rules = (
        _nft(_Nft.NEW_RULE, CREATE | APPEND, text(1, _TABLE), text(2, chain), nested(4, rule))
        for chain, of_chain in _RULES.items()
        for rule in of_chain
    )
    table = _nft(_Nft.NEW_TABLE, CREATE, text(1, _TABLE))
    return b"".join((_batch_mark(_BATCH_BEGIN), table, *chains, *rules, _batch_mark(_BATCH_END)))


def addresses_and_route() -> bytes:
    """Three messages."""
    added = (
        message(
            _Route.NEW_ADDRESS,
            ACK | CREATE | EXCLUSIVE,
            struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, _LO)
            + attribute(2, _packed(address))
            + attribute(1, _packed(address)),
        )
        for address in (GATEWAY, OWN)
    )
    static, link, unicast, main = 4, 253, 1, 254
    route = message(
        _Route.NEW_ROUTE,
        ACK | CREATE | EXCLUSIVE,
        struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, main, static, link, unicast, 0)
        + attribute(4, struct.pack("=I", _LO))
        + attribute(7, _packed(OWN)),
    )
    return b"".join((*added, route))


_PACKET_FILTER, _ADDRESSES_AND_ROUTE = packet_filter(), addresses_and_route()  # made once, for every sandbox


def set_up() -> None:
    """In this process's network namespace, whose loopback is up, with the capability to.

    The rules come first: where the kernel has none of them, nothing is changed, and nobody can listen for a gateway.
    """
    ask(NETLINK_NETFILTER, _PACKET_FILTER, _RULE_COUNT)
    for name, seconds in REMEMBERED_SECONDS.items():
        with open(f"/proc/sys/net/netfilter/nf_conntrack_{name}", "w") as file:
            file.write(str(seconds))
    ask(NETLINK_ROUTE, _ADDRESSES_AND_ROUTE, 3)
