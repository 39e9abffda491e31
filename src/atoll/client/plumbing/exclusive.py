"""Exclusive things: a stream, a view, an open file, each used by one at a time."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from atoll.client.plumbing.waiting import Lock
from atoll.protocol.errors import AtollError, ErrorCode, error


class Exclusive:
    """Its operations run one after another, whichever tasks or threads ask for them.

    Closing is no such operation: it waits for nobody, and ends what waits. There are no copies of it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._was_interrupted = False  # in the midst of something: it is over, but not because it had an end

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """There is one, at this place: a copy would do what it does once more."""
        name = type(self).__name__
        raise TypeError(
            f"{name} cannot be copied or pickled: it is under way, in this process. "
            "Pass on the sandbox, or what came from here, and ask for another there."
        )

    def _check_uninterrupted(self) -> None:
        if self._was_interrupted:
            raise self._interrupted()

    def _interrupted(self) -> AtollError:
        message = f"{self!r} was interrupted in the midst of its work, and cannot go on"
        return error(ErrorCode.INVALID_REQUEST, message, remedy="Ask for another, as you did for this one.")
