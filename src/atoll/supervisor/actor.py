"""The one owner of a sandbox: everything that changes it goes through here, one change at a time.

It keeps a lifecycle, tells it what happens, and has done what that says.

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
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from atoll.engine.base import LiveSandbox
from atoll.protocol.arguments import check_lasting_variables
from atoll.protocol.durations import parse_duration
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AgentLostError, AgentMisbehavedError, AgentTimeoutError, AtollError, ErrorCode
from atoll.protocol.sandboxes import SandboxEvent, SandboxInfo, SandboxState, UpkeepChanges, Use, check_labels
from atoll.store.moments import since_boot
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.agent_link import IDLE_SECONDS, AgentLink
from atoll.supervisor.history import History
from atoll.supervisor.lifecycle import ASKED_FOR, ATOLL, Effect, Event, Lifecycle, State, step
from atoll.supervisor.plans import Plan
from atoll.supervisor.records import SandboxRecord
from atoll.supervisor.running import KERNEL, Order, Running, not_found

if TYPE_CHECKING:
    from atoll.protocol.ids import SandboxId
    from atoll.protocol.messages import Call
    from atoll.protocol.sessions import CreateSession, SessionInfo
    from atoll.store.timeline import Timeline
    from atoll.supervisor.deadlines import Deadlines
    from atoll.supervisor.machine import Machine

ISOLATION = "native: namespaces, user ids of its own, seccomp, control groups"
WHEN_USED = "it was used"
WHEN_UNSAID = "the server that made it was killed before it could say so"
WHEN_RESTORED = "its record was lost or old, and was made anew from its disk"
WHEN_RECOVERED = "the pool that its disk is in took nothing more, and had to be mounted anew"
WHEN_REMOVED_LATE = "it was asked for while the pool took nothing more"
BEDTIME_SECONDS = 1.0  # who asks for sleep waits so long for what is under way, which mostly takes less
END_SECONDS = 10.0  # from the moment an agent cannot be reached to the end of all processes around it
AGENT_CHECK_SECONDS = 15.0
MAX_ATTEMPTS = 3

logger = logging.getLogger("atoll.supervisor")

T = TypeVar("T")


class Caller(msgspec.Struct, frozen=True):
    """Who asks. One that `makes_none` is not to find itself with a new sandbox that has none of its options."""

    name: str
    makes_none: bool = False

    def order(self, cause: str) -> Order:
        """For what this one has done to a sandbox; one that is not there yet is a usual one."""
        return Order(cause, self.name, None if self.makes_none else Plan())


class SandboxActor:
    def __init__(self, name: SandboxId, machine: Machine, timeline: Timeline, deadlines: Deadlines) -> None:
        self.name = name
        self.look_at = inf  # when a look at it is planned
        self._machine = machine
        self._deadlines = deadlines
        self._history = History(name, timeline)
        self._running = Running(name, machine, self._history)
        self._life = Lifecycle()
        self._lock = asyncio.Lock()
        self._changes = 0
        self._is_unused = asyncio.Event()
        self._is_unused.set()

    @property
    def is_awake(self) -> bool:
        return self._life.state in (State.RUNNING, State.FREEZING, State.STOPPING)

    @property
    def is_in_use(self) -> bool:
        """Whether somebody holds it, or waits for it: then there must be no second actor of its id."""
        return self._life.uses > 0 or self._changes > 0 or self._history.is_followed

    @property
    def needs_server(self) -> bool:
        return self.is_awake or self.is_in_use or self.is_to_be_stopped

    @property
    def is_to_be_stopped(self) -> bool:
        """Whether it sleeps, and not for ever."""
        return self._life.state is State.FROZEN and self._life.upkeep.stop_after is not None

    # Its lifecycle: told what happens, and what it says done.

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        self._changes += 1
        try:
            async with self._lock:
                if self._running.live is None:  # what is on record may have been changed by who sets disks right
                    self._tell(self._running.found())
                yield
        finally:
            self._changes -= 1

    def _tell(self, event: Event, moment: float | None = None) -> Effect | None:
        self._life, effect = step(self._life, event, since_boot() if moment is None else moment)
        self._plan_look(self._life.deadline)
        return effect

    def _plan_look(self, moment: float | None) -> None:
        if moment is not None and moment < self.look_at:
            self.look_at = moment
            self._deadlines.add(moment, self.name)

    async def _have(self, event: Event, order: Order) -> None:
        """Take all steps to what is asked for."""
        while await self._take_step(event, order):
            continue

    async def _take_step(self, event: Event, order: Order) -> bool:
        """Whether there was one to be taken."""
        effect = self._tell(event)
        if effect is None:
            return False
        try:
            found = await self._running.perform(effect, order)
        except BaseException:
            self._note_found(self._running.found())
            raise
        self._note_found(found)
        return True

    def _note_found(self, found: Event, since: float | None = None) -> None:
        self._running.watch(self._note_end)
        if self._running.live and (record := self._machine.find(self.name)):
            self._life = self._life.treated(record.upkeep)
        self._tell(found, since)

    async def _note_end(self, live: LiveSandbox) -> None:
        """It has ended by itself."""
        async with self._change():
            if self._running.live is live:
                self._tell(await self._running.end_by_itself())

    # Its use.

    @asynccontextmanager
    async def use(self, by: Caller) -> AsyncIterator[AgentLink]:
        """Its agent; the sandbox is made, started or thawed if need be, and stays awake while this lasts."""
        self._tell(Event.USED)
        self._is_unused.clear()
        self._plan_look(since_boot() + AGENT_CHECK_SECONDS)
        try:
            link = self._running.link
            if link is None or self._changes or self._life.state is not State.RUNNING:
                link = await self._wake(by)
            yield link
        except (AgentLostError, AgentTimeoutError, AgentMisbehavedError) as problem:
            problem.about(sandbox=self.name)
            raise
        except AtollError as problem:
            raise self._machine.storage.explain(problem, self.name) from problem.__cause__
        finally:
            self._tell(Event.LEFT)
            if not self._life.uses:
                self._is_unused.set()

    async def _wake(self, by: Caller) -> AgentLink:
        async with self._change():
            await self._have(Event.BE_AWAKE, by.order(WHEN_USED))
            return self._running.opened_link()

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

    @asynccontextmanager
    async def answering(self, by: Caller, call: Call) -> AsyncIterator[tuple[AgentConnection, AgentLink]]:
        """An operation whose first frame has come; made again, as by `do`, if the agent took nothing of the call."""

        async def begin(link: AgentLink) -> tuple[AgentConnection, AgentLink]:
            agent = await stack.enter_async_context(link.operation(call))
            await agent.wait_for_frame()
            return agent, link

        async with self.use(by), AsyncExitStack() as stack:
            yield await self.do(by, begin)

    async def rest(self) -> None:
        """Let other sandboxes have their turn, if this one has had its own: for who takes long with what it said."""
        if (link := self._running.link) and link.turns.is_over:
            await link.turns.next()

    async def had_ended(self, link: AgentLink, problem: AgentLostError) -> bool:
        """Whether `problem` is that the sandbox ended by itself before its agent took anything."""
        if problem.code != ErrorCode.SANDBOX_NOT_RUNNING:
            return False
        if self._running.link is link:
            await self._running.wait_for_end(END_SECONDS)
        return link.has_ended

    async def wake(self, by: Caller) -> None:
        """As any operation does by itself."""
        async with self.use(by):
            pass

    # What becomes of it.

    async def ensure(self, plan: Plan, by: Caller) -> bool:
        """Make it if its id is new: then True. Start it if it is stopped. One that exists keeps what it has."""
        async with self._change():
            is_new = not self._machine.exists(self.name)
            if not is_new and plan.image != self._record().image:
                self._machine.images.check(plan.image)
            await self._have(Event.BE_UP, Order(WHEN_USED, by.name, plan))
            return is_new

    async def take_back(self, lost: str, image: str | None, by: Caller) -> None:
        """Make a disk that was set aside this sandbox, of which there is none."""
        async with self._change():
            await self._machine.take_back(lost, self.name, image)
            self._tell(self._running.found())
            self._history.begin(cause=f"the disk {lost}, which was set aside, was adopted", by=by.name)

    async def adopt(self) -> None:
        """Take over what an earlier server left running; what ended since is stopped."""
        async with self._change():
            if self._running.live is None:
                await self._adopt()

    async def _adopt(self) -> None:
        if self._history.is_empty or self._history.has_ended:
            is_restored = self.name in self._machine.findings.restored
            self._history.begin(cause=WHEN_RESTORED if is_restored else WHEN_UNSAID, by=ATOLL)
        elif self.name in self._machine.findings.restored:
            self._history.note("restored", cause=WHEN_RESTORED, by=ATOLL)
        self._history.recall()
        try:
            live = await self._machine.adopt(self.name)
        except AtollError:
            change = self._history.last_change
            if change and change.what != "stopped":
                self._history.note("stopped", cause="it ended while no server ran", by=KERNEL)
            return
        self._running.live = live
        found = self._running.found()
        is_frozen = found is Event.STANDS_STILL
        try:
            if is_frozen != self._history.says_frozen:
                what = "frozen" if is_frozen else "thawed"
                self._history.note(what, cause="the server that did it was killed before it could say so", by=ATOLL)
        finally:
            self._note_found(found, since_boot() - self._history.asleep_for())

    async def destroy(self, by: Caller) -> None:
        async with self._change():
            if not self._machine.is_on_record(self.name):
                if not self._history.is_empty:
                    self._history.end(cause=ASKED_FOR, by=by.name)
                return
            await self._take_step(Event.BE_GONE, Order(ASKED_FOR, by.name))
            self._history.end(cause=ASKED_FOR, by=by.name)

    async def close(self) -> None:
        """The server ends; the sandbox lives on."""
        async with self._change():
            await self._running.close()
            self._tell(self._running.found())

    async def sleep(self, by: Caller, *, stop: bool = False) -> None:
        """Freeze it as soon as nothing is under way, unless it is used again before; or stop it, whatever is."""
        async with self._change():
            self._record()
            if stop:
                await self._have(Event.BE_STOPPED, Order(ASKED_FOR, by.name))
                return
        self._life = self._life.told_to_sleep(by.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(BEDTIME_SECONDS):
                await self._is_unused.wait()
        await self.do_what_is_due()

    async def end_with_its_disk(self) -> bool:
        """Its disk takes nothing more, and goes away. Returns whether it ran."""
        async with self._change():
            is_running = self._running.live is not None
            await self._have(Event.BE_ENDED, Order(WHEN_RECOVERED, ATOLL))
            return is_running

    def note_removal(self) -> None:
        """One that was destroyed and could not be removed is gone now."""
        if not self._history.is_empty and not self._machine.is_on_record(self.name):
            self._history.end(cause=WHEN_REMOVED_LATE, by=ATOLL)

    # What is due.

    async def look(self) -> None:
        """Do what is due, and plan the next look."""
        self.look_at = inf
        try:
            await self.check_agent()
            await self.do_what_is_due()
        finally:
            self._plan_looks()

    def _plan_looks(self) -> None:
        self._plan_look(self._life.deadline)
        link = self._running.link
        if self._life.uses or (link and link.is_waited_for):
            self._plan_look(since_boot() + AGENT_CHECK_SECONDS)
        if link and (seconds := link.let_idle_go(IDLE_SECONDS)) is not None:
            self._plan_look(since_boot() + seconds)

    async def do_what_is_due(self) -> None:
        """Put it to sleep, or stop it. What cannot be done is tried again a moment later."""
        if self._life.due(since_boot()) is None:
            return
        async with self._change():
            if due := self._life.due(since_boot()):
                try:
                    await self._have(due.event, Order(due.cause, due.by))
                except BaseException:
                    self._life = self._life.put_off(since_boot())
                    raise

    async def check_agent(self) -> None:
        """One that does not answer has all that waits for it given up. Whatever it does, its first process answers."""
        link, change = self._running.link, self._history.last_change
        if link is None or self._life.state is State.FROZEN or not link.is_waited_for:
            return
        try:
            await link.ping()
        except AgentTimeoutError:
            if self._history.last_change is change:  # it has not been asleep meanwhile
                logger.warning("the agent of sandbox %s does not answer", self.name)
                link.give_up()
        except AgentLostError:  # it ends just now, which others see to
            pass

    # What is known of it, and kept.

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
            isolation=ISOLATION,
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
        if self._running.live is None:
            return SandboxState.STOPPED
        is_asleep = self._life.state in (State.FROZEN, State.THAWING)
        return SandboxState.FROZEN if is_asleep else SandboxState.RUNNING

    async def _use(self) -> Use | None:
        live = self._running.live
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
            return use if live is self._running.live else None  # its control group may be another's by now
        return None

    async def set_labels(self, labels: dict[str, str], by: Caller) -> None:
        check_labels(labels)
        async with self._change():
            record = await self._record_of_existing(by)
            upkeep = msgspec.structs.replace(record.upkeep, labels=labels)
            self._machine.update(record, upkeep=upkeep)
            self._history.note("labels_changed", cause=ASKED_FOR, by=by.name)

    async def set_upkeep(self, changes: UpkeepChanges, by: Caller) -> None:
        checked = checked_upkeep(changes)
        async with self._change():
            record = await self._record_of_existing(by)
            upkeep = msgspec.structs.replace(record.upkeep, **checked)
            self._machine.update(record, upkeep=upkeep)
            self._life = self._life.treated(upkeep)
            self._plan_look(self._life.deadline)
            asked = " and ".join(f"{name}={_in_words(value)}" for name, value in checked.items())
            self._history.note("upkeep_changed", cause=f"{asked or 'nothing'} was asked for", by=by.name)

    async def set_env(self, changes: dict[str, str | None], by: Caller) -> None:
        check_lasting_variables(changes)
        async with self._change():
            record = await self._record_of_existing(by)
            merged = {**record.env, **changes}
            check_environment(merged)
            await self._have(Event.BE_THAWED, Order("its variables are set", by.name))
            if self._running.live:
                await self._tell_environment(self._running.opened_link(), changes)
            defaults = self._machine.default_env(record)
            kept = {name: value for name, value in merged.items() if value is not None or name in defaults}
            self._machine.update(record, env=kept)
            self._history.note("env_changed", cause=ASKED_FOR, by=by.name)

    async def _record_of_existing(self, by: Caller) -> SandboxRecord:
        """It is made, if its id is new."""
        if not self._machine.exists(self.name):
            await self._have(Event.BE_UP, by.order(WHEN_USED))
        return self._record()

    async def _tell_environment(self, link: AgentLink, changes: dict[str, str | None]) -> None:
        try:
            await link.set_environment(changes)
        except AgentLostError as problem:
            if problem.code != ErrorCode.SANDBOX_NOT_RUNNING:  # if it ends just now, the next start has them
                raise

    async def create_session(self, call: CreateSession, by: Caller) -> SessionInfo:
        created = await self.do(by, lambda link: link.create_session(call))
        self._note_session("session_created", call.session_id, by)
        return created

    async def delete_session(self, session_id: str, by: Caller) -> None:
        await self.do(by, lambda link: link.delete_session(session_id))
        self._note_session("session_deleted", session_id, by)

    def _note_session(self, what: str, session_id: str, by: Caller) -> None:
        if self._machine.exists(self.name):  # its end is the last that is noted
            self._history.note(what, cause=f"{session_id!r} was asked for", by=by.name)

    def events(self, since: int) -> list[SandboxEvent]:
        events = self._history.since(since)
        if not events and self._history.is_empty:
            self._record()
        return events

    def follow(self, since: int) -> AsyncGenerator[SandboxEvent, None]:
        """What was, then what happens, to the end of the sandbox."""
        return self._history.follow(since, lambda: self._machine.is_on_record(self.name))

    def _record(self) -> SandboxRecord:
        record = self._machine.find(self.name)
        if record is None:
            raise not_found(self.name)
        return record


def checked_upkeep(changes: UpkeepChanges) -> dict[str, Any]:
    """Fields of `Upkeep` with what they become."""
    given = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not msgspec.UNSET}
    for name in ("sleep_after", "stop_after"):
        if given.get(name) is not None:
            given[name] = parse_duration(given[name], name)
    return given


def _in_words(value: object) -> str:
    return f"{value:g}s" if isinstance(value, float) else str(value)
