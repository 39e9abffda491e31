"""Everything of one state directory put together: images, disks and an engine make sandboxes.

state/     images/  pool.btrfs  disks/ID/  records/ID.json      survives a reboot
runtime/   agents/*.sock  nursery.log               does not
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.engine.base import LiveSandbox, ProcessIdentity, SandboxSpec
from atoll.engine.native.engine import NativeEngine
from atoll.images.catalog import ImageCatalog
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import ErrorCode, error
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.protocol.limits import Limits, parse_limits
from atoll.storage.pool import open_storage

if TYPE_CHECKING:
    from types import TracebackType

    from atoll.engine.base import Engine
    from atoll.protocol.rootfs import Rootfs
    from atoll.storage.base import Storage

DEFAULT_STATE = Path("/var/lib/atoll")
DEFAULT_RUNTIME = Path("/run/atoll")
ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
}


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


class Machine:
    """Makes and destroys sandboxes on this machine."""

    def __init__(
        self,
        state: Path = DEFAULT_STATE,
        runtime: Path = DEFAULT_RUNTIME,
        *,
        images: ImageCatalog | None = None,
        engine: Engine | None = None,
        storage: Storage | None = None,
    ) -> None:
        state, runtime = state.absolute(), runtime.absolute()
        self.engine: Engine = engine or NativeEngine(state, runtime)
        self.images = images or ImageCatalog(state / "images")
        self.storage: Storage = storage or open_storage(state)
        self._records = state / "records"
        self._records.mkdir(mode=0o700, exist_ok=True)
        self.images.forget({record.image_state for record in self.records()})

    async def __aenter__(self) -> Machine:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        await self.engine.close()
        self.storage.close()

    async def create(
        self,
        sandbox_id: str,
        *,
        image: str = "host",
        limits: Limits | str | dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> LiveSandbox:
        """Make a sandbox and start it. If that fails, nothing of it remains."""
        name, accepted = parse_sandbox_id(sandbox_id), parse_limits(limits)
        check_environment(env or {})
        rootfs = self.images.resolve(image)
        disk = self.storage.create(name, accepted.disk)
        try:
            spec = SandboxSpec(id=name, rootfs=rootfs, disk=disk, limits=accepted, env=ENV | rootfs.env | (env or {}))
            sandbox = await self.engine.start(spec)
            try:
                self._write_record(sandbox, rootfs, accepted)
                await self.engine.keep(sandbox)
            except BaseException:
                await self.engine.stop(sandbox)
                raise
        except BaseException:
            self._forget(name)
            raise
        return sandbox

    async def adopt(self, sandbox_id: str) -> LiveSandbox:
        """A sandbox that is running already, whoever made it."""
        name = parse_sandbox_id(sandbox_id)
        if not self._record_path(name).exists():
            raise error(
                ErrorCode.SANDBOX_NOT_FOUND,
                f"there is no sandbox {name!r}",
                remedy="Check the id, or create it.",
                sandbox=name,
            )
        live = await self.engine.adopt(self._left(name))
        if live is None:
            raise error(
                ErrorCode.SANDBOX_NOT_RUNNING,
                f"sandbox {name!r} is not running",
                remedy="Its files are kept; remove it, or start it again.",
                sandbox=name,
            )
        return live

    async def remove(self, sandbox_id: str) -> None:
        """Destroy a sandbox by its id, running or not. Twice is fine."""
        name = parse_sandbox_id(sandbox_id)
        if self._record_path(name).exists():
            live = await self.engine.adopt(self._left(name))
            if live:
                await self.engine.stop(live)
        self._forget(name)

    async def destroy(self, sandbox: LiveSandbox) -> None:
        """End it and remove everything of it. Twice is fine, also when its id has a new owner in the meantime."""
        if sandbox.pidfd is None and self._owner(sandbox.id) != sandbox.process:
            return
        await self.engine.stop(sandbox)
        self._forget(sandbox.id)

    def record(self, sandbox_id: SandboxId) -> SandboxRecord:
        path = self._record_path(sandbox_id)
        try:
            return msgspec.json.decode(path.read_bytes(), type=SandboxRecord)
        except msgspec.MsgspecError as cause:
            raise error(
                ErrorCode.STATE_DIRECTORY_UNUSABLE,
                f"the record {path} is damaged: {cause}",
                remedy="Remove the file; the sandbox's disk stays, and can be removed by hand.",
                path=str(path),
            ) from cause

    def _left(self, sandbox_id: SandboxId) -> LiveSandbox:
        record = self.record(sandbox_id)
        return LiveSandbox(
            id=record.id,
            process=record.process,
            uid_base=record.uid_base,
            agent_socket=Path(record.agent_socket),
            pidfd=None,
        )

    def _forget(self, sandbox_id: SandboxId) -> None:
        # The record goes last: while it is there, somebody can ask for this again.
        self.storage.remove(sandbox_id)
        self._record_path(sandbox_id).unlink(missing_ok=True)

    def _owner(self, sandbox_id: SandboxId) -> ProcessIdentity | None:
        try:
            return self.record(sandbox_id).process
        except FileNotFoundError:
            return None

    def records(self) -> list[SandboxRecord]:
        return [self.record(SandboxId(path.stem)) for path in self._records.glob("*.json")]

    def _write_record(self, sandbox: LiveSandbox, rootfs: Rootfs, limits: Limits) -> None:
        record = SandboxRecord(
            id=sandbox.id,
            image=rootfs.image,
            image_state=rootfs.state,
            limits=limits,
            created_at=datetime.now(UTC),
            process=sandbox.process,
            uid_base=sandbox.uid_base,
            agent_socket=str(sandbox.agent_socket),
        )
        path = self._record_path(sandbox.id)
        temporary = path.with_suffix(".new")
        try:
            temporary.write_bytes(msgspec.json.encode(record))
            temporary.replace(path)
        except OSError as cause:
            raise error(
                ErrorCode.STATE_DIRECTORY_UNUSABLE,
                f"the record {path} cannot be written: {cause.strerror}",
                remedy="Check the state directory and its free space.",
                path=str(path),
            ) from cause

    def _record_path(self, sandbox_id: SandboxId) -> Path:
        return self._records / f"{sandbox_id}.json"
