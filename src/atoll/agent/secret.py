"""A secret that the host says first on every connection, where the kernel cannot say who a peer is: over TCP.

It travels as it is. Whoever can listen on the way must be kept from it by the network.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket

BYTES = 32
SECONDS = 10.0  # that a connection may take to say it


class Secret:
    def __init__(self, value: bytes) -> None:
        if len(value) != BYTES:
            raise ValueError(f"a secret has {BYTES} bytes; this has {len(value)}")
        self._value = value

    @classmethod
    def read(cls, fd: int) -> Secret:
        """From a pipe, or a file, which is closed."""
        with os.fdopen(fd, "rb") as file:
            return cls(file.read(BYTES + 1))

    async def is_said(self, peer: socket.socket) -> bool:
        """Nothing is read beyond it: what follows is a call."""
        said, loop = b"", asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SECONDS):
                while len(said) < BYTES and (more := await loop.sock_recv(peer, BYTES - len(said))):
                    said += more
        except (TimeoutError, OSError):
            return False
        return hmac.compare_digest(said, self._value)
