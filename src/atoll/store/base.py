"""The protocol of every store.

Rules:
1. A verb is done whole or not at all, also if whoever asked is killed in the middle of it; when it returns, a kill of
   any process of ours loses nothing of it.
2. A verb may be done without suspending whoever awaits it, and is, where the store is a file on this machine.
3. What cannot be done is a typed error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atoll.store.keys import KeptKey


class KeyRows(Protocol):
    """API keys. Other processes write here as well, and what they wrote counts from the next question on."""

    async def add(self, key: KeptKey) -> None: ...

    async def all(self) -> list[KeptKey]:
        """In the order in which they were made."""
        ...

    async def remove(self, key_id: str) -> bool:
        """Whether it was there."""
        ...


class Store(Protocol):
    """A store of everything there is to keep."""

    @property
    def keys(self) -> KeyRows: ...

    def close(self) -> None:
        """Let go of it. Twice is fine."""
        ...
