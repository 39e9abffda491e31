"""Everything of one state directory put together: images, disks and an engine make sandboxes.

state/     lock  atoll.db  images/  pool.btrfs  disks/ID/      survives a reboot
runtime/   agents/*.sock  nursery.log                          does not

A state directory is one machine's, from its making to its close; the next sets right what a killed one left there, as
soon as it is entered (`async with`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.engine.base import LiveSandbox, ProcessIdentity, SandboxSpec
from atoll.engine.native.engine import NativeEngine
from atoll.engine.native.preflight import check_machine
from atoll.images.catalog import ImageCatalog
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.protocol.limits import Limits, parse_limits
from atoll.storage.directory import already_exists
from atoll.storage.pool import open_storage
from atoll.store.database import keep_log_short, open_database
from atoll.supervisor.reconcile import Findings, reconcile
from atoll.supervisor.record_files import take_over_files
from atoll.supervisor.records import Records, SandboxRecord, Upkeep
from atoll.supervisor.state_lock import StateLock

if TYPE_CHECKING:
    from types import TracebackType

    from atoll.engine.base import Engine
    from atoll.protocol.rootfs import Rootfs
    from atoll.storage.base import Storage

DEFAULT_STATE = Path("/var/lib/atoll")
DEFAULT_RUNTIME = Path("/run/atoll")
DEFAULT_UPKEEP = Upkeep()
ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
}


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
        disk_overcommit: float | None = None,
    ) -> None:
        state, runtime = state.absolute(), runtime.absolute()
        if engine is None:
            check_machine()  # before anything is made
        with ExitStack() as undo:
            self._lock = StateLock(state)
            undo.callback(self._lock.release)
            self.images = images or ImageCatalog(state / "images")
            self.storage: Storage = storage or open_storage(state, overcommit=disk_overcommit)
            undo.callback(self.storage.close)
            self.database = open_database(state)
            undo.callback(self.database.close)
            take_over_files(state, self.database)
            self._records = Records(self.database, has_disks=bool(self.storage.names()))
            self.engine: Engine = engine or NativeEngine(state, runtime)
            undo.pop_all()
        self.findings = Findings()
        self._removing = asyncio.Lock()
        self._log_keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Machine:
        """Set right what an earlier machine left here; `findings` then says what that was."""
        try:
            self.findings = await reconcile(self._records, self.storage, self.engine)
            if not self.findings.damaged:  # what is damaged may be on any state of an image
                self.images.forget({record.image_state for record in self.records()})
            self._log_keeper = asyncio.create_task(keep_log_short(self.database), name="keep the log short")
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of everything, whatever fails on the way. Sandboxes run on."""
        async with AsyncExitStack() as rest:  # the last first
            rest.callback(self._lock.release)
            rest.callback(self.database.close)
            rest.callback(self.storage.close)
            rest.push_async_callback(self.engine.close)
            if self._log_keeper:
                self._log_keeper.cancel()
                await asyncio.gather(self._log_keeper, return_exceptions=True)

    async def create(
        self,
        sandbox_id: str,
        *,
        image: str = "host",
        limits: Limits | str | dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
    ) -> LiveSandbox:
        """Make a sandbox and start it. If that fails, nothing of it remains."""
        name, accepted = parse_sandbox_id(sandbox_id), parse_limits(limits)
        check_environment(env or {})
        if self._records.is_taken(name):
            raise already_exists(name)
        rootfs = self.images.known(image)
        if rootfs is None:
            rootfs = await self._resolve(image)
        disk = self.storage.create(name, accepted.disk)
        try:
            spec = SandboxSpec(id=name, rootfs=rootfs, disk=disk, limits=accepted, env=ENV | rootfs.env | (env or {}))
            sandbox = await self._launch(spec)
            record = SandboxRecord(
                id=name,
                image=rootfs.image,
                image_state=rootfs.state,
                limits=accepted,
                created_at=datetime.now(UTC),
                process=sandbox.process,
                uid_base=sandbox.uid_base,
                agent_socket=str(sandbox.agent_socket),
                env=dict(env or {}),
                upkeep=upkeep,
            )
            try:
                await self._put_on_record(sandbox, record)
            except BaseException:
                await self.engine.stop(sandbox)
                raise
        except BaseException:
            self._forget(name)
            raise
        return sandbox

    async def start(self, sandbox_id: SandboxId) -> LiveSandbox:
        """Start one that has ended, on its own disk and on the image it was made on."""
        record = self.record(sandbox_id)
        if running := await self.engine.adopt(record.to_live()):
            await self.engine.stop(running)  # whoever lost sight of it: two on one disk would ruin it
        rootfs = self.images.recall(record.image, record.image_state)
        spec = SandboxSpec(
            id=record.id,
            rootfs=rootfs,
            disk=self.storage.find(record.id),
            limits=record.limits,
            env={name: value for name, value in (ENV | rootfs.env | record.env).items() if value is not None},
        )
        sandbox = await self._launch(spec)
        try:
            # If we are killed before it is told to live on, it ends with us: then this record is of one that has ended.
            self.update(
                record,
                process=sandbox.process,
                uid_base=sandbox.uid_base,
                agent_socket=str(sandbox.agent_socket),
            )
            await self.engine.keep(sandbox)
        except BaseException:
            await self.engine.stop(sandbox)
            raise
        return sandbox

    def default_env(self, record: SandboxRecord) -> dict[str, str]:
        """What it has without being told."""
        return ENV | self.images.recall(record.image, record.image_state).env

    def disk_use(self, sandbox_id: SandboxId) -> int | None:
        """Bytes; None if nobody counts them, as it would take a look at every file."""
        return self.storage.used(sandbox_id) if self.storage.enforces_limits else None

    async def adopt(self, sandbox_id: str) -> LiveSandbox:
        """A sandbox that is running already, whoever made it."""
        name = parse_sandbox_id(sandbox_id)
        live = await self.engine.adopt(self.record(name).to_live())
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
        record = self._records.find_to_remove(name)
        if record:
            live = await self.engine.adopt(record.to_live())
            await self.destroy(live or record.to_live())

    async def destroy(self, sandbox: LiveSandbox) -> None:
        """End it and remove everything of it. Twice is fine, also when its id has a new owner in the meantime."""
        if self._owner(sandbox.id) == sandbox.process:
            self._records.begin_removal(sandbox.id)
        await self.engine.stop(sandbox)
        async with self._removing:
            if self._owner(sandbox.id) == sandbox.process:  # still: others may have been quicker, and made a new one
                await self._remove_disk(sandbox.id)
                self._records.forget(sandbox.id)

    def record(self, sandbox_id: SandboxId) -> SandboxRecord:
        record = self._records.find(sandbox_id)
        if record is None:
            raise error(
                ErrorCode.SANDBOX_NOT_FOUND,
                f"there is no sandbox {sandbox_id!r}",
                remedy="Check the id, or create it.",
                sandbox=sandbox_id,
            )
        return record

    def records(self) -> list[SandboxRecord]:
        return self._records.created()

    def exists(self, sandbox_id: SandboxId) -> bool:
        return self._records.exists(sandbox_id)

    def is_on_record(self, sandbox_id: SandboxId) -> bool:
        """Whether it exists, or its removal could not be finished."""
        return self._records.is_taken(sandbox_id)

    def find(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        return self._records.find(sandbox_id)

    def update(self, record: SandboxRecord, **changes: Any) -> None:
        self._records.replace(msgspec.structs.replace(record, **changes))

    async def _resolve(self, image: str) -> Rootfs:
        """An image that is used for the first time, of which something is kept."""
        try:
            return await asyncio.to_thread(self.images.resolve, image)
        except OSError as cause:
            if isinstance(cause, AtollError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise cannot_write(cause.filename or f"image {image!r}", cause) from cause

    async def _launch(self, spec: SandboxSpec) -> LiveSandbox:
        try:
            return await self.engine.start(spec)
        except AtollError as problem:
            raise self.storage.explain(problem, spec.id) from problem

    async def _put_on_record(self, sandbox: LiveSandbox, record: SandboxRecord) -> None:
        """A kill before the end of this undoes the creation, one after it changes nothing.

        Two transactions, since between them the sandbox is told to live on. One before that would, if we are killed in
        between, leave one reported as created that ends with us; one after it, one that lives and that nobody knows.
        """
        self._records.begin(record)
        await self.engine.keep(sandbox)
        self._records.commit(sandbox.id)

    def _forget(self, sandbox_id: SandboxId) -> None:
        self._records.begin_removal(sandbox_id)
        self.storage.remove(sandbox_id)
        self._records.forget(sandbox_id)

    async def _remove_disk(self, sandbox_id: SandboxId) -> None:
        if self.storage.removes_at_once:
            self.storage.remove(sandbox_id)
        else:
            await to_the_end(asyncio.to_thread(self.storage.remove, sandbox_id))

    def _owner(self, sandbox_id: SandboxId) -> ProcessIdentity | None:
        record = self._records.find_to_remove(sandbox_id)
        return record.process if record else None


async def to_the_end(work: Coroutine[None, None, None]) -> None:
    """Also if we are cancelled: a thread that removes a disk would remove the next one of its name."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
