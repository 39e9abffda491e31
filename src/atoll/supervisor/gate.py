"""The gate in front of the disks: passed by whoever makes, starts or removes a sandbox, closed while they are away.

Who finds it closed is told why at once, and does not wait: a recovery may take as long as its cause lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from atoll.protocol.errors import from_body

if TYPE_CHECKING:
    from atoll.protocol.errors import AtollError, ErrorBody


class Gate:
    def __init__(self) -> None:
        self._reason: ErrorBody | None = None
        self._inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @contextmanager
    def passing(self) -> Iterator[None]:
        if self._reason:
            raise from_body(self._reason)  # an error of its own for each: they note on it what they were about
        self._inside += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._is_empty.set()

    @asynccontextmanager
    async def closed(self, reason: AtollError) -> AsyncIterator[None]:
        """From when the last who is inside has left."""
        self._reason = reason.to_body()
        try:
            await self._is_empty.wait()
            yield
        finally:
            self._reason = None
