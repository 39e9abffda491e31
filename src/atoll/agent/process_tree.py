"""Ending a command with everything it started.

A process belongs to a program's command if it descends from it, or is in its session: the first finds what moved to
another session, the second what lost its parent. Members are remembered by pid and start time, so that one whose
parents have died in the meantime is still found, and a reused pid is not hit.

A shell outlives its commands, and what earlier ones left in the background shall live. Whoever loses its parent becomes
the shell's child, so a process belongs to the shell's command if it descends from the shell by way of processes that
were all born after the command began.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from atoll.agent.descriptors import Reserve, reserve

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

NANOSECONDS_PER_TICK = 10**9 // os.sysconf("SC_CLK_TCK")
NO_SESSION = -1
KILL_ROUNDS = 50  # a tree that forks as fast as it dies is caught within a few; this bounds a pathological one


Identity = tuple[int, int]  # pid and start time: a pid alone is reused
Birth = tuple[int, int]  # start time and pid: in one tick, the later has the higher pid


class ProcessStat(NamedTuple):
    pid: int
    parent: int
    session: int
    start_time: int
    state: bytes
    name: bytes

    @property
    def is_zombie(self) -> bool:
        return self.state in (b"Z", b"X")

    @property
    def identity(self) -> Identity:
        return self.pid, self.start_time

    @property
    def birth(self) -> Birth:
        return self.start_time, self.pid


def parse_stat(text: bytes) -> ProcessStat:
    """/proc/PID/stat. The name in brackets may hold brackets and spaces, so the fields count from the last one."""
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    pid, _, name = head.partition(b" (")
    return ProcessStat(int(pid), int(fields[1]), int(fields[3]), int(fields[19]), fields[0], name)


def members_of(session: int, known: set[Identity], table: list[ProcessStat]) -> set[Identity]:
    """(pid, start time) of each living process that belongs to the command whose first process made `session`."""
    members = {process.pid for process in table if process.session == session or process.identity in known}
    grown = True
    while grown:
        children = {process.pid for process in table if process.parent in members} - members
        members |= children
        grown = bool(children)
    return {process.identity for process in table if process.pid in members and not process.is_zombie}


def born_below(shell: int, since: Birth, known: set[Identity], table: list[ProcessStat]) -> set[Identity]:
    """(pid, start time) of each living process that `shell` or a member of `known` brought forth after `since`."""
    parents = {shell} | {process.pid for process in table if process.identity in known}
    members = parents - {shell}
    while parents:
        parents = {process.pid for process in table if process.parent in parents and process.birth > since} - members
        members |= parents
    return {process.identity for process in table if process.pid in members and not process.is_zombie}


class ProcessTree:
    """The processes of one command."""

    def __init__(self) -> None:
        self._known: set[Identity] = set()
        self._asked: set[Identity] = set()

    def terminate(self, table: list[ProcessStat] | None = None) -> bool:
        """Ask everyone to end who was not asked before. False if nobody is left."""
        members = self._look(table)
        for pid, _ in members - self._asked:
            _signal(pid, signal.SIGTERM)
        self._asked = members
        return bool(members)

    def add(self, pid: int) -> None:
        """A process that belongs to it in any case, and has not been reaped."""
        with reserve.given_up():
            self._known.add(read_stat(pid).identity)

    def hang_up(self) -> None:
        """As a terminal that is gone does. Who is stopped hears SIGHUP only when it goes on."""
        for pid, _ in self._look():
            _signal(pid, signal.SIGHUP)
            _signal(pid, signal.SIGCONT)

    def kill(self) -> None:
        """End everyone, including what is forked meanwhile."""
        kill_all([self], read_process_table())

    def kill_new(self, killed: set[Identity], table: list[ProcessStat]) -> bool:
        """End who is not in `killed`, and put them there. False if there is nobody."""
        fresh = self._look(table) - killed
        for pid, _ in fresh:
            _signal(pid, signal.SIGKILL)
        killed |= fresh
        return bool(fresh)

    def signal(self, number: int, table: list[ProcessStat] | None = None) -> bool:
        """Send it to everyone. False if nobody is left."""
        members = self._look(table)
        for pid, _ in members:
            _signal(pid, number)
        return bool(members)

    def is_alive(self, table: list[ProcessStat] | None = None) -> bool:
        """Whether anyone is left. Whoever is seen now is found again later, whatever became of its parents."""
        return bool(self._look(table))

    def _look(self, table: list[ProcessStat] | None = None) -> set[Identity]:
        if table is None:
            table = read_process_table()
        members = self._members(table)
        # Also of the dead, until they are reaped: a first thread that has ended looks like one, and others may fork.
        self._known = {process.identity for process in table if process.identity in self._known} | members
        return members

    def _members(self, table: list[ProcessStat]) -> set[Identity]:
        raise NotImplementedError


def kill_all(trees: Sequence[ProcessTree], table: list[ProcessStat]) -> None:
    """End all of them, of whom `table` is the latest that is known."""
    left = [(tree, set[Identity]()) for tree in trees]
    for _ in range(KILL_ROUNDS):
        left = [(tree, killed) for tree, killed in left if tree.kill_new(killed, table)]
        if not left:
            return
        table = read_process_table()


class Endings:
    """Trees that are to be ended, those of one turn of the loop together.

    One look at all processes is enough for them. It takes a while where there are many, and then many may be due.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asking: list[Callable[[list[ProcessStat]], object]] = []
        self._killing: list[tuple[ProcessTree, Callable[[], None]]] = []

    def ask(self, action: Callable[[list[ProcessStat]], object]) -> None:
        """Do this with a table of all processes."""
        self._settle_soon()
        self._asking.append(action)

    def kill(self, tree: ProcessTree, then: Callable[[], None] = lambda: None) -> None:
        self._settle_soon()
        self._killing.append((tree, then))

    def _settle_soon(self) -> None:
        if not (self._asking or self._killing):
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        asking, self._asking = self._asking, []
        killing, self._killing = self._killing, []
        table = read_process_table()
        for action in asking:
            action(table)
        kill_all([tree for tree, _ in killing], table)
        for _, then in killing:
            then()


class CommandTree(ProcessTree):
    """The processes of a program that was started as the leader of session `session`."""

    def __init__(self, session: int) -> None:
        super().__init__()
        self.session = session

    def _members(self, table: list[ProcessStat]) -> set[Identity]:
        return members_of(self.session, self._known, table)


class BackgroundTree(CommandTree):
    """The processes of a program that may be long gone while some that it started live on.

    `outputs` names the pipes that only they can write to: by these an orphan is known that left the session.
    """

    def __init__(self, session: int, outputs: Callable[[], set[str]]) -> None:
        super().__init__(session)
        self._outputs = outputs
        self._has_leader = True

    def leader_ended(self, table: list[ProcessStat]) -> bool:
        """From now on its pid may be given to another, once nobody of its session is left. Whether somebody is."""
        left = self._look(table)
        self._has_leader = False
        return bool(left | self._look(table))

    def _members(self, table: list[ProcessStat]) -> set[Identity]:
        if self._has_leader:
            return super()._members(table)
        # A session's number is not given to others while a member lives, so one that we know vouches for the rest.
        sessions = {process.session for process in table if process.identity in self._known}
        session = self.session if self.session in sessions else NO_SESSION
        return members_of(session, self._known | self._orphans(table), table)

    def _orphans(self, table: list[ProcessStat]) -> set[Identity]:
        if not (outputs := self._outputs()):
            return set()
        ours = os.getpid()
        orphans = (process for process in table if process.parent == ours and not process.is_zombie)
        return {process.identity for process in orphans if not outputs.isdisjoint(_outputs_of(process.pid))}


def _outputs_of(pid: int) -> Iterator[str]:
    """What its standard output and error are, as far as we may know."""
    for fd in (1, 2):
        with suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{fd}")


class ShellCommandTree(ProcessTree):
    """The processes of the command that `shell` began at `since`, without the shell."""

    def __init__(self, shell: int, since: Birth) -> None:
        super().__init__()
        self._shell = shell
        self._since = since

    def _members(self, table: list[ProcessStat]) -> set[Identity]:
        return born_below(self._shell, self._since, self._known, table)


class BirthClock:
    """Tells which birth is the latest so far, without a look at any process."""

    def open(self) -> None:
        self._load = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._load)

    def now(self) -> Birth:
        # A tick is long enough for hundreds of processes; within one, the last pid given out decides.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // NANOSECONDS_PER_TICK, self.last_pid()

    def last_pid(self) -> int:
        return int(os.pread(self._load, 256, 0).split()[-1])


def read_process_table(reserve: Reserve = reserve) -> list[ProcessStat]:
    table = []
    with reserve.given_up():
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):  # it may end any moment
                    table.append(read_stat(name))
    return table


def read_stat(pid: int | str) -> ProcessStat:
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return parse_stat(file.read())


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
