"""The port probe: asks whether a port inside the sandbox is open.

Who answers is not trusted: one line is read, of bounded length.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING

from atoll.protocol.processes import PortMode

if TYPE_CHECKING:
    from atoll.protocol.processes import WaitForPort

PROBE_SECONDS = 5.0
MAX_STATUS_LINE = 1024
# As numbers: a name would make the C library read files that belong to the sandbox.
PLACES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? (\d{3})(?:\s|$)")


async def is_open(loop: asyncio.AbstractEventLoop, call: WaitForPort) -> bool:
    for family, host in PLACES:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as peer:
                peer.setblocking(False)
                async with asyncio.timeout(PROBE_SECONDS):
                    await loop.sock_connect(peer, (host, call.port))
                    if await _is_fit(loop, peer, call):
                        return True
        except OSError:  # nobody listens, or too slowly; or there is no such family here
            continue
    return False


async def _is_fit(loop: asyncio.AbstractEventLoop, peer: socket.socket, call: WaitForPort) -> bool:
    if peer.getsockname() == peer.getpeername():
        return False  # the kernel chose the very port as ours, and we have met ourselves
    if call.mode is PortMode.TCP:
        return True
    request = (
        f"GET {call.path} HTTP/1.1\r\nHost: localhost:{call.port}\r\nUser-Agent: atoll\r\nConnection: close\r\n\r\n"
    )
    await loop.sock_sendall(peer, request.encode("ascii"))
    match = _STATUS.match(await _first_line(loop, peer))
    return bool(match and call.min_status <= int(match[1]) <= call.max_status)


async def _first_line(loop: asyncio.AbstractEventLoop, peer: socket.socket) -> bytes:
    line = b""
    while b"\n" not in line and len(line) < MAX_STATUS_LINE:
        data = await loop.sock_recv(peer, MAX_STATUS_LINE)
        if not data:
            break
        line += data
    return line.partition(b"\n")[0]
