"""The zygote: the process that every sandbox is a copy of. It does nothing but fork.

Each page that is written after a fork is copied first, on both sides. A nursery that forked by itself would copy some
400 pages for every sandbox, 1.3 ms; this one sleeps between two forks and copies few. Its children are the nursery's.

It forks as the user that the sandbox's root will be. Whoever makes a user namespace is charged for what the kernel
counts by user, such as inotify instances; made by root, all sandboxes would share root's 128.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from atoll.engine.native import syscalls
from atoll.engine.native.syscalls import Prctl

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.engine.native.syscalls import Namespace

PROCESS_NAME = b"atoll-zygote"
MAX_DESCRIPTORS = 16

_REQUEST = struct.Struct("I?")  # uid; whether the first descriptor is a control group to be cloned into
_CLONED = struct.Struct("ii")  # pid, errno


class Zygote:
    """The nursery's side."""

    def __init__(self, namespaces: Namespace, live: Callable[[list[int]], NoReturn]) -> None:
        """`live` is what a child does with the descriptors it is given."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _serve(_keep_only(theirs), namespaces, live)
        theirs.close()

    def clone(self, uid: int, fds: list[int], cgroup: int | None) -> tuple[int, int]:
        """A new child, made by user `uid`, in a control group of version 2 if one is given: its pid, and a pidfd."""
        sent = fds if cgroup is None else [cgroup, *fds]
        answer = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._channel, [_REQUEST.pack(uid, cgroup is not None)], sent)
            answer = self._channel.recv(_CLONED.size)
        if not answer:
            raise SystemExit("the zygote was killed")  # a nursery without one is of no use
        pid, number = _CLONED.unpack(answer)
        if number:
            raise OSError(number, os.strerror(number))
        try:
            return pid, os.pidfd_open(pid)  # only we can collect it, so the number is still its own
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def close(self) -> None:
        self._channel.close()
        os.waitpid(self.pid, 0)


def _keep_only(channel: socket.socket) -> socket.socket:
    """Close all that is the nursery's: with its sockets open here, nobody would see it die."""
    number = 3
    os.dup2(channel.detach(), number, inheritable=False)
    syscalls.close_from(number + 1)
    return socket.socket(fileno=number)


def _serve(channel: socket.socket, namespaces: Namespace, live: Callable[[list[int]], NoReturn]) -> NoReturn:
    syscalls.prctl(Prctl.SET_NAME, PROCESS_NAME)
    # To be another user for the length of a clone is not to give up what root may do.
    syscalls.prctl(Prctl.SET_SECUREBITS, syscalls.NO_SETUID_FIXUP)
    siblings = syscalls.SiblingMaker(namespaces)
    while True:
        request, fds, _, _ = socket.recv_fds(channel, _REQUEST.size, MAX_DESCRIPTORS)
        if not request:
            os._exit(0)
        uid, has_cgroup = _REQUEST.unpack(request)
        try:
            os.seteuid(uid)
            if (pid := siblings.make(fds[0] if has_cgroup else None)) == 0:
                live(fds[1:] if has_cgroup else fds)
            answer = _CLONED.pack(pid, 0)
        except OSError as cause:
            answer = _CLONED.pack(0, cause.errno)
        os.seteuid(0)
        for fd in fds:
            os.close(fd)
        channel.send(answer)
