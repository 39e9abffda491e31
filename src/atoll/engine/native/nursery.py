"""The nursery: a small single-threaded process with the agent's code already imported, which makes sandboxes.

It is exec'd, never forked from a server: what it has in memory every sandbox inherits, so it holds no secrets, and
a fork costs what the forking process weighs. It does not wait for a child to get ready before it makes the next, and
while nobody asks for anything it prepares embryos (see launcher.py) for those who will.
It ends when the engine's end of its socket closes; sandboxes live on.

Started as `python -I -m atoll.engine.native.nursery FD`.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
from collections import deque
from contextlib import suppress

import msgspec

from atoll.agent import main as agent
from atoll.agent import process_tree
from atoll.agent.rehearsal import rehearse
from atoll.engine.native import launcher, mounts, orders, syscalls
from atoll.engine.native.launcher import Embryo, Failure, Kit, LaunchFailed
from atoll.engine.native.seccomp import SeccompFilter
from atoll.engine.native.syscalls import Prctl
from atoll.engine.native.uid_ranges import UidRanges

IDLE_SECONDS = 0.01  # without an order for so long, there is time to prepare for the next


class Birth(msgspec.Struct, frozen=True):
    """A launch under way."""

    launch: orders.Launch
    embryo: Embryo
    was_waiting: bool


class Nursery:
    """Takes orders from the engine, watches its children."""

    def __init__(self, engine: socket.socket, kit: Kit, embryos_wanted: int) -> None:
        self._engine = engine
        self._kit = kit
        self._embryos: deque[Embryo] = deque()
        self._embryos_wanted = embryos_wanted
        self._under_way = 0
        self._selector = selectors.EpollSelector()

    def serve(self) -> None:
        """Until the engine hangs up."""
        self._selector.register(self._engine, selectors.EVENT_READ, self._take_order)
        while True:
            may_prepare = len(self._embryos) < self._embryos_wanted and not self._under_way
            events = self._selector.select(IDLE_SECONDS if may_prepare else None)
            if not events:
                self._prepare()
            for key, _ in events:
                if key.data() is False:
                    return

    def _prepare(self) -> None:
        try:
            self._embryos.append(launcher.conceive(self._kit))
        except LaunchFailed:
            # The next order tries again, and reports what it meets.
            self._embryos_wanted = 0

    def _take_order(self) -> bool:
        packet = self._engine.recv(launcher.MAX_ORDER)
        if packet:
            self._begin(orders.decode_launch(packet))
        return bool(packet)

    def _begin(self, launch: orders.Launch) -> None:
        was_waiting = bool(self._embryos)
        try:
            embryo = self._embryos.popleft() if was_waiting else launcher.conceive(self._kit)
        except LaunchFailed as cause:
            self._regret(launch, cause.failure)
            return
        birth = Birth(launch, embryo, was_waiting)
        try:
            launcher.hatch(embryo, launch)
        except LaunchFailed as cause:
            self._abandon(birth, cause.failure)
        else:
            self._under_way += 1
            self._selector.register(embryo.channel, selectors.EVENT_READ, lambda: self._read_report(birth))

    def _read_report(self, birth: Birth) -> None:
        self._under_way -= 1
        self._selector.unregister(birth.embryo.channel)
        report = b""
        with suppress(ConnectionResetError):  # it was killed with our order unread
            report = birth.embryo.channel.recv(4096)
        if report == launcher.READY:
            self._announce(birth)
        else:
            self._abandon(birth, launcher.decode_failure(report) if report else None)

    def _announce(self, birth: Birth) -> None:
        embryo = birth.embryo
        self._let_go(embryo)
        self._selector.register(embryo.pidfd, selectors.EVENT_READ, lambda: self._bury(embryo))
        with open(f"/proc/{embryo.pid}/stat", "rb") as file:
            start_time = process_tree.parse_stat(file.read()).start_time
        born = orders.Born(
            ticket=birth.launch.ticket,
            pid=embryo.pid,
            start_time=start_time,
            uid_base=embryo.uid_base,
            socket_name=embryo.socket_name,
        )
        socket.send_fds(self._engine, [orders.encode(born)], [embryo.pidfd])

    def _abandon(self, birth: Birth, failure: Failure | None) -> None:
        """A launch failed. An embryo that was killed while it waited is no reason to give up."""
        self._let_go(birth.embryo)
        with suppress(ProcessLookupError):
            os.kill(birth.embryo.pid, signal.SIGKILL)
        self._collect(birth.embryo)
        is_dead = failure is None or failure.step == "send the order"
        if is_dead and birth.was_waiting:
            self._begin(birth.launch)
        else:
            self._regret(birth.launch, failure or Failure("set up the sandbox", 0, "its first process was killed"))

    def _regret(self, launch: orders.Launch, failure: Failure) -> None:
        stillborn = orders.Stillborn(
            ticket=launch.ticket, step=failure.step, errno=failure.errno, detail=failure.detail
        )
        self._engine.send(orders.encode(stillborn))

    def _bury(self, embryo: Embryo) -> None:
        self._selector.unregister(embryo.pidfd)
        self._collect(embryo)

    def _let_go(self, embryo: Embryo) -> None:
        """Close what was needed only to hatch it."""
        embryo.channel.close()
        os.close(embryo.userns)

    def _collect(self, embryo: Embryo) -> None:
        os.waitpid(embryo.pid, 0)
        os.close(embryo.pidfd)
        with suppress(FileNotFoundError):
            os.unlink(f"{launcher.SOCKETS}/{embryo.socket_name}")


def open_nursery(engine: socket.socket) -> Nursery:
    opening = orders.decode_opening(engine.recv(launcher.MAX_ORDER))
    uid_ranges, seccomp = UidRanges(), SeccompFilter.shipped()
    rehearse()
    agent.shut_import_system()
    mounts.enter_small_root(opening.runtime, opening.exposures)
    kit = Kit(uid_ranges, mounts.Masks(), seccomp)
    # Objects made so far are never looked at by the collector again, so that it does not unshare their pages.
    gc.collect()
    gc.freeze()
    engine.send(orders.encode(orders.Opened()))
    return Nursery(engine, kit, opening.embryos)


def main() -> None:
    engine = socket.socket(fileno=int(sys.argv[1]))
    engine.set_inheritable(False)
    sys.argv[1:] = []
    agent.reset_signals()
    # Every sandbox shows this as the command line of its PID 1.
    syscalls.overwrite_arguments(launcher.PROCESS_NAME)
    syscalls.prctl(Prctl.SET_NAME, b"atoll-nursery")
    with suppress(BrokenPipeError, ConnectionResetError):
        open_nursery(engine).serve()


if __name__ == "__main__":
    main()
