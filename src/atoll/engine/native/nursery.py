"""The nursery: a small single-threaded process with the agent's code already imported, which makes sandboxes.

It is exec'd, never forked from a server: what it has in memory every sandbox inherits, so it holds no secrets, and
a fork costs what the forking process weighs. It does not wait for a child to get ready before it makes the next, and
while nobody asks for anything it prepares embryos (see launcher.py) for those who will.
It ends when the engine's end of its socket closes; sandboxes live on.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress

import msgspec

from atoll.agent import main as agent
from atoll.agent.commands import process_tree
from atoll.agent.rehearsal import rehearse
from atoll.engine.native import launcher, mounts, orders, syscalls
from atoll.engine.native.cgroups import Cgroups, open_cgroups
from atoll.engine.native.group_files import group_name
from atoll.engine.native.launcher import Embryo, Failure, Kit, LaunchFailed
from atoll.engine.native.network_visits import NetworkVisits
from atoll.engine.native.seccomp import SeccompFilter
from atoll.engine.native.syscalls import Prctl
from atoll.engine.native.uid_ranges import UidRanges
from atoll.engine.native.views import Views
from atoll.engine.native.zygote import Zygote

IDLE_SECONDS = 0.01  # without an event for so long, there is time for what can wait
FIRST_USE_SECONDS = 0.03  # a new sandbox has the cpus to itself for so long, before others are prepared
RETIRE_ATTEMPTS = 20
PAUSE_AFTER_FAILURE_SECONDS = 1.0


class Birth(msgspec.Struct, frozen=True):
    """A launch under way. `env` is a descriptor, passed on unread."""

    launch: orders.Launch
    env: int
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
        self._prepare_after = 0.0
        self._emptying: set[str] = set()  # cgroups whose last process is on its way out
        self._visits = NetworkVisits()
        self._selector = selectors.EpollSelector()

    def serve(self) -> None:
        """Until the engine hangs up."""
        self._selector.register(self._engine, selectors.EVENT_READ, self._take_order)
        while True:
            events = self._selector.select(self._patience())
            if not events:
                self._remove_groups()
            if not events and self._needs_embryos and time.monotonic() >= self._prepare_after:
                self._prepare()
            for key, _ in events:
                if key.data() is False:
                    return self._retire()

    def _retire(self) -> None:
        """Take the embryos along. Sandboxes stay, and what is left of those that end is swept by the next nursery."""
        while self._embryos:
            embryo = self._embryos.popleft()
            self._let_go(embryo)  # which ends it
            self._collect(embryo)
        self._kit.zygote.close()
        for _ in range(RETIRE_ATTEMPTS):
            if not self._emptying:
                return
            time.sleep(IDLE_SECONDS)
            self._remove_groups()

    def _patience(self) -> float | None:
        """How long to wait for an event before doing what can wait."""
        if self._emptying:
            return IDLE_SECONDS
        return max(IDLE_SECONDS, self._prepare_after - time.monotonic()) if self._needs_embryos else None

    @property
    def _needs_embryos(self) -> bool:
        return len(self._embryos) < self._embryos_wanted and not self._under_way

    def _prepare(self) -> None:
        try:
            self._embryos.append(launcher.conceive(self._kit))
        except LaunchFailed:  # the next order tries anyway, and reports what it meets
            self._prepare_after = time.monotonic() + PAUSE_AFTER_FAILURE_SECONDS

    def _take_order(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self._engine, launcher.MAX_ORDER, 1)
        if not packet:
            return False
        match orders.decode_order(packet):
            case orders.Launch() as launch if fds:
                self._begin(launch, fds[0])
            case orders.Launch() as launch:
                self._regret(launch, Failure("receive the environment", errno.EMFILE, os.strerror(errno.EMFILE)))
            case orders.OpenSocket() | orders.OpenGateway() as order:
                self._open_socket(order, fds)
        return True

    def _open_socket(self, order: orders.OpenSocket | orders.OpenGateway, fds: list[int]) -> None:
        try:
            (process,) = fds
            with ExitStack() as close:
                if isinstance(order, orders.OpenSocket):
                    made = [self._visits.socket_at(process, order.family)]
                else:
                    made = [*self._visits.gateway_at(process)]
                for one in made:
                    close.enter_context(one)
                answer = orders.encode(orders.SocketOpened(ticket=order.ticket))
                socket.send_fds(self._engine, [answer], [one.fileno() for one in made])
        except (OSError, ValueError) as cause:
            number = getattr(cause, "errno", None) or errno.EMFILE
            self._engine.send(orders.encode(orders.SocketRefused(ticket=order.ticket, errno=number)))
        finally:
            for fd in fds:
                os.close(fd)

    def _begin(self, launch: orders.Launch, env: int) -> None:
        was_waiting = bool(self._embryos)
        try:
            embryo = self._embryos.popleft() if was_waiting else launcher.conceive(self._kit)
        except LaunchFailed as cause:
            os.close(env)
            self._regret(launch, cause.failure)
            return
        birth = Birth(launch, env, embryo, was_waiting)
        try:
            launcher.hatch(embryo, launch, env, self._kit)
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
        if report != launcher.READY:
            self._abandon(birth, launcher.decode_failure(report) if report else None)
            return
        try:
            self._kit.cgroups.set_cpus(birth.embryo.cgroup, birth.launch.resources.cpus)
        except OSError as cause:
            self._abandon(birth, Failure("set the cpu quota", cause.errno or 0, str(cause)))
        else:
            self._announce(birth)

    def _announce(self, birth: Birth) -> None:
        embryo = birth.embryo
        self._prepare_after = time.monotonic() + FIRST_USE_SECONDS
        os.close(birth.env)
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
        socket.send_fds(self._engine, [orders.encode(born)], [embryo.pidfd, embryo.channel.fileno()])
        self._let_go(embryo)

    def _abandon(self, birth: Birth, failure: Failure | None) -> None:
        """A launch failed. An embryo that ended while it waited is no reason to give up."""
        is_dead = failure is None or failure.step == "send the order"
        if is_dead:
            failure = launcher.last_words(birth.embryo) or failure
        self._let_go(birth.embryo)
        with suppress(ProcessLookupError):
            os.kill(birth.embryo.pid, signal.SIGKILL)
        self._collect(birth.embryo)
        if is_dead and birth.was_waiting:
            self._begin(birth.launch, birth.env)
        else:
            os.close(birth.env)
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
        self._emptying.add(embryo.cgroup)
        self._remove_groups()

    def _remove_groups(self) -> None:
        self._emptying = {name for name in self._emptying if not self._kit.cgroups.remove(name)}


def sweep(cgroups: Cgroups, uid_ranges: UidRanges) -> None:
    """Remove the groups and sockets of sandboxes that ended while no nursery was there to see it."""
    names = {group_name(base): base for base in uid_ranges.bases()}
    for name in cgroups.names():
        if name in names and uid_ranges.is_free(names[name]) and not cgroups.remove(name):
            cgroups.kill(name)  # its agent is gone, so nobody in it is anybody's
    for name in os.listdir(launcher.SOCKETS):
        path = f"{launcher.SOCKETS}/{name}"
        with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError):  # somebody else removes it
            probe.setblocking(False)  # one that is frozen takes nobody in
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            except BlockingIOError:  # busy, so alive
                continue


def open_nursery(engine: socket.socket) -> Nursery:
    opening = orders.decode_opening(engine.recv(launcher.MAX_ORDER))
    raise_open_files()
    uid_ranges, seccomp, cgroups = UidRanges(), SeccompFilter.shipped(), open_cgroups()
    if cgroups is None:
        raise SystemExit("no control groups that limit memory, processes and cpu")
    cgroups.expect_joins()
    rehearse(mounts.make_scratch)
    agent.shut_import_system()
    mounts.enter_small_root(opening.runtime, opening.exposures)
    sweep(cgroups, uid_ranges)
    child = launcher.Child(launcher.ChildKit(Views(), seccomp, agent.Agent(), opening.open_files, cgroups.freezing))
    # Objects made so far are never looked at by the collector again, so that it does not unshare their pages.
    gc.collect()
    gc.freeze()
    kit = Kit(uid_ranges, cgroups, Zygote(launcher.NAMESPACES, child.live))
    engine.send(orders.encode(orders.Opened()))
    return Nursery(engine, kit, opening.embryos)


def raise_open_files() -> None:
    """To what is allowed: there is a descriptor here for each sandbox."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    engine = socket.socket(fileno=int(sys.argv[-1]))
    engine.set_inheritable(False)
    sys.argv[1:] = []
    agent.reset_signals()
    os.umask(0o022)  # the modes of what it makes are meant
    # Every sandbox shows this as the command line of its PID 1.
    syscalls.overwrite_arguments(launcher.PROCESS_NAME)
    syscalls.prctl(Prctl.SET_NAME, b"atoll-nursery")
    with suppress(BrokenPipeError, ConnectionResetError):
        open_nursery(engine).serve()
