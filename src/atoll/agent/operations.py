"""Operations: what a connection and the work it carries know of each other.

A call is answered at once, by a function, or begins an operation: something that takes its time, may stream both ways,
and is cancelled when its connection closes. Each noun registers its calls with `Calls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from atoll.protocol.errors import AtollError
    from atoll.protocol.frames import FrameKind


class Loan(NamedTuple):
    """A connection that is somebody else's for the length of an operation. What it gives back goes to `take_back`."""

    fd: int
    unread: bytes  # that came after the call, and was not decoded


class Owner(Protocol):
    """The asker of an operation, who gets what comes of it. After `done` or `fail` it hears no more."""

    def send(self, kind: FrameKind, payload: bytes = b"") -> None: ...
    def done(self, result: msgspec.Struct) -> None: ...
    def fail(self, cause: AtollError) -> None: ...
    def input_drained(self) -> None:
        """More may be fed, after `feed` has said to wait."""

    def lend(self) -> Loan:
        """Neither reads nor writes from now on: whoever has the connection answers on it, with DONE or FAILED."""

    def catch_up(self, calls: int, latest: bytes | None) -> None:
        """Count the calls that whoever had the connection took; `latest` if it is known. Comes before the next four."""

    def take_back(self, unread: bytes, cause: AtollError | None = None) -> None:
        """The operation is over. `unread` was read and is not part of it; `cause` is what the host is yet to hear."""

    def take_back_in_doubt(self, cause: AtollError) -> None:
        """Instead of `take_back`, when the operation may have been answered: `cause` is for the host to hear if not."""

    def give_up(self, cause: AtollError) -> None:
        """Instead of `take_back`, when nobody knows what was read: say why, and nothing more on this connection."""

    def hang_up(self) -> None:
        """The same when what was sent stops in the middle of a frame, and nothing can be said any more."""


class Operation(Protocol):
    def begin(self) -> None:
        """May be over when this returns. What it raises is the operation's error."""

    def cancel(self) -> None:
        """The owner is gone."""

    def pause(self) -> None:
        """The owner takes no more, until `resume`. What is sent nevertheless is kept in memory."""

    def resume(self) -> None: ...

    def feed(self, data: bytes) -> bool:
        """Bytes from the owner, none for their end. False: wait for `input_drained` before more comes."""


class Calls:
    """The calls that an agent answers, by their type."""

    def __init__(self) -> None:
        self.answers: dict[type, Callable[[Any], msgspec.Struct]] = {}
        self.operations: dict[type, Callable[[Any, Owner], Operation]] = {}
