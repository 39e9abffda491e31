"""Records of sandboxes: rows of a store, whose stage says how far each one is.

    making      made, but its creation was not reported: whoever finds it undoes it
    created     reported as created: nothing but a request removes it, or its disk
    removing    asked to be removed: whoever finds it finishes that

One verb of the store takes a row from one stage to the next, so that a kill at any moment leaves one or the other.
Nothing waits for the disk: a power failure may take the last half minute of the rows. The disks carry their records as
well (`disk_records.py`), so that a row which is lost while its disk is not is made anew.

Whoever opens the records holds the state directory, and is the only one to write them. So they are read once, and then
known: asking costs no query.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.engine.base import LiveSandbox
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.protocol.limits import Limits
from atoll.protocol.network import NetworkPolicy
from atoll.store.base import SandboxRow
from atoll.store.moments import UNKNOWN_BOOT, Moment
from atoll.supervisor.earlier_records import in_todays_words
from atoll.supervisor.plans import Upkeep

if TYPE_CHECKING:
    from atoll.store.base import Store


class KeptPort(msgspec.Struct, frozen=True, kw_only=True):
    """A port that is exposed, and the token by which it is reached."""

    port: int
    token: str
    exposed_at: datetime
    name: str | None = None
    expires_at: datetime | None = None


class SharedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a sandbox as every machine sees it. `image_state` says on which contents of the image it was made.

    A variable in `env` that is None was taken away: it hides one that every sandbox has. `revision` counts the changes:
    of two records of a sandbox, which `created_at` tells from others of its id, the higher one is the later. `alias` is
    what it is called in host names that have no room for its id.
    """

    id: SandboxId
    image: str
    image_state: str
    limits: Limits
    created_at: datetime
    env: dict[str, str | None] = {}
    upkeep: Upkeep = Upkeep()
    network: NetworkPolicy = NetworkPolicy()
    revision: int = 0
    ports: tuple[KeptPort, ...] = ()
    alias: str | None = None


class LocalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a sandbox that is of the machine alone which has its disk.

    `engine`, `handle` and `generation` are of its latest start, the last two as that engine gave them, and empty before
    the first; `boot_id` is of this machine's boot in which that was. `made_since_boot` and `made_in_boot` say when it
    was made by a clock that nobody sets.
    """

    made_since_boot: float = 0.0
    made_in_boot: str = UNKNOWN_BOOT
    engine: str = ""
    handle: str = ""
    generation: str = ""
    boot_id: str = ""


class SandboxRecord(SharedRecord, frozen=True, kw_only=True):
    """All that is kept of a sandbox where its disk is: both of these in one, as the disk carries it too."""

    made_since_boot: float = 0.0
    made_in_boot: str = UNKNOWN_BOOT
    engine: str = ""
    handle: str = ""
    generation: str = ""
    boot_id: str = ""

    @property
    def identity(self) -> str:
        """A text that tells it from every other sandbox, also of its id."""
        return f"{self.id} {self.created_at.timestamp()}"

    @property
    def made(self) -> Moment:
        return Moment(wall=self.created_at, since_boot=self.made_since_boot, boot_id=self.made_in_boot)

    def made_at(self, moment: Moment) -> SandboxRecord:
        """The same, of one that is made at this moment."""
        return msgspec.structs.replace(
            self, created_at=moment.wall, made_since_boot=moment.since_boot, made_in_boot=moment.boot_id
        )

    def to_live(self, boot_id: str) -> LiveSandbox:
        """The sandbox as an engine may adopt it in this boot. Its disk is of this machine: if it was started in another
        boot it has ended, whatever its handle says and whoever can read that.
        """
        if self.boot_id != boot_id:
            return LiveSandbox(id=self.id, engine="", handle="", generation=self.generation)
        return LiveSandbox(id=self.id, engine=self.engine, handle=self.handle, generation=self.generation)


class Stage(StrEnum):
    """How far a sandbox is."""

    MAKING = "making"
    CREATED = "created"
    REMOVING = "removing"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A record with its stage. `record` is None if it cannot be read; then `flaw` says why."""

    id: SandboxId
    stage: Stage
    record: SandboxRecord | None
    flaw: str = ""


_encode = msgspec.json.Encoder().encode


class Records:
    """The records of one state directory: none until they are loaded."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[SandboxId, Row] = {}
        self._aliases: dict[str, SandboxId] = {}

    async def load(self, *, has_unrecorded: bool) -> None:
        """Read what is kept. `has_unrecorded` says whether there are disks that carry no record: where nobody took
        custody of them, they are not taken for leftovers.
        """
        found = await self._store.sandboxes.all()
        if has_unrecorded and not await self._store.custody.is_taken():
            raise _lost(self._store.place)
        await self._store.custody.take()
        for row in filter(None, map(read_row, found)):
            self._know(row)

    async def begin(self, record: SandboxRecord) -> None:
        """Put a sandbox on record whose creation is not reported yet."""
        await self._store.sandboxes.add(to_row(record, Stage.MAKING))
        self._know(Row(id=record.id, stage=Stage.MAKING, record=record))

    async def commit(self, sandbox: SandboxId) -> None:
        """From here on it was created."""
        await self._store.sandboxes.move(sandbox, Stage.CREATED)
        self._move(sandbox, Stage.CREATED)

    async def replace(self, record: SandboxRecord) -> None:
        """Keep a record of a sandbox that was created, anew."""
        row = self._rows[record.id]
        await self._store.sandboxes.replace(to_row(record, row.stage))
        self._know(msgspec.structs.replace(row, record=record))

    async def restore(self, record: SandboxRecord) -> None:
        """Keep the record that a sandbox's disk carries instead of a row that is lost, older or damaged."""
        await self._store.sandboxes.put(to_row(record, Stage.CREATED))
        self._know(Row(id=record.id, stage=Stage.CREATED, record=record))

    async def begin_removal(self, sandbox: SandboxId) -> bool:
        """From here on it is to be removed, by whoever comes next if not by us. Returns whether they will know.

        A full disk may refuse even this; then nobody finishes for us, which is no reason not to remove and free some.
        """
        if sandbox not in self._rows:
            return False
        try:
            await self._store.sandboxes.move(sandbox, Stage.REMOVING)
            return True
        except AtollError:
            return False
        finally:
            self._move(sandbox, Stage.REMOVING)

    async def forget(self, sandbox: SandboxId) -> None:
        if sandbox in self._rows:
            await self._store.sandboxes.remove(sandbox)
            gone = self._rows.pop(sandbox, None)
            if gone and gone.record and gone.record.alias:
                self._aliases.pop(gone.record.alias, None)

    def exists(self, sandbox: SandboxId) -> bool:
        """Whether it was created, and not removed."""
        row = self._rows.get(sandbox)
        return row is not None and row.stage is Stage.CREATED

    def is_taken(self, sandbox: SandboxId) -> bool:
        """Whether anything at all is on record under this id, such as a removal that could not be finished."""
        return sandbox in self._rows

    def find(self, sandbox: SandboxId) -> SandboxRecord | None:
        """Of a sandbox that was created."""
        return self._find(sandbox, Stage.CREATED)

    def find_by_alias(self, alias: str) -> SandboxRecord | None:
        """The same, by what it is called in host names that have no room for its id."""
        sandbox = self._aliases.get(alias)
        record = self.find(sandbox) if sandbox else None
        return record if record and record.alias == alias else None

    def find_to_remove(self, sandbox: SandboxId) -> SandboxRecord | None:
        """The same, also of one whose removal was begun."""
        return self._find(sandbox, Stage.CREATED, Stage.REMOVING)

    def created(self) -> list[SandboxRecord]:
        """The records that can be read: a damaged one keeps its disk, and keeps nobody from the others."""
        return [row.record for row in self.rows() if row.stage is Stage.CREATED and row.record]

    def rows(self) -> list[Row]:
        """Everything that is there, by id."""
        return [self._rows[sandbox] for sandbox in sorted(self._rows)]

    def _find(self, sandbox: SandboxId, *stages: Stage) -> SandboxRecord | None:
        row = self._rows.get(sandbox)
        if row is None or row.stage not in stages:
            return None
        if row.record is None:
            raise _damaged(row, self._store)
        return row.record

    def _know(self, row: Row) -> None:
        self._rows[row.id] = row
        if row.record and row.record.alias:
            self._aliases[row.record.alias] = row.id

    def _move(self, sandbox: SandboxId, stage: Stage) -> None:
        if row := self._rows.get(sandbox):
            self._rows[sandbox] = msgspec.structs.replace(row, stage=stage)


def to_row(record: SandboxRecord, stage: Stage) -> SandboxRow:
    shared = {name: getattr(record, name) for name in SharedRecord.__struct_fields__}
    local = {name: getattr(record, name) for name in LocalRecord.__struct_fields__}
    return SandboxRow(id=record.id, stage=stage, shared=_encode(shared), local=_encode(local))


def read_record(content: bytes | str | msgspec.Raw) -> SandboxRecord:
    """Raises msgspec's errors, and those of text, if it is no record."""
    kept = msgspec.json.decode(content, type=dict[str, Any])
    return msgspec.convert(in_todays_words(kept), SandboxRecord)


def decode_record(content: bytes | str, sandbox: SandboxId) -> SandboxRecord:
    """Raises ValueError if it is not the record of this sandbox."""
    try:
        record = read_record(content)
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError) as cause:
        raise ValueError(str(cause)) from cause
    if record.id != sandbox:
        raise ValueError(f"it is of sandbox {record.id!r:.100}")
    return record


def read_row(kept: SandboxRow) -> Row | None:
    """None for what has no sandbox's name: it is nobody's record."""
    try:
        sandbox = parse_sandbox_id(kept.id)
    except ValueError:
        return None
    try:
        return Row(id=sandbox, stage=Stage(kept.stage), record=_read_both(kept, sandbox))
    except ValueError as cause:
        # A stage that nobody knows asks for nothing to be removed.
        known = Stage(kept.stage) if kept.stage in list(Stage) else Stage.CREATED
        return Row(id=sandbox, stage=known, record=None, flaw=str(cause))


def _read_both(kept: SandboxRow, sandbox: SandboxId) -> SandboxRecord:
    """Where there is nothing of this machine's, it is in the record itself, as earlier versions wrote it."""
    record = decode_record(kept.shared, sandbox)
    if kept.local is None:
        return record
    try:
        local = msgspec.json.decode(kept.local, type=LocalRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise ValueError(f"what is of this machine: {cause}") from cause
    return msgspec.structs.replace(record, **msgspec.structs.asdict(local))


def _damaged(row: Row, store: Store) -> AtollError:
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"the record of sandbox {row.id!r} in {store.place} is damaged: {row.flaw}",
        remedy="Its disk is kept for as long as the record is there. Take from it what you need, stop the server, then "
        f"remove the record: {store.how_to_remove(row.id)}.",
        path=store.place,
        sandbox=row.id,
    )


def _lost(place: str) -> AtollError:
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"there are disks of sandboxes that carry no record, and no records of them in {place}",
        remedy="Put the database back; or, to begin without those sandboxes, move their disks away: the file "
        "pool.btrfs, or what is in the directory disks where there is none.",
        path=place,
    )
