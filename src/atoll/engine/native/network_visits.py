"""Sockets made in a sandbox's network namespace, for use outside: the way to what listens on its loopback, and the
listeners of the gateway, where all that leaves the sandbox arrives.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from atoll.engine.native import syscalls
from atoll.engine.native.gateway_rules import DNS_PORT, GATEWAY, TCP_PORT
from atoll.engine.native.syscalls import Namespace

GATEWAY_BACKLOG = 256


class NetworkVisits:
    """A socket belongs for ever to the namespace it was made in, so a moment there is enough."""

    def __init__(self) -> None:
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def socket_at(self, process: int, family: int) -> socket.socket:
        """`process` is a pidfd, which unlike a pid always means the same process."""
        with self._visiting(process):
            return socket.socket(family, socket.SOCK_STREAM)

    def gateway_at(self, process: int) -> tuple[socket.socket, socket.socket]:
        """For TCP, and for DNS. Where the rules could not be set up, the address is not there."""
        with self._visiting(process), ExitStack() as undo:
            # The protocol is named: by it asyncio knows that what is accepted must not wait for more to send.
            tcp = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            dns = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP))
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier gateway's connections may linger
            tcp.bind((GATEWAY, TCP_PORT))
            tcp.listen(GATEWAY_BACKLOG)
            dns.bind((GATEWAY, DNS_PORT))
            undo.pop_all()
            return tcp, dns

    @contextmanager
    def _visiting(self, process: int) -> Iterator[None]:
        syscalls.setns(process, Namespace.NET)
        try:
            yield
        finally:
            syscalls.setns(self._home, Namespace.NET)
