"""The control group of commands: what the agent starts is in it, and the agent is not.

Rules:
1. The limit of memory is the group's. When it is reached, the kernel chooses among those who are in it, whatever they
   make of their own scores; PID 1 is never one of them.
2. Commands and agent have the cpus in equal parts when both want them, however many commands there are.
3. A process joins before it runs anything of the sandbox's, so nobody inside is ever outside.
4. It stands still only while the agent looks at it and does nothing else: no process is made, and nobody is waited for.
5. On version 1 a join costs 12 us a tree, in every command. So the agent itself is in the commands' group of the tree
   that freezes, where its children are born, and steps aside for as long as the others stand still.

Who else makes sandboxes than the native engine may have no such group. Then commands are where the agent is.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FREEZE_SECONDS, FREEZE_PAUSE_SECONDS = 2.0, 0.001


class Freezing(NamedTuple):
    """A version of control groups: the words it takes and gives, how many trees a command joins, and the descriptors
    with which a group is made to stand still, after those of the joins: whether another one than the first tells that
    it does, and whether two more are ways out of the group and back.
    """

    freeze: bytes
    thaw: bytes
    is_frozen: bytes
    trees: int
    tells_apart: bool
    steps_aside: bool

    @property
    def descriptors(self) -> int:
        return self.trees + 1 + self.tells_apart + 2 * self.steps_aside


V1 = Freezing(b"FROZEN", b"THAWED", b"FROZEN", trees=2, tells_apart=False, steps_aside=True)  # memory and cpu
V2 = Freezing(b"1", b"0", b"frozen 1", trees=1, tells_apart=True, steps_aside=False)


class CommandGroup:
    """Descriptors of it that the nursery opened."""

    def __init__(self) -> None:
        self.joins: tuple[int, ...] = ()
        self._words: Freezing | None = None
        self._is_standing_still = False

    def open(self, words: Freezing, fds: Sequence[int]) -> None:
        """`fds` are those by which one joins, the one that freezes, and what else `words` says."""
        self.joins = tuple(fds[: words.trees])
        self._control, *others = fds[words.trees :]
        self._state = others[0] if words.tells_apart else self._control
        self._ways = others[-2:] if words.steps_aside else []
        self._words = words

    def join(self) -> None:
        """Join the group, which a fork of the agent does first."""
        for fd in self.joins:
            os.write(fd, b"0")

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """As far as possible: who waits for the kernel, for a disk perhaps, is not waited for."""
        if self._words is None or self._is_standing_still:
            yield
            return
        self._is_standing_still = True
        try:
            for way in self._ways[:1]:
                os.write(way, b"0")
            self._freeze(self._words)
            yield
        finally:
            self._is_standing_still = False
            os.pwrite(self._control, self._words.thaw, 0)
            for way in self._ways[1:]:
                os.write(way, b"0")

    def _freeze(self, words: Freezing) -> None:
        give_up = time.monotonic() + FREEZE_SECONDS
        while time.monotonic() < give_up:
            # Said again until it is so: version 1 tells each process once, and one in vfork may miss it.
            os.pwrite(self._control, words.freeze, 0)
            if words.is_frozen in os.pread(self._state, 4096, 0):
                return
            time.sleep(FREEZE_PAUSE_SECONDS)


group = CommandGroup()  # a process has one
