"""The actor: the one owner of a sandbox, through which everything goes that changes it, one change at a time.

Rules:
1. Operations do not wait for each other. They wait for a change that is under way, and a change that ends the sandbox
   ends them.
2. What a change did is on record before anybody is told of it, and on the timeline with its cause.
3. A sandbox that ended by itself is stopped: its files are kept, and the next operation starts it again. So does one
   that came before we learned of the end, if it is certain that nothing of it was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from atoll.engine.base import EventKind, LiveSandbox
from atoll.protocol.arguments import check_lasting_variables
from atoll.protocol.durations import parse_duration
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AgentLostError, AgentMisbehavedError, AgentTimeoutError, AtollError, ErrorCode, error
from atoll.protocol.limits import parse_limits
from atoll.protocol.processes import KillAllProcesses
from atoll.protocol.sandboxes import (
    SandboxEvent,
    SandboxInfo,
    SandboxOptions,
    SandboxState,
    UpkeepChanges,
    Use,
    check_labels,
)
from atoll.protocol.sessions import DeleteSession, SetEnvironment
from atoll.store.moments import since_boot
from atoll.supervisor.agent_connection import AgentConnection, first_frame
from atoll.supervisor.agent_failures import WHEN_CLOSED, WHEN_DESTROYED, WHEN_DISK_FAILED, WHEN_STOPPED
from atoll.supervisor.agent_link import IDLE_SECONDS, AgentLink, check_room, link_to
from atoll.supervisor.history import History
from atoll.supervisor.records import SLEEP_AFTER_SECONDS, SandboxRecord, Upkeep

if TYPE_CHECKING:
    from atoll.protocol.calls import Answer, Call
    from atoll.protocol.ids import SandboxId
    from atoll.protocol.sessions import CreateSession, SessionInfo
    from atoll.store.timeline import Timeline
    from atoll.supervisor.machine import Machine

ASKED_FOR = "it was asked for"
WHEN_UNSAID = "the server that made it was killed before it could say so"
WHEN_RESTORED = "its record was lost or old, and was made anew from its disk"
WHEN_RECOVERED = "the pool that its disk is in took nothing more, and had to be mounted anew"
WHEN_REMOVED_LATE = "it was asked for while the pool took nothing more"
BEDTIME_SECONDS = 1.0  # who asks for sleep waits so long for what is under way, which mostly takes less
END_SECONDS = 10.0  # from the moment an agent cannot be reached to the end of all processes around it
MAX_ATTEMPTS = 3
WATCH_PAUSE_SECONDS = 1.0

logger = logging.getLogger("atoll.supervisor")

T = TypeVar("T")


class Caller(msgspec.Struct, frozen=True):
    """Who asks. One that `makes_none` is not to find itself with a new sandbox that has none of its options."""

    name: str
    makes_none: bool = False


ATOLL, KERNEL = Caller("atoll"), Caller("kernel")
KILLS = {
    EventKind.OOM_KILLED: ("it used all the memory it may", KERNEL),
    EventKind.HOARD_KILLED: ("it held more in sockets or file locks than it may", ATOLL),
}


class SandboxActor:
    def __init__(self, name: SandboxId, machine: Machine, timeline: Timeline) -> None:
        self.name = name
        self._machine = machine
        self._history = History(name, timeline)
        self._lock = asyncio.Lock()
        self._changes = 0
        self._live: LiveSandbox | None = None
        self._link: AgentLink | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._is_frozen = False
        self._in_use = 0
        self._is_unused = asyncio.Event()
        self._is_unused.set()
        self._bedtime: Caller | None = None  # who asked for it to sleep, as soon as nothing is under way
        self._last_used = since_boot()

    @property
    def is_awake(self) -> bool:
        return self._live is not None and not self._is_frozen

    @property
    def is_in_use(self) -> bool:
        """Whether somebody holds it, or waits for it: then there must be no second actor of its id."""
        return self._in_use > 0 or self._changes > 0 or self._history.is_followed

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        self._changes += 1
        try:
            async with self._lock:
                yield
        finally:
            self._changes -= 1

    @asynccontextmanager
    async def use(self, by: Caller) -> AsyncIterator[AgentLink]:
        """Its agent; the sandbox is made, started or thawed if need be, and stays awake while this lasts."""
        self._in_use += 1
        self._is_unused.clear()
        self._bedtime = None
        try:
            link = self._link
            if link is None or self._is_frozen or self._changes:
                link = await self._wake(by)
            yield link
        except (AgentLostError, AgentTimeoutError, AgentMisbehavedError) as problem:
            problem.about(sandbox=self.name)
            raise
        except AtollError as problem:
            raise self._machine.storage.explain(problem, self.name) from problem.__cause__
        finally:
            self._in_use -= 1
            self._last_used = since_boot()
            if not self._in_use:
                self._is_unused.set()

    async def do(self, by: Caller, work: Callable[[AgentLink], Awaitable[T]]) -> T:
        """What `work` returns; it is done again if the sandbox had ended by itself before its agent took anything."""
        for is_last in (False,) * (MAX_ATTEMPTS - 1) + (True,):
            async with self.use(by) as link:
                try:
                    return await work(link)
                except AgentLostError as problem:
                    if is_last or not await self.had_ended(link, problem):
                        raise
        raise AssertionError("the last attempt returns or raises")

    async def ask(self, by: Caller, call: Call[Answer]) -> Answer:
        """What a call is answered with that streams nothing."""
        return await self.do(by, lambda link: link.ask(call))

    @asynccontextmanager
    async def answering(
        self, by: Caller, call: Call[Any], is_taken: Callable[[AgentConnection], Awaitable[object]] = first_frame
    ) -> AsyncIterator[tuple[AgentConnection, AgentLink]]:
        """An operation; begun again, as by `do`, if nothing of it was done and that is known before `is_taken` returns.

        It returns when the first frame has come, unless the caller cannot wait for one.
        """

        async def begin(link: AgentLink) -> tuple[AgentConnection, AgentLink]:
            agent = await stack.enter_async_context(link.operation(call))
            await is_taken(agent)
            return agent, link

        async with self.use(by), AsyncExitStack() as stack:
            yield await self.do(by, begin)

    async def rest(self) -> None:
        """Let other sandboxes have their turn, if this one has had its own: for who takes long with what it said."""
        if self._link and self._link.turns.is_over:
            await self._link.turns.next()

    async def had_ended(self, link: AgentLink, problem: AgentLostError) -> bool:
        """Whether `problem` is that the sandbox ended by itself before its agent took anything."""
        if problem.code != ErrorCode.SANDBOX_NOT_RUNNING:
            return False
        if self._link is link and self._watcher:
            await asyncio.wait({self._watcher}, timeout=END_SECONDS)
        return link.has_ended

    async def _wake(self, by: Caller) -> AgentLink:
        async with self._change():
            if self._live is None:
                await self._bring_up(None, by)
            assert self._live
            await self._thaw("it was used", by)
            return self._opened_link(self._live)

    def _opened_link(self, live: LiveSandbox) -> AgentLink:
        if self._link is None:
            self._link = link_to(self._machine.engine, live, self.name)
        return self._link

    async def _thaw(self, cause: str, by: Caller) -> None:
        if self._live and self._is_frozen:
            await self._machine.engine.thaw(self._live)
            self._is_frozen = False
            self._last_used = since_boot()
            self._history.note_if_possible("thawed", cause=cause, by=by.name)

    async def ensure(self, options: SandboxOptions, by: Caller) -> bool:
        """Make it if its id is new: then True. Start it if it is stopped.

        One that exists keeps what it has; options that make no sense are refused all the same.
        """
        check_options(options)
        async with self._change():
            is_new = not self._machine.exists(self.name)
            if not is_new and options.image != self._record().image:
                self._machine.images.check(options.image)
            if self._live is None:
                await self._bring_up(options, by)
            return is_new

    async def _bring_up(self, options: SandboxOptions | None, by: Caller) -> None:
        check_room()
        if self._machine.exists(self.name):
            self._take(await self._machine.start(self.name))
            self._note("started", cause="it was used", by=by)
        elif options is None and by.makes_none:
            raise self._not_found()
        else:
            options = options or SandboxOptions()
            live = await self._machine.create(
                self.name,
                image=options.image,
                limits=options.limits,
                env=check_lasting_variables(options.env),
                upkeep=to_upkeep(options),
            )
            self._take(live)
            self._history.begin(cause="its id was used for the first time", by=by.name)

    async def take_back(self, lost: str, image: str | None, by: Caller) -> None:
        """Make a disk that was set aside this sandbox, of which there is none."""
        async with self._change():
            await self._machine.take_back(lost, self.name, image)
            self._history.begin(cause=f"the disk {lost}, which was set aside, was adopted", by=by.name)

    async def adopt(self) -> None:
        """Take over what an earlier server left running; what ended since is stopped."""
        if self._history.is_empty or self._history.has_ended:
            is_restored = self.name in self._machine.inherited.restored
            self._history.begin(cause=WHEN_RESTORED if is_restored else WHEN_UNSAID, by=ATOLL.name)
        elif self.name in self._machine.inherited.restored:
            self._note("restored", cause=WHEN_RESTORED, by=ATOLL)
        self._history.recall()
        try:
            live = await self._machine.adopt(self.name)
        except AtollError:
            change = self._history.last_change
            if change and change.what != "stopped":
                self._note("stopped", cause="it ended while no server ran", by=KERNEL)
            return
        self._take(live)
        with suppress(FileNotFoundError):  # it ends just now
            self._is_frozen = self._machine.engine.is_frozen(live)
        if self._is_frozen != self._history.says_frozen:
            what = "frozen" if self._is_frozen else "thawed"
            self._note(what, cause="the server that did it was killed before it could say so", by=ATOLL)

    def _take(self, live: LiveSandbox) -> None:
        """It runs, so nothing here may fail: one that we did not know of would get a second one on its disk."""
        self._live = live
        self._last_used = since_boot()
        self._watcher = asyncio.create_task(self._watch(live), name=f"watch {self.name}")

    async def _watch(self, live: LiveSandbox) -> None:
        """To its end, which is acted upon whatever goes wrong before: else it would be running for ever."""
        while not await self._saw_end(live):
            continue
        async with self._change():
            if self._live is live:
                self._history.note_if_possible("stopped", cause="its first process was killed", by=KERNEL.name)
                if self._link:
                    self._link.has_ended = True
                await self._let_go()

    async def _saw_end(self, live: LiveSandbox) -> bool:
        """True when it has ended; False if it must be looked at again: there may be no descriptor for it just now."""
        try:
            async for event in self._machine.engine.events(live):
                if event.kind in KILLS:
                    cause, by = KILLS[event.kind]
                    self._history.note_if_possible("oom_killed", cause=cause, by=by.name)
        except OSError as cause:
            logger.warning("sandbox %s cannot be watched, so this is tried again: %s", self.name, cause)
            await asyncio.sleep(WATCH_PAUSE_SECONDS)
            return False
        return True

    async def destroy(self, by: Caller) -> None:
        async with self._change():
            if not self._machine.is_on_record(self.name):
                if not self._history.is_empty:
                    self._history.end(cause=ASKED_FOR, by=by.name)
                return
            if self._live is None:
                await self._machine.remove(self.name)
            else:
                if self._link:
                    self._link.ending = WHEN_DESTROYED
                try:
                    await self._machine.destroy(self._live)
                finally:  # it has ended, also if its disk could not be removed
                    await self._let_go()
            self._history.end(cause=ASKED_FOR, by=by.name)

    async def _let_go(self) -> None:
        """Of a sandbox that has ended."""
        live, self._live, self._is_frozen, self._bedtime = self._live, None, False, None
        if self._link:
            self._link.close()
            self._link = None
        if live:
            await self._machine.stop(live)
        if self._watcher and self._watcher is not asyncio.current_task():
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        self._watcher = None

    async def close(self) -> None:
        """The server ends; the sandbox lives on."""
        async with self._change():
            live, self._live = self._live, None
            if self._watcher:
                self._watcher.cancel()
                await asyncio.gather(self._watcher, return_exceptions=True)
            if self._link:
                self._link.ending = WHEN_CLOSED
                self._link.close()
                self._link = None
            if live:
                await self._machine.engine.release(live)

    async def sleep(self, by: Caller, *, stop: bool = False) -> None:
        """Freeze it as soon as nothing is under way, unless it is used again before; or stop it, whatever is."""
        async with self._change():
            self._record()
            if stop:
                await self._stop(ASKED_FOR, by)
                return
        self._bedtime = by
        with suppress(TimeoutError):
            async with asyncio.timeout(BEDTIME_SECONDS):
                await self._is_unused.wait()
        await self.sleep_if_told()

    async def sleep_if_told(self) -> None:
        if self._bedtime and not self._in_use:
            async with self._change():
                if self._bedtime and not self._in_use:
                    await self._freeze(ASKED_FOR, self._bedtime)
                    self._bedtime = None

    async def wake(self, by: Caller) -> None:
        """As any operation does by itself."""
        async with self.use(by):
            pass

    async def check_agent(self) -> None:
        """One that does not answer has all that waits for it given up. Whatever it does, its first process answers."""
        link, change = self._link, self._history.last_change
        if link is None or self._is_frozen or not link.is_waited_for:
            return
        try:
            await link.ping()
        except AgentTimeoutError:
            if self._history.last_change is change:  # it has not been asleep meanwhile
                logger.warning("the agent of sandbox %s does not answer", self.name)
                link.give_up()
        except AgentLostError:  # it ends just now, which others see to
            pass

    def let_idle_connections_go(self) -> None:
        if self._link:
            self._link.let_idle_go(IDLE_SECONDS)

    async def sleep_if_idle(self) -> None:
        """Freeze what nobody has used for as long as it was asked to stay awake."""
        await self.sleep_if_told()
        if not self.is_awake:  # also one whose record cannot be read
            return
        record = self._machine.find(self.name)
        if record is None or record.upkeep.keep_alive or not self._is_idle_for(record.upkeep.sleep_after):
            return
        async with self._change():
            if self._is_idle_for(record.upkeep.sleep_after):
                await self._freeze(f"nobody used it for {record.upkeep.sleep_after:g} seconds", ATOLL)

    def _is_idle_for(self, seconds: float) -> bool:
        return self.is_awake and not self._in_use and since_boot() - self._last_used >= seconds

    async def _freeze(self, cause: str, by: Caller) -> None:
        if self._live and not self._is_frozen:
            await self._machine.engine.freeze(self._live)
            self._is_frozen = True
            self._note("frozen", cause=cause, by=by)

    @property
    def is_to_be_stopped(self) -> bool:
        """Whether it sleeps, and not for ever."""
        record = self._machine.find(self.name) if self._is_frozen else None
        return record is not None and record.upkeep.stop_after is not None

    async def stop_if_long_asleep(self) -> None:
        if self.is_to_be_stopped:
            async with self._change():
                after = self._record().upkeep.stop_after
                if self._is_frozen and after is not None and self._history.asleep_for() >= after:
                    await self._stop(f"it slept for {after:g} seconds", ATOLL)

    async def _stop(self, cause: str, by: Caller) -> None:
        live = self._live
        if live is None:
            return
        await self._thaw("it is about to be stopped", by)
        with suppress(AtollError):  # one that does not answer is ended all the same
            # They are told first, and given a moment.
            await self._opened_link(live).ask(KillAllProcesses())
        if self._link:
            self._link.ending = WHEN_STOPPED
        await self._machine.stop(live)
        if self._link:
            self._link.has_ended = True  # so that a call which it did not take any more starts it again
        self._note("stopped", cause=cause, by=by)
        await self._let_go()

    async def end_with_its_disk(self) -> bool:
        """Its disk takes nothing more, and goes away. Nothing of it is asked: whatever it did would wait for the disk.

        Returns whether it ran.
        """
        async with self._change():
            live = self._live
            if live is None:
                return False
            if self._link:
                self._link.ending = WHEN_DISK_FAILED
            await self._machine.stop(live)
            if self._link:
                self._link.has_ended = True
            self._history.note_if_possible("stopped", cause=WHEN_RECOVERED, by=ATOLL.name)
            await self._let_go()
            return True

    def note_removal(self) -> None:
        """One that was destroyed and could not be removed is gone now."""
        if not self._history.is_empty and not self._machine.is_on_record(self.name):
            self._history.end(cause=WHEN_REMOVED_LATE, by=ATOLL.name)

    async def info(self, use: Use | None = None) -> SandboxInfo:
        record, change = self._record(), self._history.last_change
        return SandboxInfo(
            id=self.name,
            state=self.state,
            since=change.time if change else record.created_at,
            cause=change.cause if change else "",
            created_at=record.created_at,
            image=record.image,
            image_state=record.image_state,
            isolation=self._machine.engine.isolation,
            limits=record.limits,
            labels=record.upkeep.labels,
            env=sorted(name for name, value in record.env.items() if value is not None),
            sleep_after=record.upkeep.sleep_after,
            keep_alive=record.upkeep.keep_alive,
            stop_after=record.upkeep.stop_after,
            use=use,
        )

    async def info_with_use(self) -> SandboxInfo:
        self._record()  # it may not be there
        return await self.info(await self._use())

    @property
    def state(self) -> SandboxState:
        if self._live is None:
            return SandboxState.STOPPED
        return SandboxState.FROZEN if self._is_frozen else SandboxState.RUNNING

    async def _use(self) -> Use | None:
        live = self._live
        if live is None:
            return None
        with suppress(FileNotFoundError):  # it ends just now
            usage = await self._machine.engine.usage(live)
            use = Use(
                cpu_seconds=usage.cpu_seconds,
                memory=usage.memory,
                processes=usage.processes,
                oom_kills=usage.oom_kills,
                disk=await asyncio.to_thread(self._machine.disk_use, self.name),
            )
            return use if live is self._live else None  # its control group may be another's by now
        return None

    async def set_labels(self, labels: dict[str, str], by: Caller) -> None:
        check_labels(labels)
        async with self._change():
            record = await self._record_of_existing(by)
            upkeep = msgspec.structs.replace(record.upkeep, labels=labels)
            self._machine.update(record, upkeep=upkeep)
            self._note("labels_changed", cause=ASKED_FOR, by=by)

    async def set_upkeep(self, changes: UpkeepChanges, by: Caller) -> None:
        checked = checked_upkeep(changes)
        async with self._change():
            record = await self._record_of_existing(by)
            self._machine.update(record, upkeep=msgspec.structs.replace(record.upkeep, **checked))
            asked = " and ".join(f"{name}={_in_words(value)}" for name, value in checked.items())
            self._note("upkeep_changed", cause=f"{asked or 'nothing'} was asked for", by=by)

    async def set_env(self, changes: dict[str, str | None], by: Caller) -> None:
        check_lasting_variables(changes)
        async with self._change():
            record = await self._record_of_existing(by)
            merged = {**record.env, **changes}
            check_environment(merged)
            if self._live:
                await self._thaw("its variables are set", by)
                await self._tell_environment(self._opened_link(self._live), changes)
            defaults = self._machine.default_env(record)
            kept = {name: value for name, value in merged.items() if value is not None or name in defaults}
            self._machine.update(record, env=kept)
            self._note("env_changed", cause=ASKED_FOR, by=by)

    async def _record_of_existing(self, by: Caller) -> SandboxRecord:
        """It is made, if its id is new."""
        if not self._machine.exists(self.name):
            await self._bring_up(None, by)
        return self._record()

    async def _tell_environment(self, link: AgentLink, changes: dict[str, str | None]) -> None:
        try:
            await link.ask(SetEnvironment(env=changes))
        except AgentLostError as problem:
            if problem.code != ErrorCode.SANDBOX_NOT_RUNNING:  # if it ends just now, the next start has them
                raise

    async def create_session(self, call: CreateSession, by: Caller) -> SessionInfo:
        created = await self.ask(by, call)
        self._note_session("session_created", call.session_id, by)
        return created

    async def delete_session(self, session_id: str, by: Caller) -> None:
        await self.ask(by, DeleteSession(session_id=session_id))
        self._note_session("session_deleted", session_id, by)

    def _note_session(self, what: str, session_id: str, by: Caller) -> None:
        if self._machine.exists(self.name):  # its end is the last that is noted
            self._note(what, cause=f"{session_id!r} was asked for", by=by)

    def events(self, since: int) -> list[SandboxEvent]:
        events = self._history.since(since)
        if not events and self._history.is_empty:
            self._record()
        return events

    def follow(self, since: int) -> AsyncGenerator[SandboxEvent, None]:
        """What was, then what happens, to the end of the sandbox."""
        return self._history.follow(since, lambda: self._machine.is_on_record(self.name))

    def _note(self, what: str, *, cause: str, by: Caller) -> None:
        self._history.note(what, cause=cause, by=by.name)

    def _record(self) -> SandboxRecord:
        record = self._machine.find(self.name)
        if record is None:
            raise self._not_found()
        return record

    def _not_found(self) -> AtollError:
        return error(
            ErrorCode.SANDBOX_NOT_FOUND,
            f"there is no sandbox {self.name!r}",
            remedy="Check the id; any operation on it, such as exec, makes it.",
            sandbox=self.name,
        )


def checked_upkeep(changes: UpkeepChanges) -> dict[str, Any]:
    """Fields of `Upkeep` with what they become."""
    given = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not msgspec.UNSET}
    for name in ("sleep_after", "stop_after"):
        if given.get(name) is not None:
            given[name] = parse_duration(given[name], name)
    return given


def _in_words(value: object) -> str:
    return f"{value:g}s" if isinstance(value, float) else str(value)


def check_options(options: SandboxOptions) -> None:
    """Raise for what cannot be. Whether there is such an image is known when it is looked for."""
    parse_limits(options.limits)
    check_lasting_variables(options.env)
    to_upkeep(options)


def to_upkeep(options: SandboxOptions) -> Upkeep:
    sleep_after = SLEEP_AFTER_SECONDS if options.sleep_after is None else options.sleep_after
    return Upkeep(
        labels=check_labels(options.labels),
        sleep_after=parse_duration(sleep_after, "sleep_after"),
        keep_alive=options.keep_alive,
    )
