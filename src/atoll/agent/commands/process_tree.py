"""Process trees: a command ended with everything it started.

A process belongs to a program's command if it descends from it, or is in its session: the first finds what moved to
another session, the second what lost its parent. Members are remembered by pid and start time, so that one whose
parents have died in the meantime is still found, and a reused pid is not hit.
What multiplies as fast as it is looked at stands still meanwhile, and so does a crowd, which would take the cpus that
the look needs. Then all of it is seen, and nobody has time to get away.

A shell outlives its commands, and what earlier ones left in the background shall live. Whoever loses its parent becomes
the shell's child, so a process belongs to the shell's command if it descends from the shell by way of processes that
were all born after the command began.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

from atoll.agent.commands.group import group
from atoll.agent.descriptors import Reserve, reserve

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

NANOSECONDS_PER_TICK = 10**9 // os.sysconf("SC_CLK_TCK")
NO_SESSION = -1
_EXITING = 0x4  # the flag of the kernel for a process on its way out
KILL_ROUNDS = 50  # a tree that forks as fast as it dies is caught within a few; this bounds a pathological one
QUICK_ROUNDS = 2  # of them before others have to stand still for it
CROWD = 256  # which takes some 8 ms to look at, if it lets us
LEAVING_PAUSE_SECONDS = 0.001
FEW_DYING = 16
DISPERSAL_SECONDS, DISPERSAL_PAUSE_SECONDS = 2.0, 0.005


Identity = tuple[int, int]  # pid and start time: a pid alone is reused
Birth = tuple[int, int]  # start time and pid: in one tick, the later has the higher pid


class ProcessStat(NamedTuple):
    pid: int
    parent: int
    session: int
    start_time: int
    state: bytes
    name: bytes
    flags: int = 0

    @property
    def is_zombie(self) -> bool:
        return self.state in (b"Z", b"X")

    @property
    def is_leaving(self) -> bool:
        """Whether it is on its way out: its files may be closed already, and it is its children's parent still."""
        return bool(self.flags & _EXITING) and not self.is_zombie

    @property
    def identity(self) -> Identity:
        return self.pid, self.start_time

    @property
    def birth(self) -> Birth:
        return self.start_time, self.pid


class ProcessTable(list[ProcessStat]):
    """All processes, and the last pid that had been given out before they were looked at."""

    last_pid = 0


def parse_stat(text: bytes) -> ProcessStat:
    """/proc/PID/stat. The name in brackets may hold brackets and spaces, so the fields count from the last one."""
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    pid, _, name = head.partition(b" (")
    return ProcessStat(int(pid), int(fields[1]), int(fields[3]), int(fields[19]), fields[0], name, int(fields[6]))


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
        self._killed: set[Identity] = set()  # of those that are known, who will die when the kernel gets round to it

    def terminate(self, table: list[ProcessStat] | None = None) -> bool:
        """Ask everyone to end who was not asked before. False if nobody is left."""
        with crowds_standing_still():
            members = self._look(table) - self._killed
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
        with crowds_standing_still():
            for pid, _ in self._look():
                _signal(pid, signal.SIGHUP)
                _signal(pid, signal.SIGCONT)

    def kill(self) -> None:
        """End everyone, including what is forked meanwhile."""
        with crowds_standing_still():
            kill_all([self], read_process_table())

    def kill_new(self, table: list[ProcessStat]) -> bool:
        """End who was not killed before. False if there is nobody."""
        fresh = self._look(table) - self._killed
        for pid, _ in fresh:
            _signal(pid, signal.SIGKILL)
        self._killed |= fresh
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

    @property
    def killed(self) -> set[Identity]:
        return self._killed

    def count_dying(self) -> int:
        """How many of those that were killed the kernel has not got round to."""
        return sum(os.path.exists(f"/proc/{pid}") for pid, _ in self._killed)

    def _look(self, table: list[ProcessStat] | None = None) -> set[Identity]:
        if table is None:
            table = read_process_table()
        members = self._members(table)
        # Also of the dead, until they are reaped: a first thread that has ended looks like one, and others may fork.
        self._known = {process.identity for process in table if process.identity in self._known} | members
        self._killed &= self._known
        return members

    def _members(self, table: list[ProcessStat]) -> set[Identity]:
        raise NotImplementedError


def kill_all(trees: Sequence[ProcessTree], table: ProcessTable) -> None:
    """End all of them, of whom `table` is the latest that is known.

    Who forks and ends while the table is read is not in it, and its child is not either. So whatever has been born
    meanwhile, all stand still for a last look. Nobody can be made to stand still while it ends: by then it has no pipe
    by which it is known, and its child is no orphan yet. So that is waited for.
    """
    left = list(trees)
    with ExitStack() as stack:
        is_still = False
        for number in range(KILL_ROUNDS):
            left = [tree for tree in left if tree.kill_new(table)]
            is_certain = is_still or births.last_pid() == table.last_pid
            if not left and is_certain and not _is_somebody_leaving(table, trees):
                return
            if not is_still and (not left or number + 1 == QUICK_ROUNDS):
                stack.enter_context(group.standing_still())
                is_still, left = True, list(trees)
            elif not left:
                time.sleep(LEAVING_PAUSE_SECONDS)
                left = list(trees)
            table = read_process_table()


def _is_somebody_leaving(table: ProcessTable, trees: Sequence[ProcessTree]) -> bool:
    """Of whom we do not know that they were killed."""
    leaving = {process.identity for process in table if process.is_leaving}
    return bool(leaving.difference(*(tree.killed for tree in trees)))


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
        with crowds_standing_still():
            table = read_process_table()
            for action in asking:
                action(table)
            kill_all([tree for tree, _ in killing], table)
        self._wait_for_room(killing, self._loop.time() + DISPERSAL_SECONDS)

    def _wait_for_room(self, killing: list[tuple[ProcessTree, Callable[[], None]]], give_up: float) -> None:
        """Wait until a crowd has gone: whoever hears of its end may at once start something, which needs the room."""
        if self._loop.time() < give_up and sum(tree.count_dying() for tree, _ in killing) > FEW_DYING:
            self._loop.call_later(DISPERSAL_PAUSE_SECONDS, self._wait_for_room, killing, give_up)
            return
        for _, then in killing:
            then()


class CommandTree(ProcessTree):
    """The processes of a program that was started as the leader of session `session`.

    `outputs` names the pipes that only they can write to: by these an orphan is known that left the session.
    """

    def __init__(self, session: int, outputs: Callable[[], set[str]] = set) -> None:
        super().__init__()
        self.session = session
        self._outputs = outputs

    def _members(self, table: list[ProcessStat]) -> set[Identity]:
        return members_of(self.session, self._known | self._orphans(table), table)

    def _orphans(self, table: list[ProcessStat]) -> set[Identity]:
        if not (outputs := self._outputs()):
            return set()
        ours = os.getpid()
        orphans = (process for process in table if process.parent == ours and not process.is_zombie)
        return {process.identity for process in orphans if not outputs.isdisjoint(_outputs_of(process.pid))}


class BackgroundTree(CommandTree):
    """The processes of a program that may be long gone while some that it started live on."""

    def __init__(self, session: int, outputs: Callable[[], set[str]]) -> None:
        super().__init__(session, outputs)
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


def _outputs_of(pid: int) -> Iterator[str]:
    """The files that are its standard output and error, as far as we may know."""
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

    _load = -1

    def open(self) -> None:
        self._load = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._load)
        self._load = -1

    def now(self) -> Birth:
        # A tick is long enough for hundreds of processes; within one, the last pid given out decides.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // NANOSECONDS_PER_TICK, self.last_pid()

    def last_pid(self) -> int:
        """The last pid that was given out, or 0 if this is not open."""
        return int(os.pread(self._load, 256, 0).split()[-1]) if self._load >= 0 else 0


births = BirthClock()  # a process has one


@contextmanager
def crowds_standing_still() -> Iterator[None]:
    with reserve.given_up():
        is_crowded = sum(map(str.isdigit, os.listdir("/proc"))) >= CROWD
    with group.standing_still() if is_crowded else nullcontext():
        yield


def read_process_table(reserve: Reserve = reserve) -> ProcessTable:
    table = ProcessTable()
    table.last_pid = births.last_pid()
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
