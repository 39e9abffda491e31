"""Turn-taking: work that is done one piece at a time, in the order of its arrival.

1. A piece of work begins when it comes, if nothing is under way; else it is told to wait, once.
2. The current piece keeps its turn until its owner says `leave`; then `go_on` begins the next.
3. A piece that cannot begin has failed and had its turn. One that is withdrawn while it waits is forgotten.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from atoll.protocol.errors import AtollError

if TYPE_CHECKING:
    from collections.abc import Callable


class Work(Protocol):
    def wait(self) -> None:
        """Something else is under way."""

    def fail(self, cause: AtollError) -> None:
        """Its turn will not come: it will not be done."""


W = TypeVar("W", bound=Work)


class Turns(Generic[W]):
    """A queue and the work at its head. `begin` starts a piece; what that raises is how it failed."""

    def __init__(self, begin: Callable[[W], None]) -> None:
        self.current: W | None = None
        self._begin = begin
        self._waiting: deque[W] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + (self.current is not None)

    def submit(self, work: W) -> None:
        self._waiting.append(work)
        if self.current is None:
            self.go_on()
        else:
            work.wait()

    def withdraw(self, work: W) -> None:
        """Forget a piece that waits."""
        with suppress(ValueError):
            self._waiting.remove(work)

    def leave(self) -> W | None:
        """The current piece, whose turn is over."""
        work, self.current = self.current, None
        return work

    def go_on(self) -> None:
        while self._waiting and self.current is None:
            work = self.current = self._waiting.popleft()
            try:
                self._begin(work)
            except AtollError as cause:
                self.current = None
                work.fail(cause)

    def dismiss(self, cause: Callable[[], AtollError]) -> None:
        """Let all fail that wait. The current piece goes on."""
        while self._waiting:
            self._waiting.popleft().fail(cause())
