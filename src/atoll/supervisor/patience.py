"""Patience: how long an agent is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

from atoll.supervisor.agent_failures import silent


class Patience:
    """So many seconds for all waits together, or no end of them.

    What passes between two waits is the reader's own time. So an agent gets no more by saying a little now and then.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = self._left = seconds

    async def wait_for(self, something: Awaitable[None]) -> None:
        if self._left is None or self._seconds is None:
            await something
            return
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._left):
                await something
        except TimeoutError as cause:
            raise silent(self._seconds) from cause
        waited = time.monotonic() - began
        if waited < self._left:  # or it was we who stood still
            self._left -= waited
