"""The names that a sandbox has asked for, each with an address that stands for it.

Such an address is of no use to anybody else: what comes to it is for the name. Where the name leads is looked up when
that happens, and what was looked up is what is judged and connected to. A name server that says now this and now that
gains nothing by it.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv4Address

from atoll.network.addresses import SYNTHETIC

MAX_NAMES = 4_096  # of one sandbox; the one that was not used for longest goes
_FIRST, _COUNT = int(SYNTHETIC.network_address) + 1, SYNTHETIC.num_addresses - 2


class Names:
    """Addresses are given out in turn, so that one which was another name's is long out of use."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, IPv4Address] = OrderedDict()
        self._names: dict[IPv4Address, str] = {}
        self._given = 0

    def __len__(self) -> int:
        return len(self._addresses)

    def address_of(self, name: str) -> IPv4Address:
        address = self._addresses.get(name)
        if address is None:
            if len(self._addresses) == MAX_NAMES:
                del self._names[self._addresses.popitem(last=False)[1]]
            address = self._next()
            self._addresses[name], self._names[address] = address, name
        self._addresses.move_to_end(name)
        return address

    def name_of(self, address: IPv4Address) -> str | None:
        name = self._names.get(address)
        if name is not None:
            self._addresses.move_to_end(name)
        return name

    def _next(self) -> IPv4Address:
        while True:
            address = IPv4Address(_FIRST + self._given % _COUNT)
            self._given += 1
            if address not in self._names:
                return address
