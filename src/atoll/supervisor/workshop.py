"""The workshop of one state directory: images, disks and an engine put together.

state/     lock  atoll.db  images/  pool.btrfs  disks/ID/  lost   survives a reboot
runtime/   agents/*.sock  nursery.log                            does not

A state directory is one workshop's, from its making to its close; the next sets right what a killed one left there, as
soon as it is entered (`async with`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.engine.base import DiskKind, EngineSettings, LiveSandbox, SandboxSpec
from atoll.engine.choose import chosen_engine
from atoll.images.catalog import ImageCatalog
from atoll.network.gateway_process import GatewayProcess
from atoll.protocol.errors import AtollError, ErrorCode, cannot_write, error
from atoll.protocol.ids import SandboxId, parse_sandbox_id
from atoll.protocol.limits import Limits
from atoll.storage.directory import already_exists
from atoll.storage.pool import open_storage
from atoll.store.choose import open_store
from atoll.store.moments import boot_id, now
from atoll.store.timeline import destroyed_at
from atoll.supervisor.disk_records import Mark, encode
from atoll.supervisor.estate import Inherited, tell, write_note
from atoll.supervisor.gate import Gate
from atoll.supervisor.lost import KEEP_SECONDS, LostAndFound, record_of
from atoll.supervisor.plans import Plan
from atoll.supervisor.promised_memory import OVERCOMMIT, PromisedMemory
from atoll.supervisor.reconcile import Ground, look_at_disks, reconcile
from atoll.supervisor.record_files import take_over_files
from atoll.supervisor.records import Records, SandboxRecord
from atoll.supervisor.recovery import finish_removals, make_missing
from atoll.supervisor.state_lock import StateLock
from atoll.supervisor.to_the_end import to_the_end
from atoll.supervisor.usual_variables import usual, variables_of

if TYPE_CHECKING:
    from types import TracebackType

    from atoll.engine.base import Engine
    from atoll.network.control import Upstream
    from atoll.protocol.rootfs import Rootfs
    from atoll.storage.base import Storage

DEFAULT_STATE = Path("/var/lib/atoll")
DEFAULT_RUNTIME = Path("/run/atoll")
STORAGES = {DiskKind.LOCAL_DIRECTORY: open_storage}
logger = logging.getLogger("atoll.supervisor")


class Workshop:
    """Makes and destroys the sandboxes of a state directory, on this machine."""

    def __init__(
        self,
        state: Path = DEFAULT_STATE,
        runtime: Path = DEFAULT_RUNTIME,
        *,
        images: ImageCatalog | None = None,
        engine: Engine | None = None,
        storage: Storage | None = None,
        disk_overcommit: float | None = None,
        memory_overcommit: float = OVERCOMMIT,
        keep_file_max: bool = False,
        keep_lost: float = KEEP_SECONDS,
        upstream: Upstream | None = None,
    ) -> None:
        """Without an `upstream` sandboxes reach nobody."""
        state, runtime = state.absolute(), runtime.absolute()
        kind = chosen_engine()
        if engine is None:
            kind.check()  # before anything is made
        with ExitStack() as undo:
            self._lock = StateLock(state)
            undo.callback(self._lock.release)
            self.images = images or ImageCatalog(state / "images")
            self.storage: Storage = storage or STORAGES[kind.disks](state, overcommit=disk_overcommit)
            undo.callback(self.storage.close)
            self.store = open_store(state)
            undo.callback(self.store.close)
            self._records = Records(self.store)
            settings = EngineSettings(state=state, runtime=runtime, keep_host_settings=keep_file_max)
            self.engine: Engine = engine or kind.open(settings)
            undo.pop_all()
        self.gateway = GatewayProcess(upstream, runtime) if upstream else None
        self.inherited = Inherited()
        self.promised_memory = PromisedMemory(memory_overcommit)
        self._removing, self._gate = asyncio.Lock(), Gate()
        self._state = state
        self.lost = LostAndFound(self, state, keep_lost)
        self._keepers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Workshop:
        """Set right what an earlier workshop left here; `inherited` then says what that was."""
        try:
            await take_over_files(self._state, self.store)
            await self._records.load(has_unrecorded=has_unrecorded(self.storage))
            if not self.storage.problem():  # else that comes with the recovery
                await self._set_right()
                self._forget_images()
            self._keepers = [
                asyncio.create_task(self.store.keep(), name="keep the store"),
                asyncio.create_task(self.lost.keep(), name="remove lost disks after a long time"),
            ]
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
            rest.callback(self.store.close)
            rest.callback(self.storage.close)
            rest.push_async_callback(self.engine.close)
            if self.gateway:
                rest.push_async_callback(self.gateway.close)
            for keeper in self._keepers:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)

    @contextmanager
    def using_disks(self) -> Iterator[None]:
        """Or what is the matter with them."""
        if problem := self.storage.problem():
            raise problem
        with self._gate.passing():
            yield

    async def _set_right(self) -> None:
        self.inherited = await reconcile(self._records, self.storage, self.engine, await self._ground())
        tell(self.inherited)
        write_note(self.inherited, self._state)
        self.lost.tell_names()

    async def recover(self, end_sandboxes: Callable[[], Awaitable[None]]) -> None:
        """Have disks that take nothing more taken up anew, as if the machine had been switched off and on.

        `end_sandboxes` ends those that somebody owns. What else runs on a disk is ended here.
        """
        problem = self.storage.problem()
        if problem is None:
            return
        async with self._gate.closed(problem):
            await end_sandboxes()
            async with self.engine.at_rest():
                await self._end_the_rest()
                await to_the_end(asyncio.to_thread(self.storage.recover))
            finish_removals(self.storage)
            await self._set_right()
            make_missing(self.records(), self.storage)

    async def _end_the_rest(self) -> None:
        known = [row.record.to_live(boot_id()) for row in self._records.rows() if row.record]
        await self.engine.settle(known, are_all=False)
        for left in known:
            if self.engine.why_out_of_reach(left):
                continue  # if it runs, it keeps the disks from being taken up anew, and that is said
            if running := await self.engine.adopt(left):
                await self.stop(running)

    async def _ground(self) -> Ground:
        unrecorded = [name for name in self.storage.names() if not self._records.is_taken(SandboxId(name))]
        ends = {name: await destroyed_at(self.store.timeline, SandboxId(name)) for name in unrecorded}
        return Ground(
            boot_id=boot_id(),
            destroyed_at=ends.get,
            was_removed=lambda record: self.storage.epitaphs.has(record.identity),
        )

    def _forget_images(self) -> None:
        """Old states of images on which nothing is. What is damaged may be on any."""
        aside = [record_of(self.storage, name) for name in self.storage.lost.names()]
        if not self.inherited.damaged and None not in aside:
            known = [*self.records(), *filter(None, aside)]
            self.images.forget({record.image_state for record in known})

    async def make(self, name: SandboxId, plan: Plan) -> LiveSandbox:
        """Make a sandbox and start it. If that fails, nothing of it remains."""
        await self.store.check()
        limits = plan.limits_where(self.storage.largest_disk)
        with self.using_disks():  # said first: an id may be taken by a removal that waits for the same
            if self._records.is_taken(name):
                raise already_exists(name)
        rootfs = self.images.known(plan.image)
        if rootfs is None:
            rootfs = await self._resolve(plan.image)
        record = SandboxRecord(
            id=name,
            image=rootfs.image,
            image_state=rootfs.state,
            limits=limits,
            created_at=datetime.now(UTC),
            env=dict(plan.env),
            upkeep=plan.upkeep,
            network=plan.network,
        ).made_at(now())
        with self.using_disks():
            return await self._create(record, rootfs)

    async def _create(self, record: SandboxRecord, rootfs: Rootfs) -> LiveSandbox:
        name, limits = record.id, record.limits
        disk = self.storage.create(name, limits.disk, encode(record, Mark.MAKING, boot_id()))
        try:
            sandbox = await self._launch(
                SandboxSpec(
                    id=name,
                    generation=new_generation(),
                    rootfs=rootfs,
                    disk=disk,
                    limits=limits,
                    env=variables_of(record, rootfs),
                )
            )
            try:
                await self._put_on_record(sandbox, started(record, sandbox))
            except BaseException:
                await self.stop(sandbox)
                raise
        except BaseException:
            await self._forget(name)
            raise
        return sandbox

    async def start(self, sandbox_id: SandboxId) -> LiveSandbox:
        """Start one that has ended, on its own disk and on the image it was made on."""
        await self.store.check()
        with self.using_disks():
            return await self._start(self.record(sandbox_id))

    async def _start(self, record: SandboxRecord) -> LiveSandbox:
        if running := await self.engine.adopt(record.to_live(boot_id())):
            await self.engine.stop(running)  # whoever lost sight of it: two on one disk would ruin it
        rootfs = self.images.recall(record.image, record.image_state)
        spec = SandboxSpec(
            id=record.id,
            generation=new_generation(),
            rootfs=rootfs,
            disk=self.storage.find(record.id),
            limits=record.limits,
            env=variables_of(record, rootfs),
        )
        sandbox = await self._launch(spec)
        try:
            # If we are killed before it is told to live on, it ends with us: then this record is of one that has ended.
            await self._replace(started(record, sandbox))
            await self.engine.keep(sandbox)
        except BaseException:
            await self.stop(sandbox)
            raise
        return sandbox

    async def set_limits(self, record: SandboxRecord, limits: Limits, live: LiveSandbox | None) -> None:
        """From now on, also if it runs: all of them, or none. If we are killed half way it has them until it stops."""
        with (
            self.using_disks(),
            self.promised_memory.changing(live.generation, limits.memory) if live else nullcontext(),
        ):
            self.storage.resize(record.id, limits.disk)
            try:
                if live:
                    await to_the_end(self.engine.set_limits(live, limits))
                await self.update(record, limits=limits)
            except BaseException:
                with suppress(AtollError, OSError):
                    self.storage.resize(record.id, record.limits.disk)
                    if live:
                        await to_the_end(self.engine.set_limits(live, record.limits))
                raise

    async def stop(self, sandbox: LiveSandbox) -> None:
        """End what runs of it. Record and files stay. Twice is fine."""
        await self.engine.stop(sandbox)
        self.promised_memory.forget(sandbox.generation)

    def default_env(self, record: SandboxRecord) -> dict[str, str]:
        """The variables that it has without being told."""
        return usual(record.limits, self.images.recall(record.image, record.image_state))

    def disk_use(self, sandbox_id: SandboxId) -> int | None:
        """Bytes; None if nobody counts them, as it would take a look at every file, or can count them just now."""
        is_counted = self.storage.enforces_limits and not self.storage.problem()
        return self.storage.used(sandbox_id) if is_counted else None

    async def adopt(self, sandbox_id: str) -> LiveSandbox:
        """A sandbox that is running already, whoever made it."""
        name = parse_sandbox_id(sandbox_id)
        record = self.record(name)
        live = await self.engine.adopt(record.to_live(boot_id()))
        if live is None:
            raise error(
                ErrorCode.SANDBOX_NOT_RUNNING,
                f"sandbox {name!r} is not running",
                remedy="Its files are kept; remove it, or start it again.",
                sandbox=name,
            )
        self.promised_memory.note(live.generation, record.limits.memory)
        return live

    async def remove(self, sandbox_id: str) -> None:
        """Destroy a sandbox by its id, running or not. Twice is fine."""
        name = parse_sandbox_id(sandbox_id)
        record = self._records.find_to_remove(name)
        if record:
            left = record.to_live(boot_id())
            await self.destroy(await self.engine.adopt(left) or left)

    async def destroy(self, sandbox: LiveSandbox) -> None:
        """End it and remove everything of it. Twice is fine, also when its id has a new owner in the meantime.

        While the disks take nothing, its own goes with their recovery (`why_removed_later`).
        """
        is_noted = False
        if self._owner(sandbox.id) == sandbox.generation:
            is_noted = await self._records.begin_removal(sandbox.id)
        await self.stop(sandbox)
        async with self._removing:
            if self._owner(sandbox.id) != sandbox.generation:  # others may have been quicker, and made a new one
                return
            try:
                await self._remove(sandbox.id)
            except AtollError:
                if not (is_noted and self.why_removed_later(sandbox.id)):
                    raise
                logger.warning("sandbox %s is gone, and its disk goes when disks can be written again", sandbox.id)

    async def _remove(self, sandbox_id: SandboxId) -> None:
        with self.using_disks():
            if record := self._records.find_to_remove(sandbox_id):
                self.storage.epitaphs.add(record.identity)
            await self._remove_disk(sandbox_id)
            await self._records.forget(sandbox_id)

    def why_removed_later(self, sandbox_id: SandboxId) -> AtollError | None:
        """Why the disk of a sandbox that was destroyed is still there, if it goes as soon as disks can be written."""
        return self.storage.problem() if self._records.is_taken(sandbox_id) else None

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

    def find_by_alias(self, alias: str) -> SandboxRecord | None:
        return self._records.find_by_alias(alias)

    async def update(self, record: SandboxRecord, **changes: Any) -> None:
        await self._replace(msgspec.structs.replace(record, **changes))

    async def restore(self, record: SandboxRecord) -> None:
        """Put on record what is known of a sandbox from elsewhere."""
        await self._records.restore(record)

    async def _replace(self, record: SandboxRecord) -> None:
        record = msgspec.structs.replace(record, revision=record.revision + 1)
        await self._records.replace(record)
        try:
            self.storage.replace_record(record.id, encode(record, Mark.CREATED, boot_id()))
        except (AtollError, OSError) as problem:  # it may be full; the row counts, and the next to open tries again
            logger.warning("the disk of sandbox %s carries an older record than the database: %s", record.id, problem)

    async def _resolve(self, image: str) -> Rootfs:
        """An image that is used for the first time, of which something is kept."""
        try:
            return await asyncio.to_thread(self.images.resolve, image)
        except OSError as cause:
            if isinstance(cause, AtollError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise cannot_write(cause.filename or f"image {image!r}", cause) from cause

    async def _launch(self, spec: SandboxSpec) -> LiveSandbox:
        with self.promised_memory.launching(spec.limits.memory):
            try:
                sandbox = await self.engine.start(spec)
            except AtollError as problem:
                raise self.storage.explain(problem, spec.id) from problem
            self.promised_memory.note(sandbox.generation, spec.limits.memory)
            return sandbox

    async def _put_on_record(self, sandbox: LiveSandbox, record: SandboxRecord) -> None:
        """A kill before the disk says `created` undoes the creation, one after it changes nothing.

        Two verbs, since between them the sandbox is told to live on. One before that would, if we are killed in
        between, leave one reported as created that ends with us; one after it, one that lives and that nobody knows.
        """
        await self._records.begin(record)
        await self.engine.keep(sandbox)
        self.storage.replace_record(record.id, encode(record, Mark.CREATED, boot_id()))
        if not self.storage.is_covered(record.id):  # rare: it was committed since it was made
            await asyncio.to_thread(self.storage.cover, record.id)
        await self._records.commit(sandbox.id)

    async def _forget(self, sandbox_id: SandboxId) -> None:
        await self._records.begin_removal(sandbox_id)
        self.storage.remove(sandbox_id)
        await self._records.forget(sandbox_id)

    async def _remove_disk(self, sandbox_id: SandboxId) -> None:
        if self.storage.removes_at_once:
            self.storage.remove(sandbox_id)
        else:
            await to_the_end(asyncio.to_thread(self.storage.remove, sandbox_id))

    def _owner(self, sandbox_id: SandboxId) -> str | None:
        """The generation that has the id."""
        record = self._records.find_to_remove(sandbox_id)
        return record.generation if record else None


def has_unrecorded(storage: Storage) -> bool:
    """Whether there are disks that carry no record. Those that cannot be looked at now are no reason not to open: what
    carries none is set aside when they can.
    """
    if storage.problem():
        return False
    return any(not disk.kept and not disk.is_empty for disk in look_at_disks(storage))


def started(record: SandboxRecord, sandbox: LiveSandbox) -> SandboxRecord:
    return msgspec.structs.replace(
        record, engine=sandbox.engine, handle=sandbox.handle, generation=sandbox.generation, boot_id=boot_id()
    )


def new_generation() -> str:
    return secrets.token_hex(8)
