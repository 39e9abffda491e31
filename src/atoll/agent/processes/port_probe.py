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

NOBODY = "nobody took the connection"
PROBE_SECONDS = 5.0
MAX_STATUS_LINE = 1024
# As numbers: a name would make the C library read files that belong to the sandbox.
PLACES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? (\d{3})(?:\s|$)")


class Probe:
    """The question whether a port is open, asked as often as need be. `seen` is what the last answer was, in words."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: WaitForPort) -> None:
        self.seen = ""
        self._loop = loop
        self._call = call

    async def is_open(self) -> bool:
        seen = ""
        for family, host in PLACES:
            found = await look(self._loop, self._call, family, host)
            if found is None:
                return True
            seen = seen or found
        self.seen = seen or NOBODY
        return False


async def look(loop: asyncio.AbstractEventLoop, call: WaitForPort, family: int, host: str) -> str | None:
    """None if it is open there; otherwise what was seen, and nothing if nobody listens."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as peer:
            peer.setblocking(False)
            async with asyncio.timeout(PROBE_SECONDS):
                await loop.sock_connect(peer, (host, call.port))
                return await _unfit(loop, peer, call)
    except TimeoutError:
        return "it took a connection and gave no answer"
    except OSError:  # nobody listens; or there is no such family here
        return ""


async def _unfit(loop: asyncio.AbstractEventLoop, peer: socket.socket, call: WaitForPort) -> str | None:
    if peer.getsockname() == peer.getpeername():
        return ""  # the kernel chose the very port as ours, and we have met ourselves
    if call.mode is PortMode.TCP:
        return None
    request = (
        f"GET {call.path} HTTP/1.1\r\nHost: localhost:{call.port}\r\nUser-Agent: atoll\r\nConnection: close\r\n\r\n"
    )
    await loop.sock_sendall(peer, request.encode("ascii"))
    match = _STATUS.match(await _first_line(loop, peer))
    if match is None:
        return "what answered spoke no HTTP"
    return None if call.min_status <= int(match[1]) <= call.max_status else f"it answered with status {int(match[1])}"


async def _first_line(loop: asyncio.AbstractEventLoop, peer: socket.socket) -> bytes:
    line = b""
    while b"\n" not in line and len(line) < MAX_STATUS_LINE:
        data = await loop.sock_recv(peer, MAX_STATUS_LINE)
        if not data:
            break
        line += data
    return line.partition(b"\n")[0]
