"""Patience: how long an agent is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from atoll.supervisor.agent_failures import silent


class deadline:
    """Gives an agent so many seconds, or all the time in the world, to finish what is in the block."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout = None if seconds is None else asyncio.timeout(seconds)
        self._stands_still = False

    async def __aenter__(self) -> deadline:
        if self._timeout:
            await self._timeout.__aenter__()
        return self

    def stand_still(self) -> None:
        if self._timeout:
            self._stands_still = True
            self._timeout.reschedule(None)

    def run(self) -> None:
        """Count from the beginning, after a stand-still."""
        if self._timeout and self._seconds is not None and self._stands_still:
            self._stands_still = False
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

    async def __aexit__(self, *failure: Any) -> None:
        try:
            if self._timeout:
                await self._timeout.__aexit__(*failure)
        except TimeoutError as cause:
            assert self._seconds is not None, "without a time there is no time-out"
            raise silent(self._seconds) from cause


class Patience:
    """So many seconds for all waits together, or no end of them.

    What passes between two waits is the reader's own time. So an agent gets no more by saying a little now and then.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = self._left = seconds

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        if self._left is None or self._seconds is None:
            yield
            return
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._left):
                yield
        except TimeoutError as cause:
            raise silent(self._seconds) from cause
        waited = time.monotonic() - began
        if waited < self._left:  # or it was we who stood still
            self._left -= waited
