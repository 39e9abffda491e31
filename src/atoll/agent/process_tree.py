"""Ending a command with everything it started.

A process belongs to a command if it descends from it, or is in its session: the first finds what moved to another
session, the second what lost its parent. Members are remembered by pid and start time, so that one whose parents
have died in the meantime is still found, and a reused pid is not hit.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NamedTuple

KILL_ROUNDS = 50  # a tree that forks as fast as it dies is caught within a few; this bounds a pathological one


Identity = tuple[int, int]  # pid and start time: a pid alone is reused


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


class ProcessTree:
    """The processes of one command, whose first process leads session `session`."""

    def __init__(self, session: int) -> None:
        self.session = session
        self._known: set[Identity] = set()

    def terminate(self) -> None:
        """Ask everyone to end."""
        for pid, _ in self._look():
            _signal(pid, signal.SIGTERM)

    def kill(self) -> None:
        """End everyone, including what is forked meanwhile."""
        killed: set[Identity] = set()
        for _ in range(KILL_ROUNDS):
            fresh = self._look() - killed
            if not fresh:
                return
            for pid, _ in fresh:
                _signal(pid, signal.SIGKILL)
            killed |= fresh

    def _look(self) -> set[Identity]:
        members = members_of(self.session, self._known, read_process_table())
        self._known |= members
        return members


def read_process_table() -> list[ProcessStat]:
    table = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                suppress(OSError),
                open(f"/proc/{name}/stat", "rb", buffering=0) as file,
            ):  # it may end any moment
                table.append(parse_stat(file.read()))
    return table


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
