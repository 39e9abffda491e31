"""The protocol of every store.

A store keeps what all machines of a cluster would share: sandboxes with their options, timelines, keys. Beside that it
keeps what is of this machine alone: how each sandbox was made and started here, and custody of the disks.

Rules:
1. A verb is done whole or not at all, also if whoever asked is killed in the middle of it. When it returns, the kill of
   any of our processes loses nothing of it; a power failure may, unless the verb says otherwise.
2. A verb may be done without suspending whoever awaits it, and is, where the store is a file on this machine.
3. What cannot be done is a typed error, and then nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from atoll.protocol.ids import SandboxId

if TYPE_CHECKING:
    from atoll.store.keys import KeptKey
    from atoll.store.timeline import Entry


class SandboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as a store keeps it, in documents that are no concern of the store's.

    `shared` says what it is, to any machine of a cluster; `local`, what is only of this one. `local` is None if
    the store has nothing of the kind.
    """

    id: str
    stage: str
    shared: bytes
    local: bytes | None = None


class Sandboxes(Protocol):
    """Sandboxes on record, each once. Where a store keeps the two documents in two
    places, it writes `local` first."""

    async def all(self) -> list[SandboxRow]:
        """Raise if there is damage because of which one may seem to be missing."""
        ...

    async def add(self, row: SandboxRow) -> None:
        """Add a row whose id nobody has."""
        ...

    async def put(self, row: SandboxRow) -> None:
        """In the place of whatever is known of its id."""
        ...

    async def replace(self, row: SandboxRow) -> None:
        """Both documents of one that is there. Its stage stays, whatever the row says."""
        ...

    async def move(self, sandbox: SandboxId, stage: str) -> None:
        """To another stage."""
        ...

    async def remove(self, sandbox: SandboxId) -> None: ...

    async def take_over(self, rows: Iterable[SandboxRow]) -> None:
        """All of those whose ids nobody has, and custody. They are on the platter when this returns."""
        ...


class Custody(Protocol):
    """Custody of this machine's disks: once it is taken, a disk that is of no sandbox on record is nobody's."""

    async def is_taken(self) -> bool: ...

    async def take(self) -> None:
        """Twice is fine."""
        ...


class Timeline(Protocol):
    """The events of each sandbox, in the order of their numbers; see `store/timeline.py` for what is kept of it."""

    async def add(self, sandbox: SandboxId, what: str, *, cause: str, by: str) -> Entry: ...

    async def begin_anew(self, sandbox: SandboxId, what: str, *, cause: str, by: str) -> Entry:
        """The first event of the next sandbox of an id takes the place of all that is known of the one before."""
        ...

    async def last(self, sandbox: SandboxId) -> Entry | None: ...

    async def since(self, sandbox: SandboxId, number: int) -> list[Entry]:
        """The events after `number`, in order."""
        ...

    async def latest(self, sandbox: SandboxId, kinds: Container[str]) -> Entry | None:
        """The last of these kinds."""
        ...

    async def latest_of_all(self, most: int, is_wanted: Callable[[str], bool]) -> list[tuple[str, Entry]]:
        """The latest of those sandboxes that are wanted, in order. It may take a moment, for which nobody waits."""
        ...

    async def retire(self, sandbox: SandboxId) -> None:
        """Count a sandbox among those that are gone. What is known of so many is kept; the oldest makes room."""
        ...

    async def retire_unrecorded(self) -> None:
        """All that are not on record; the end of one whose destruction a killed server did not note is noted."""
        ...


class KeyRows(Protocol):
    """API keys. Other processes write here as well, and what they wrote counts from the next question on."""

    async def add(self, key: KeptKey) -> None: ...

    async def all(self) -> list[KeptKey]:
        """In the order in which they were made."""
        ...

    async def note_use(self, key_id: str, moment: datetime) -> None:
        """Note when a key was used last; a key that is gone is fine."""
        ...

    async def remove(self, key_id: str) -> bool:
        """Whether it was there."""
        ...


class Store(Protocol):
    """A store of everything there is to keep. One server at a time has it open, and programs that make keys."""

    @property
    def sandboxes(self) -> Sandboxes: ...

    @property
    def timeline(self) -> Timeline: ...

    @property
    def keys(self) -> KeyRows: ...

    @property
    def custody(self) -> Custody: ...

    @property
    def place(self) -> str:
        """Where it is, in words for its operator."""
        ...

    def how_to_remove(self, sandbox: SandboxId) -> str:
        """The command by which an operator removes a record that cannot be read, while no server runs."""
        ...

    async def check(self) -> None:
        """Raise if it was taken away. Cheap."""
        ...

    async def keep(self) -> None:
        """Do what is to be done from time to time, for as long as it is open."""
        ...

    def close(self) -> None:
        """Let go of it. Twice is fine."""
        ...
