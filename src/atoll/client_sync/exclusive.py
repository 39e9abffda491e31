# Generated from src/atoll/client/exclusive.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""What is under way, and there once: a stream, a view, an open file."""

from __future__ import annotations

from atoll.client_sync.waiting import Lock


class Exclusive:
    """Its operations run one after another, whichever tasks or threads ask for them.

    Closing is no such operation: it waits for nobody, and ends what waits.
    """

    def __init__(self) -> None:
        self._lock = Lock()
