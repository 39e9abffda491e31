"""What is kept of each sandbox: one file, whose ending says how far it is.

    ID.making      made, but its creation was not reported: whoever finds it undoes it
    ID.json        reported as created: nothing but a request removes it, or its disk
    ID.removing    asked to be removed: whoever finds it finishes that

A rename takes a file from one stage to the next, so that a kill at any moment leaves one or the other. Nothing waits
for the disk: a power failure may take the last half minute, as it does of the sandboxes' own files. What it leaves
empty is a record that cannot be read, and keeps its disk.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import msgspec

from atoll.engine.base import LiveSandbox, ProcessIdentity
from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.protocol.limits import Limits

SLEEP_AFTER_SECONDS = 600.0


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox is treated: what it is found by, and when it is put to sleep."""

    labels: dict[str, str] = {}
    sleep_after: float = SLEEP_AFTER_SECONDS
    keep_alive: bool = False


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a sandbox. `image_state` says on which contents of the image it was made."""

    id: SandboxId
    image: str
    image_state: str
    limits: Limits
    created_at: datetime
    process: ProcessIdentity
    uid_base: int
    agent_socket: str
    env: dict[str, str] = {}
    upkeep: Upkeep = Upkeep()

    def to_live(self) -> LiveSandbox:
        """The sandbox as an engine may adopt it."""
        return LiveSandbox(
            id=self.id,
            process=self.process,
            uid_base=self.uid_base,
            agent_socket=Path(self.agent_socket),
            pidfd=None,
        )


class Stage(StrEnum):
    """How far a sandbox is; the ending of its file."""

    MAKING = "making"
    CREATED = "json"
    REMOVING = "removing"


class RecordFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was found. `record` is None if it cannot be read."""

    id: SandboxId
    stage: Stage
    record: SandboxRecord | None


class Records:
    """The records of one state directory. Disks without a single record are not taken for leftovers."""

    def __init__(self, directory: Path, *, has_disks: bool) -> None:
        self._directory = directory
        if has_disks and not directory.exists():
            raise _lost(directory)
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as cause:
            raise cannot_write(str(directory), cause) from cause

    def begin(self, record: SandboxRecord) -> None:
        """Put a sandbox on record whose creation is not reported yet."""
        path = self.path(record.id, Stage.MAKING)
        try:
            path.write_bytes(msgspec.json.encode(record))
        except OSError as cause:
            raise cannot_write(str(path), cause) from cause

    def commit(self, sandbox: SandboxId) -> None:
        """From here on it was created."""
        path = self.path(sandbox, Stage.CREATED)
        try:
            self.path(sandbox, Stage.MAKING).rename(path)
        except OSError as cause:
            raise cannot_write(str(path), cause) from cause

    def replace(self, record: SandboxRecord) -> None:
        """What is kept of a sandbox that was created, anew."""
        path = self.path(record.id, Stage.CREATED)
        try:
            new = path.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(record))
            new.rename(path)
        except OSError as cause:
            raise cannot_write(str(path), cause) from cause

    def begin_removal(self, sandbox: SandboxId) -> None:
        """From here on it is to be removed, by whoever comes next if not by us."""
        # A full disk may refuse even this; then nobody finishes for us, which is no reason not to remove and free some.
        with suppress(OSError):
            self.path(sandbox, Stage.CREATED).rename(self.path(sandbox, Stage.REMOVING))

    def forget(self, sandbox: SandboxId) -> None:
        for stage in Stage:
            self.drop(sandbox, stage)

    def drop(self, sandbox: SandboxId, stage: Stage) -> None:
        self.path(sandbox, stage).unlink(missing_ok=True)

    def exists(self, sandbox: SandboxId) -> bool:
        """Whether it was created, and not removed."""
        return self.path(sandbox, Stage.CREATED).exists()

    def read(self, sandbox: SandboxId) -> SandboxRecord:
        """Of a sandbox that was created; FileNotFoundError if there is none."""
        return self._read(sandbox, Stage.CREATED)

    def read_to_remove(self, sandbox: SandboxId) -> SandboxRecord:
        """The same, also of one whose removal was begun."""
        is_created = self.exists(sandbox)
        return self._read(sandbox, Stage.CREATED if is_created else Stage.REMOVING)

    def _read(self, sandbox: SandboxId, stage: Stage) -> SandboxRecord:
        path = self.path(sandbox, stage)
        try:
            return _decode(path.read_bytes(), sandbox)
        except msgspec.MsgspecError as cause:
            raise _damaged(path, cause) from cause

    def created(self) -> list[SandboxRecord]:
        """Those that can be read: a damaged one keeps its disk, and keeps nobody from the others."""
        return [file.record for file in self.files() if file.stage is Stage.CREATED and file.record]

    def files(self) -> list[RecordFile]:
        """Everything that is there. What has no sandbox's name is nobody's record."""
        found = []
        for path in sorted(self._directory.iterdir()):
            with suppress(ValueError):  # of the name, or of the ending
                sandbox, stage = parse_sandbox_id(path.stem), Stage(path.suffix.removeprefix("."))
                found.append(RecordFile(id=sandbox, stage=stage, record=_try_read(path, sandbox)))
        return found

    def path(self, sandbox: SandboxId, stage: Stage) -> Path:
        return self._directory / f"{sandbox}.{stage}"


def _decode(content: bytes, sandbox: SandboxId) -> SandboxRecord:
    record = msgspec.json.decode(content, type=SandboxRecord)
    if record.id != sandbox:
        raise msgspec.ValidationError(f"it is of sandbox {record.id!r:.100}")
    return record


def _try_read(path: Path, sandbox: SandboxId) -> SandboxRecord | None:
    try:
        return _decode(path.read_bytes(), sandbox)
    except (msgspec.MsgspecError, OSError):
        return None


def _damaged(path: Path, cause: Exception) -> AtollError:
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"the record {path} is damaged: {cause}",
        remedy="Its disk is kept for as long as the file is there. Take from it what you need, then remove the file.",
        path=str(path),
    )


def _lost(directory: Path) -> AtollError:
    return error(
        ErrorCode.STATE_DIRECTORY_UNUSABLE,
        f"there are disks of sandboxes, and no directory {directory}",
        remedy="Put the records back; or, if the disks may go, make that directory, empty.",
        path=str(directory),
    )
