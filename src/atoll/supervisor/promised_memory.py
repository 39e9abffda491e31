"""Promised memory: the sum over running sandboxes, more than the machine has, since few use what they may.

A sandbox that is frozen counts, as its memory is kept. One that is stopped does not, and is asked about again when it
starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.limits import format_size

OVERCOMMIT = 256.0  # a thousand default sandboxes on a machine of 8 GiB; an idle one takes 3 MB of its 2 GiB


class PromisedMemory:
    def __init__(self, overcommit: float = OVERCOMMIT, has: int | None = None) -> None:
        self._has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if has is None else has
        self._overcommit = overcommit
        self._under_way = 0
        self._running: dict[str, int] = {}  # by generation

    @property
    def most(self) -> int:
        return int(self._has * self._overcommit)

    @property
    def total(self) -> int:
        return self._under_way + sum(self._running.values())

    def _usable(self, memory: int) -> int:
        """More than the machine has is what nobody can use, and a way to ask for no limit."""
        return min(memory, self._has)

    @contextmanager
    def launching(self, memory: int) -> Iterator[None]:
        """A sandbox is started, which gets so much; or MEMORY_COMMITTED."""
        memory = self._usable(memory)
        most, promised = self.most, self.total
        if promised + memory > most:
            raise _too_much(self._has, most, promised, memory)
        self._under_way += memory
        try:
            yield
        finally:
            self._under_way -= memory

    @contextmanager
    def changing(self, generation: str, memory: int) -> Iterator[None]:
        """Promise one that runs so much instead; or MEMORY_COMMITTED."""
        more = self._usable(memory) - self._running.get(generation, 0)
        with self.launching(max(0, more)):
            yield
            self.note(generation, memory)

    def note(self, generation: str, memory: int) -> None:
        """A sandbox runs, whether there was room for it or not."""
        self._running[generation] = self._usable(memory)

    def forget(self, generation: str) -> None:
        """Take back the promise to one that has ended. Twice is fine."""
        self._running.pop(generation, None)


def _too_much(has: int, most: int, promised: int, asked: int) -> AtollError:
    return error(
        ErrorCode.MEMORY_COMMITTED,
        f"running sandboxes are promised {format_size(promised)} of the {format_size(most)} that may be promised on "
        f"this machine, which has {format_size(has)}; {format_size(asked)} more do not fit",
        remedy="Stop or destroy sandboxes, give them less memory, or start the server with a higher "
        "--memory-overcommit.",
        promised=promised,
        most=most,
        asked=asked,
    )
