# Generated from client/plumbing/feeds.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Feeds of events: items as they come, from a source that is let go of with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Self, TypeVar

from atoll.client_sync.plumbing.exclusive import Exclusive
from atoll.client_sync.plumbing.transport import CancelScope
from atoll.client_sync.plumbing.waiting import CANCELLATIONS
from atoll.protocol.errors import AtollError

T = TypeVar("T")


class Feed(Exclusive, Iterator[T]):
    """An iterator over what happens. It ends with its source, or when it is closed, also by another task or thread.

    Several that iterate over it share what comes: each item goes to one of them. Whoever is cancelled while waiting
    for the next may ask for it again, and misses nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[T] = deque()
        self._scope = CancelScope()  # of the source
        self._is_over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._lock.turn():
            self._check_uninterrupted()
            while not self._scope.is_cancelled:
                if self._items:
                    return self._items.popleft()
                if self._is_over:
                    break
                self._advance()
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_over = True
        self._scope.cancel()

    def _advance(self) -> None:
        """For whoever has the lock."""
        try:
            self._receive()
        except AtollError as failure:
            if not self._is_over:  # or it was closed meanwhile, and this is how that looks from here
                self._fail(failure)
        except CANCELLATIONS:
            raise
        except BaseException as problem:
            self._was_interrupted = not isinstance(problem, Exception)  # an ordinary one is of what is sent
            self.close()
            raise

    def _receive(self) -> None:
        """Wait for the source, which is opened if need be, and take what comes. Its end sets `_is_over`."""
        raise NotImplementedError

    def _fail(self, failure: AtollError) -> None:
        self.close()
        raise failure
