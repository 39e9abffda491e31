"""Turns on the server's event loop, so that no sandbox keeps it from the others.

Rules:
1. In one round of the loop all operations of a sandbox together may take TURN_SECONDS. It is looked at between frames,
   and between parts of a frame that has many.
2. Who needs more stands in line with the others of its sandbox, of whom one goes on in each round.

So what an agent sends in tiny pieces, or what clients ask of one sandbox all at once, delays a neighbour by one turn.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

TURN_SECONDS = 0.0001


class Turns:
    """The turns of one sandbox."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._ends_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether this sandbox has had its turn in this round; the first to ask begins it."""
        if self._ends_at is None:
            self._begin()
            return False
        return perf_counter() >= self._ends_at

    async def next(self) -> None:
        """Return in a later round, when others have had theirs."""
        async with self._line:
            await asyncio.sleep(0)
            self._begin()

    def _begin(self) -> None:
        if self._ends_at is None:
            asyncio.get_running_loop().call_soon(self._end_round)
        self._ends_at = perf_counter() + TURN_SECONDS

    def _end_round(self) -> None:
        self._ends_at = None
