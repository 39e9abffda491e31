"""Feeds of events: items as they come, from a source that is let go of with them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Self, TypeVar

from atoll.client.plumbing.exclusive import Exclusive
from atoll.client.plumbing.transport import CancelScope
from atoll.client.plumbing.waiting import CANCELLATIONS
from atoll.protocol.errors import AtollError

T = TypeVar("T")


class AsyncFeed(Exclusive, AsyncIterator[T]):
    """An iterator over what happens. It ends with its source, or when it is closed, also by another task or thread.

    Several that iterate over it share what comes: each item goes to one of them. Whoever is cancelled while waiting
    for the next may ask for it again, and misses nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[T] = deque()
        self._scope = CancelScope()  # of the source
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        async with self._lock.turn():
            self._check_uninterrupted()
            while not self._scope.is_cancelled:
                if self._items:
                    return self._items.popleft()
                if self._is_over:
                    break
                await self._advance()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._is_over = True
        self._scope.cancel()

    close = aclose

    async def _advance(self) -> None:
        """For whoever has the lock."""
        try:
            await self._receive()
        except AtollError as failure:
            if not self._is_over:  # or it was closed meanwhile, and this is how that looks from here
                await self._fail(failure)
        except CANCELLATIONS:
            raise
        except BaseException as problem:
            self._was_interrupted = not isinstance(problem, Exception)  # an ordinary one is of what is sent
            await self.aclose()
            raise

    async def _receive(self) -> None:
        """Wait for the source, which is opened if need be, and take what comes. Its end sets `_is_over`."""
        raise NotImplementedError

    async def _fail(self, failure: AtollError) -> None:
        await self.aclose()
        raise failure
