"""Leftovers of an earlier nursery that does not end: found by the lock they inherited, and ended.

A nursery, its zygote and children too young to have a name share the lock on their log (`nursery_process.py`). They end
when their server does, unless somebody stopped them or they wait for the kernel. A sandbox that lives on has let go of
the lock long before it was told to.

1. Only who holds the lock as its output, and is called what they are called, is one; a nursery that has only begun is
   known by its command. And whoever took the lock, its server, must not be the parent of the nursery any more: that of
   a server which runs is left alone.
2. A number may be another process by the time it is used. So each is opened, and looked at again, before it is ended.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from atoll.agent.commands.process_tree import ProcessStat, parse_stat

PROC = Path("/proc")
OUTPUTS = (1, 2)
NAMES = (b"atoll-nursery", b"atoll-zygote")  # a child has the zygote's until it has let go of the lock


def end_leftovers(log: Path, program: tuple[str, ...]) -> list[ProcessStat]:
    """The processes that were ended, each of a nursery run as `program` that writes to `log`."""
    return [found for found in leftovers(log, program) if _end(found, log, program)]


def leftovers(log: Path, program: tuple[str, ...]) -> list[ProcessStat]:
    numbers = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return [found for number in numbers if (found := leftover(number, log, program))]


def leftover(pid: int, log: Path, program: tuple[str, ...]) -> ProcessStat | None:
    """The process of that number, if it is one. What ends meanwhile is none."""
    with suppress(OSError):
        locker = _locker(pid, log.stat())
        if locker is None:
            return None
        found = parse_stat((PROC / str(pid) / "stat").read_bytes())
        if found.name not in NAMES and not _runs(pid, program):
            return None
        leader = _stat(found.session)  # the nursery: it, its zygote and young children are one session
        return None if leader and leader.parent == locker else found
    return None


def _end(found: ProcessStat, log: Path, program: tuple[str, ...]) -> bool:
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(found.pid)
        try:
            again = leftover(found.pid, log, program)
            if again and again.identity == found.identity:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return True
        finally:
            os.close(pidfd)
    return False


def _locker(pid: int, log: os.stat_result) -> int | None:
    """The pid of who took the lock on the log that is this process's output; None if it holds none."""
    for number in OUTPUTS:
        if os.path.samestat((PROC / str(pid) / "fd" / str(number)).stat(), log):
            for line in (PROC / str(pid) / "fdinfo" / str(number)).read_text().splitlines():
                words = line.split()  # lock: 1: FLOCK ADVISORY READ 4711 fe:00:2211922 0 EOF
                if words[:1] == ["lock:"] and words[2] == "FLOCK":
                    return int(words[5])
    return None


def _runs(pid: int, program: tuple[str, ...]) -> bool:
    words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    wanted = [os.fsencode(word) for word in program]
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))


def _stat(pid: int) -> ProcessStat | None:
    with suppress(OSError):
        return parse_stat((PROC / str(pid) / "stat").read_bytes())
    return None
