"""Limits of open descriptors: the agent's own, and a command's.

Rules:
1. A command starts with the limits that the agent was started with, whatever the agent has come to need since.
2. The agent raises its own soft limit to the hard one when it comes to have many. Few ever do, and no other pays for
   it at each command.
3. While few are left, whatever would take more is refused.
4. One is held in reserve: whoever must be ended is found also when none is left.

The kernel gives the lowest number that is free, so a new descriptor's number tells how many there are at least.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DESCRIPTORS_LEFT = 128  # or a quarter, if there are few at all
FEW_LEFT = "its agent is about to run out of file descriptors"


class DescriptorLimit:
    """`with limit:` around a spawn, as short as can be: other threads have what the child shall have meanwhile."""

    def __init__(self) -> None:
        self._is_raised = False
        self._many = self._most = sys.maxsize

    def open(self) -> None:
        """From now on; before that there is no end of them."""
        self._limits = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = sys.maxsize if hard == resource.RLIM_INFINITY else hard - min(DESCRIPTORS_LEFT, hard // 4)
        self._many = sys.maxsize if soft == resource.RLIM_INFINITY else min(soft // 4, self._most)

    def close(self) -> None:
        """For rehearsals."""
        self.lower()
        self._is_raised = False
        self._many = self._most = sys.maxsize

    def note(self, fd: int) -> None:
        """A new descriptor, of those that may be many."""
        if fd >= self._many and not self._is_raised:
            self._is_raised = self._limits[0] != self._limits[1]
            self.restore()

    def has_room_after(self, fd: int) -> bool:
        """Whether there may be more after this new one."""
        self.note(fd)
        return fd < self._most

    def lower(self) -> None:
        """Take the limits that a command gets. In a child that will be one this is all."""
        if self._is_raised:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def restore(self) -> None:
        if self._is_raised:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._limits[1], self._limits[1]))

    def __enter__(self) -> None:
        self.lower()

    def __exit__(self, *_: object) -> None:
        self.restore()


class Reserve:
    """A descriptor in reserve. Each thread needs its own."""

    _fd = -1

    def open(self) -> None:
        self._fd = os.dup(0)  # nothing new: an agent is opened while the directories around it are still the host's

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """The work done in here may have one descriptor at a time."""
        was_open = self._fd >= 0
        self.close()
        try:
            yield
        finally:
            if was_open:
                with suppress(OSError):
                    self.open()


limit = DescriptorLimit()  # a process has one
reserve = Reserve()
