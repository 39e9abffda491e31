"""A resident process: it stays, is told what to do over a control socket, and answers there.

A packet is one message, which either side reads at once and whole. What the process says before it ends is heard
before its end is.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.agent.commands.spawn import no_room
from atoll.protocol.errors import AtollError

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.commands.runner import CommandRunner

MAX_PACKET = 8192
MAX_PACKETS_LEFT = 64

_SIOCOUTQ = 0x5411


class Resident:
    """A running process and our end of its socket. Who derives from it hears what it says, and at last its end."""

    pid: int

    def start(self, what: str, runner: CommandRunner, spawn: Callable[[int], int]) -> None:
        """Make the process by `spawn`, which gets the descriptor of its end of the socket and returns its pid."""
        self._loop = runner.loop
        self._control, theirs = _make_control(what)
        with theirs:
            try:
                self.pid = spawn(theirs.fileno())
            except AtollError:
                self.close()
                raise
        self._loop.add_reader(self._control, self._take)
        runner.reaper.watch(self.pid, self._on_exit)

    def heard(self, packet: bytes) -> None:
        """The process said something."""
        raise NotImplementedError

    def ended(self, exit_code: int) -> None:
        """The process will say nothing more."""
        raise NotImplementedError

    def close(self) -> None:
        self._control.close()

    @property
    def has_read_everything(self) -> bool:
        """Whether nothing is left for it to read."""
        unread = fcntl.ioctl(self._control, _SIOCOUTQ, b"\0" * 4)
        return not any(unread)

    def tell(self, *packets: bytes) -> None:
        """Send them, up to the first that is not taken."""
        with suppress(OSError):  # it has ended, of which we shall hear
            for packet in packets:
                self._control.send(packet)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def _take(self) -> bool:
        """Take one packet. False if there is none."""
        try:
            packet = self._control.recv(MAX_PACKET)
        except BlockingIOError:
            return False
        except OSError:
            packet = b""
        if not packet:
            self._loop.remove_reader(self._control)
            return False
        self.heard(packet)
        return True

    def _on_exit(self, exit_code: int) -> None:
        for _ in range(MAX_PACKETS_LEFT):
            if not self._take():
                break
        self._loop.remove_reader(self._control)
        self.close()
        self.ended(exit_code)


def _make_control(what: str) -> tuple[socket.socket, socket.socket]:
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as cause:
        raise no_room(what, cause.strerror) from cause
    ours.setblocking(False)
    return ours, theirs
