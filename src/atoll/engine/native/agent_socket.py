"""The way to a sandbox's agent: a Unix socket in a directory that only the host can reach."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from contextlib import suppress
from pathlib import Path

MAX_PATH = 107
PAUSES = (0.005, 0.01, 0.02, 0.05)
SENT_AHEAD = 2**20  # the kernel gives twice its default at most: large files go twice as far without a wait


class AgentSocket:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._in_line = asyncio.Lock()

    async def connect(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)
            try:
                connect(peer, self.path)
            except BlockingIOError:
                await self._wait_in_line(peer)
        except BaseException:
            peer.close()
            raise
        return peer

    async def _wait_in_line(self, peer: socket.socket) -> None:
        """So many wait already that the agent takes no more. A Unix socket cannot tell us when; so one of us tries."""
        async with self._in_line:
            for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
                await asyncio.sleep(pause)
                with suppress(BlockingIOError):
                    connect(peer, self.path)
                    break

    def answers(self) -> bool:
        """Whether somebody listens there."""
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)
                connect(probe, self.path)
        except BlockingIOError:  # so many want to connect that there must be somebody
            return True
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        return True


def connect(peer: socket.socket, path: Path) -> None:
    """A socket's path may have 107 bytes; through a descriptor of its directory it always fits."""
    if len(os.fsencode(path)) <= MAX_PATH:
        peer.connect(str(path))
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        peer.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
