"""The nursery: a small single-threaded process with the agent's code already imported, which makes sandboxes.

It is exec'd, never forked from a server: what it has in memory every sandbox inherits, so it holds no secrets, and
a fork costs what the forking process weighs. It does not wait for a child to get ready before it makes the next.
It ends when the engine's end of its socket closes; sandboxes live on.

Started as `python -I -m atoll.engine.native.nursery FD`.
"""

from __future__ import annotations

import array
import gc
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from atoll.agent import main as agent
from atoll.agent import process_tree
from atoll.agent.rehearsal import rehearse
from atoll.engine.native import launcher, mounts, orders, syscalls
from atoll.engine.native.launcher import Birth, Failure, Kit, LaunchFailed
from atoll.engine.native.seccomp import SeccompFilter
from atoll.engine.native.syscalls import Prctl
from atoll.engine.native.uid_ranges import UidRanges

MAX_ORDER = 1 << 18

_decode_failure = msgspec.msgpack.Decoder(Failure).decode


class Nursery:
    """Takes orders from the engine, watches its children."""

    def __init__(self, engine: socket.socket, kit: Kit) -> None:
        self._engine = engine
        self._kit = kit
        self._selector = selectors.EpollSelector()

    def serve(self) -> None:
        """Until the engine hangs up."""
        self._selector.register(self._engine, selectors.EVENT_READ, self._take_order)
        while True:
            for key, _ in self._selector.select():
                if key.data() is False:
                    return

    def _take_order(self) -> bool:
        packet = self._engine.recv(MAX_ORDER)
        if not packet:
            return False
        launch = orders.decode_launch(packet)
        try:
            birth = launcher.begin(launch, self._kit)
        except LaunchFailed as cause:
            self._regret(launch.ticket, cause.failure)
        else:
            self._selector.register(birth.report, selectors.EVENT_READ, lambda: self._read_report(birth))
        return True

    def _read_report(self, birth: Birth) -> None:
        report = os.read(birth.report, 4096)
        self._selector.unregister(birth.report)
        os.close(birth.report)
        if report == launcher.READY:
            self._selector.register(birth.pidfd, selectors.EVENT_READ, lambda: self._bury(birth))
            self._announce(birth)
            return
        os.kill(birth.pid, signal.SIGKILL)
        self._collect(birth)
        killed = Failure("set up the sandbox", 0, "its first process was killed")
        self._regret(birth.launch.ticket, _decode_failure(report) if report else killed)

    def _announce(self, birth: Birth) -> None:
        with open(f"/proc/{birth.pid}/stat", "rb") as file:  # noqa: PTH123
            start_time = process_tree.parse_stat(file.read()).start_time
        born = orders.Born(
            ticket=birth.launch.ticket, pid=birth.pid, start_time=start_time, uid_base=birth.uid_base
        )
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [birth.pidfd]))
        self._engine.sendmsg([orders.encode(born)], [rights])

    def _regret(self, ticket: int, failure: Failure) -> None:
        stillborn = orders.Stillborn(
            ticket=ticket, step=failure.step, errno=failure.errno, detail=failure.detail
        )
        self._engine.send(orders.encode(stillborn))

    def _bury(self, birth: Birth) -> None:
        self._selector.unregister(birth.pidfd)
        self._collect(birth)

    def _collect(self, birth: Birth) -> None:
        os.waitpid(birth.pid, 0)
        os.close(birth.pidfd)
        with suppress(FileNotFoundError):
            os.unlink(birth.launch.socket)


def open_nursery(engine: socket.socket) -> Nursery:
    opening = orders.decode_opening(engine.recv(MAX_ORDER))
    uid_ranges, seccomp = UidRanges(), SeccompFilter.shipped()
    rehearse()
    agent.shut_import_system()
    mounts.enter_small_root(opening.runtime, opening.exposures)
    kit = Kit(uid_ranges, mounts.Masks(), seccomp)
    # Objects made so far are never looked at by the collector again, so that it does not unshare their pages.
    gc.collect()
    gc.freeze()
    engine.send(orders.encode(orders.Opened()))
    return Nursery(engine, kit)


def main() -> None:
    engine = socket.socket(fileno=int(sys.argv[1]))
    engine.set_inheritable(False)
    sys.argv[1:] = []
    # Every sandbox shows this as the command line of its PID 1.
    syscalls.overwrite_arguments(launcher.PROCESS_NAME)
    syscalls.prctl(Prctl.SET_NAME, b"atoll-nursery")
    with suppress(BrokenPipeError, ConnectionResetError):
        open_nursery(engine).serve()


if __name__ == "__main__":
    main()
