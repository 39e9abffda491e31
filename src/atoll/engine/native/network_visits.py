"""Sockets made in a sandbox's network namespace, for use outside: the way to what listens on its loopback."""

from __future__ import annotations

import os
import socket

from atoll.engine.native import syscalls
from atoll.engine.native.syscalls import Namespace


class NetworkVisits:
    """A socket belongs for ever to the namespace it was made in, so a moment there is enough."""

    def __init__(self) -> None:
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def socket_at(self, process: int, family: int) -> socket.socket:
        """`process` is a pidfd, which unlike a pid always means the same process."""
        syscalls.setns(process, Namespace.NET)
        try:
            return socket.socket(family, socket.SOCK_STREAM)
        finally:
            syscalls.setns(self._home, Namespace.NET)
