"""A child that tries something in namespaces of its own, and leaves nothing: what it mounts goes with it."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from atoll.engine.native import syscalls
from atoll.engine.native.syscalls import Namespace
from atoll.engine.native.uid_ranges import RANGE_SIZE, UidRanges

MAX_REPORT = 4_096
DONE = b"done"
_ERRNO = struct.Struct("q")  # and the step


class ProbeFailed(Exception):
    """The failure of a child, in its words, and what the kernel said."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)}" if number else step)
        self.step = step
        self.errno = number


class Inside:
    """The child's end: what it is at, for the report of a failure, and the socket to its parent."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.step = "start"

    def wait(self) -> list[int]:
        """For the parent's word, and the descriptors that come along."""
        packet, fds, _, _ = socket.recv_fds(self.channel, 1, 8)
        if not packet:
            os._exit(1)  # nobody asks any more
        return fds


class Outside(NamedTuple):
    """The parent's end."""

    pid: int
    channel: socket.socket

    def go(self, fds: list[int]) -> None:
        socket.send_fds(self.channel, [b"!"], fds)

    def result(self) -> None:
        """Return when the child has done all it should; raise what stopped it."""
        report = self.channel.recv(MAX_REPORT)
        if not report:
            raise ProbeFailed("it ended before it could report", 0)
        if report != DONE:
            raise ProbeFailed(report[_ERRNO.size :].decode(), _ERRNO.unpack_from(report)[0])


@contextmanager
def probe_child(
    namespaces: Namespace, live: Callable[[Inside], object], cgroup: int | None = None
) -> Iterator[Outside]:
    """Run `live` in a child; whatever becomes of it, it is gone at the end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        pid = syscalls.clone3(namespaces, cgroup)
        if pid == 0:
            ours.close()
            _live(live, Inside(theirs))
        theirs.close()
        try:
            yield Outside(pid, ours)
        finally:
            os.kill(pid, signal.SIGKILL)  # or what is left of it: nobody but us can collect it
            os.waitpid(pid, 0)


@contextmanager
def mapped_child(namespaces: Namespace, live: Callable[[Inside], object]) -> Iterator[tuple[Outside, int]]:
    """The same with a range of user ids, as a sandbox has; and a descriptor of its user namespace."""
    base, holder = UidRanges().take()
    try:
        with probe_child(namespaces | Namespace.USER, live) as child:
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{child.pid}/{name}", "w") as file:
                    file.write(f"0 {base} {RANGE_SIZE}")
            userns = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield child, userns
            finally:
                os.close(userns)
    finally:
        os.close(holder)


def _live(live: Callable[[Inside], object], inside: Inside) -> None:
    """Never returns: a copy of the program must not go on with what its parent was at."""
    try:
        live(inside)
        inside.channel.send(DONE)
    except OSError as cause:
        inside.channel.send(_ERRNO.pack(cause.errno or 0) + inside.step.encode())
    finally:
        os._exit(0)
