"""The gateway, in a network namespace that a test made. Only tests start it, as

    python -I tests/lab_gateway.py PID WITHOUT FD

PID is of a process in that namespace, WITHOUT names defences that are taken away, each alone, or is empty.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from atoll.network import dns, doorway, gateway, policy
from atoll.network.addresses import Kind
from atoll.network.outlet import Outlet
from atoll.network.policy import Policy

NEW_NET = 0x4000_0000


def without_public_only() -> None:
    policy.kind_of = lambda *_: Kind.PUBLIC  # type: ignore[attr-defined]
    without_own_addresses()


def without_own_addresses() -> None:
    Outlet.is_own = staticmethod(lambda address: False)  # type: ignore[method-assign]


def without_one_lookup() -> None:
    """Another is asked for the address to connect to."""
    connect_to_any = doorway.Doorway._connect_to_any

    async def look_up_again(self: Any, attempt: Any, addresses: Any) -> Any:
        checked = await connect_to_any(self, attempt, addresses)
        if checked is None:
            return None
        checked.close()
        (address, *_) = await self._outlet.resolver._find(attempt.name)
        return await self._outlet.connect(address, attempt.port)

    doorway.Doorway._connect_to_any = look_up_again  # type: ignore[method-assign]


def without_server_name() -> None:
    Policy.judge_server_name = lambda *_: None  # type: ignore[method-assign]


def without_ports() -> None:
    policy._covers_port = lambda *_: True


def without_own_answers() -> None:
    """Questions are passed on."""

    def ask_outside(self: Any, message: bytes) -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.settimeout(30)
            peer.connect(self._outlet.resolver._servers[0])
            peer.send(message)
            return peer.recv(dns.MAX_MESSAGE)

    doorway.Doorway._answer = ask_outside  # type: ignore[method-assign]


SWITCHES: dict[str, Callable[[], None]] = {
    "public-only": without_public_only,
    "own-addresses": without_own_addresses,
    "one-lookup": without_one_lookup,
    "server-name": without_server_name,
    "ports": without_ports,
    "own-answers": without_own_answers,
}


def main() -> None:
    for name in filter(None, sys.argv[2].split(",")):
        SWITCHES[name]()
    fd = os.open(f"/proc/{sys.argv[1]}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, NEW_NET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)
    gateway.main()


if __name__ == "__main__":
    main()
