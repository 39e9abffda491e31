"""Strangers: connections over TCP without a whole head yet, which anybody can make and which keep nobody out.

1. An address keeps MAX_PER_ADDRESS of them; the oldest make room for the next, unless they have only just come, as when
   many clients of one machine begin at once. Of IPv6 a whole /64 is one address: whoever has a part of it has it all.
2. When the server has all the connections it takes, the oldest of these makes room for whoever comes.
3. The more there are, the sooner they are given up. A client that means it sends its head at once.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Protocol

MAX_PER_ADDRESS = 64
JUST_COME_SECONDS = 1.0
MANY = 256
PATIENCE_SECONDS, LITTLE_PATIENCE_SECONDS = 30.0, 3.0


class Stranger(Protocol):
    def give_way(self) -> None:
        """Its connection is cut."""


class Strangers:
    """The strangers of one server, the oldest first."""

    def __init__(self) -> None:
        self._addresses: dict[Stranger, str] = {}
        self._by_address: dict[str, dict[Stranger, float]] = {}  # with when they came

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def patience(self) -> float:
        return PATIENCE_SECONDS if len(self) < MANY else LITTLE_PATIENCE_SECONDS

    def add(self, stranger: Stranger, address: str, now: float) -> None:
        group = group_of(address)
        neighbours = self._by_address.setdefault(group, {})
        neighbours[stranger] = now
        self._addresses[stranger] = group
        while len(neighbours) > MAX_PER_ADDRESS and now - next(iter(neighbours.values())) >= JUST_COME_SECONDS:
            self._dismiss(next(iter(neighbours)))

    def discard(self, stranger: Stranger) -> None:
        group = self._addresses.pop(stranger, None)
        if group is not None:
            del self._by_address[group][stranger]
            if not self._by_address[group]:
                del self._by_address[group]

    def make_room(self, for_whom: Stranger) -> bool:
        """Whether there was another one to give way."""
        oldest = next((stranger for stranger in self._addresses if stranger is not for_whom), None)
        if oldest is None:
            return False
        self._dismiss(oldest)
        return True

    def _dismiss(self, stranger: Stranger) -> None:
        self.discard(stranger)
        stranger.give_way()


def group_of(address: str) -> str:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # no address that we know
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped) if parsed.ipv4_mapped else parsed.exploded[:19]
    return str(parsed)
