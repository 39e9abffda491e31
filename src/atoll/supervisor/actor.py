"""The actor: the one owner of a sandbox, through which everything goes that changes it, one change at a time.

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

from atoll.engine.base import Capability, LiveSandbox, require
from atoll.protocol.errors import (
    AgentLostError,
    AgentMisbehavedError,
    AgentTimeoutError,
    AtollError,
    ErrorCode,
    from_body,
)
from atoll.protocol.sandboxes import REMOVED_LATER, SandboxEvent, SandboxState
from atoll.store import moments
from atoll.store.moments import since_boot
from atoll.supervisor.agent_connection import AgentConnection, first_frame
from atoll.supervisor.agent_link import IDLE_SECONDS, AgentLink
from atoll.supervisor.conflicts import check_agreement
from atoll.supervisor.history import History
from atoll.supervisor.lifecycle import ASKED_FOR, ATOLL, Effect, Event, Lifecycle, State, step
from atoll.supervisor.plans import Plan, Upkeep
from atoll.supervisor.records import SandboxRecord
from atoll.supervisor.running import KERNEL, Order, Running, not_found

if TYPE_CHECKING:
    from atoll.protocol.calls import Answer, Call
    from atoll.protocol.ids import SandboxId
    from atoll.protocol.sandboxes import SandboxOptions
    from atoll.store.base import Timeline
    from atoll.supervisor.deadlines import Deadlines
    from atoll.supervisor.news import News
    from atoll.supervisor.workshop import Workshop

WHEN_USED = "it was used"
WHEN_UNSAID = "the server that made it was killed before it could say so"
WHEN_CHANGED_UNSAID = "the server that did it was killed before it could say so"
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
    """A caller by name. One that `makes_none` is not to find itself with a new sandbox that has none of its options."""

    name: str
    makes_none: bool = False
    labels: dict[str, str] = {}  # that whatever it makes has, and keeps

    def order(self, cause: str) -> Order:
        """For what this one has done to a sandbox; one that is not there yet is a usual one."""
        return Order(cause, self.name, None if self.makes_none else self.plan)

    @property
    def plan(self) -> Plan:
        """The plan of a usual sandbox of this caller's."""
        return Plan(upkeep=Upkeep(labels=self.labels)) if self.labels else Plan()

    def of(self, call: Call[Any]) -> Caller:
        """The same one with this call, by which one that only asks makes no sandbox."""
        return msgspec.structs.replace(self, makes_none=True) if call.asks else self


class SandboxActor:
    def __init__(
        self, name: SandboxId, workshop: Workshop, timeline: Timeline, deadlines: Deadlines, news: News
    ) -> None:
        self.name = name
        self.look_at = inf  # when a look at it is planned
        self.workshop = workshop
        self._deadlines = deadlines
        self.history = History(name, timeline, news)
        self.running = Running(name, workshop, self.history)
        self._life = Lifecycle(can_freeze=Capability.FREEZE in workshop.engine.capabilities)
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
        return self._life.uses > 0 or self._changes > 0 or self.history.is_followed

    @property
    def needs_server(self) -> bool:
        return self.is_awake or self.is_in_use or self.is_to_be_stopped or self._life.has_end

    @property
    def is_to_be_stopped(self) -> bool:
        """Whether it sleeps, and not for ever."""
        return self._life.state is State.FROZEN and self._life.upkeep.stop_after is not None

    # Its lifecycle: told what happens, and what it says done.

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        self._changes += 1
        try:
            async with self._lock:
                if self.running.live is None:  # what is on record may have been changed by who sets disks right
                    self._tell(self.running.found())
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

    async def have(self, event: Event, order: Order) -> None:
        """Take all steps to what is asked for."""
        while await self._take_step(event, order):
            continue

    async def _take_step(self, event: Event, order: Order) -> bool:
        """Whether there was one to be taken."""
        effect = self._tell(event)
        if effect is None:
            return False
        try:
            found = await self.running.perform(effect, order)
        except BaseException:
            self._note_found(self.running.found())
            raise
        self._note_found(found)
        return True

    def _note_found(self, found: Event, since: float | None = None) -> None:
        self.running.watch(self._note_end)
        if record := self.workshop.find(self.name):
            self.treat(record)
        self._tell(found, since)

    async def _note_end(self, live: LiveSandbox) -> None:
        """Act on the end of a sandbox that has ended by itself."""
        async with self.change():
            if self.running.live is live:
                try:
                    await self.running.end_by_itself()
                finally:
                    self._tell(self.running.found())

    # Its use.

    @asynccontextmanager
    async def use(self, by: Caller) -> AsyncIterator[AgentLink]:
        """Its agent; the sandbox is made, started or thawed if need be, and stays awake while this lasts."""
        self._tell(Event.USED)
        self._is_unused.clear()
        self._plan_look(since_boot() + AGENT_CHECK_SECONDS)
        try:
            link = self.running.link
            if link is None or self._changes or self._life.state is not State.RUNNING:
                link = await self._wake(by)
            yield link
        except (AgentLostError, AgentTimeoutError, AgentMisbehavedError) as problem:
            problem.about(sandbox=self.name)
            raise
        except AtollError as problem:
            raise self.workshop.storage.explain(problem, self.name) from problem.__cause__
        finally:
            self._tell(Event.LEFT)
            if not self._life.uses:
                self._is_unused.set()

    async def _wake(self, by: Caller) -> AgentLink:
        async with self.change():
            await self.have(Event.BE_AWAKE, by.order(WHEN_USED))
            return self.running.opened_link()

    async def do(self, by: Caller, work: Callable[[AgentLink], Awaitable[T]]) -> T:
        """The result of `work`, done again if the sandbox had ended by itself before its agent took anything."""
        for is_last in (False,) * (MAX_ATTEMPTS - 1) + (True,):
            async with self.use(by) as link:
                try:
                    return await work(link)
                except AgentLostError as problem:
                    if is_last or not await self.had_ended(link, problem):
                        raise
        raise AssertionError("the last attempt returns or raises")

    async def ask(self, by: Caller, call: Call[Answer]) -> Answer:
        """The answer to a call that streams nothing."""
        return await self.do(by.of(call), lambda link: link.ask(call))

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

        by = by.of(call)
        async with self.use(by), AsyncExitStack() as stack:
            yield await self.do(by, begin)

    async def rest(self) -> None:
        """Let other sandboxes have their turn, if this one has had its own: for who takes long with what it said."""
        if (link := self.running.link) and link.turns.is_over:
            await link.turns.next()

    async def had_ended(self, link: AgentLink, problem: AgentLostError) -> bool:
        """Whether `problem` is that the sandbox ended by itself before its agent took anything."""
        if problem.code != ErrorCode.SANDBOX_NOT_RUNNING:
            return False
        if self.running.link is link:
            await self.running.wait_for_end(END_SECONDS)
        return link.has_ended

    async def wake(self, by: Caller) -> None:
        """As any operation does by itself."""
        async with self.use(by):
            pass

    # What becomes of it.

    async def ensure(self, plan: Plan, by: Caller, *, strictly: SandboxOptions | None = None) -> bool:
        """Make it if its id is new: then True. Start it if it is stopped. One that exists keeps what it has, or if it
        is to be so `strictly`, is refused.
        """
        async with self.change():
            is_new = not self.workshop.exists(self.name)
            if strictly and not is_new:
                check_agreement(strictly, self.record())
            if not is_new and plan.image != self.record().image:
                self.workshop.images.check(plan.image)
            await self.have(Event.BE_UP, Order(WHEN_USED, by.name, plan))
            return is_new

    async def take_back(self, lost: str, image: str | None, by: Caller) -> None:
        """Make a disk that was set aside this sandbox, of which there is none."""
        async with self.change():
            await self.workshop.lost.take_back(lost, self.name, image)
            self._note_found(self.running.found())
            await self.history.begin(cause=f"the disk {lost}, which was set aside, was adopted", by=by.name)

    async def adopt(self) -> None:
        """Take over what an earlier server left running; what ended since is stopped."""
        async with self.change():
            if self.running.live is None:
                await self._adopt()

    async def _adopt(self) -> None:
        if await self.history.is_empty() or await self.history.has_ended():
            is_restored = self.name in self.workshop.inherited.restored
            await self.history.begin(cause=WHEN_RESTORED if is_restored else WHEN_UNSAID, by=ATOLL)
        elif self.name in self.workshop.inherited.restored:
            await self.history.note("restored", cause=WHEN_RESTORED, by=ATOLL)
        await self.history.recall()
        try:
            live = await self.workshop.adopt(self.name)
        except AtollError as problem:
            if problem.code is ErrorCode.SANDBOX_OUT_OF_REACH:
                self.running.out_of_reach = problem.to_body()
                return
            change = self.history.last_change
            if change and change.what != "stopped":
                await self.history.note("stopped", cause="it ended while no server ran", by=KERNEL)
            self._note_found(self.running.found())
            return
        self.running.live = live
        await self.running.connect()
        found = self.running.found()
        is_frozen = found is Event.STANDS_STILL
        try:
            if is_frozen != self.history.says_frozen:
                what = "frozen" if is_frozen else "thawed"
                await self.history.note(what, cause=WHEN_CHANGED_UNSAID, by=ATOLL)
        finally:
            self._note_found(found, since_boot() - self.history.asleep_for())

    async def destroy(self, by: Caller) -> None:
        async with self.change():
            if not self.workshop.is_on_record(self.name):
                if not await self.history.is_empty():
                    await self.history.end(cause=ASKED_FOR, by=by.name)
                return
            await self._end_life(Order(ASKED_FOR, by.name))

    async def _end_life(self, order: Order) -> None:
        await self._take_step(Event.BE_GONE, order)
        if (problem := self.workshop.why_removed_later(self.name)) and not await self.history.has_ended():
            await self.history.note_if_possible(REMOVED_LATER, cause=problem.message, by=ATOLL)
        await self.history.end(cause=order.cause, by=order.by)

    async def close(self) -> None:
        """The server ends; the sandbox lives on."""
        async with self.change():
            await self.running.close()
            self._tell(self.running.found())

    async def sleep(self, by: Caller, *, stop: bool = False) -> None:
        """Freeze it as soon as nothing is under way, unless it is used again before; or stop it, whatever is."""
        async with self.change():
            self.record()
            if self.running.out_of_reach:
                raise from_body(self.running.out_of_reach)
            if stop:
                await self.have(Event.BE_STOPPED, Order(ASKED_FOR, by.name))
                return
            if self.running.live:
                require(self.workshop.engine, Capability.FREEZE)
        self._life = self._life.told_to_sleep(by.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(BEDTIME_SECONDS):
                await self._is_unused.wait()
        await self.do_what_is_due()

    async def end_with_its_disk(self) -> bool:
        """Its disk takes nothing more, and goes away. Returns whether it ran."""
        async with self.change():
            is_running = self.running.live is not None
            await self.have(Event.BE_ENDED, Order(WHEN_RECOVERED, ATOLL))
            return is_running

    async def note_removal(self) -> None:
        """Note that a sandbox which was destroyed and could not be removed is gone now."""
        if not await self.history.is_empty() and not self.workshop.is_on_record(self.name):
            await self.history.end(cause=WHEN_REMOVED_LATE, by=ATOLL)

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
        link = self.running.link
        if self._life.uses or (link and link.is_waited_for):
            self._plan_look(since_boot() + AGENT_CHECK_SECONDS)
        if link and (seconds := link.let_idle_go(IDLE_SECONDS)) is not None:
            self._plan_look(since_boot() + seconds)

    async def do_what_is_due(self) -> None:
        """Put it to sleep, stop or destroy it. What cannot be done is tried again a moment later."""
        if self._life.due(since_boot()) is None:
            return
        async with self.change():
            if due := self._life.due(since_boot()):
                try:
                    order = Order(due.cause, due.by)
                    await (self._end_life(order) if due.event is Event.BE_GONE else self.have(due.event, order))
                except BaseException:
                    self._life = self._life.put_off(since_boot())
                    raise

    async def check_agent(self) -> None:
        """Give up all that waits for an agent that does not answer. Whatever it does, its first process answers."""
        link, change = self.running.link, self.history.last_change
        if link is None or self._life.state is State.FROZEN or not link.is_waited_for:
            return
        try:
            await link.ping()
        except AgentTimeoutError:
            if self.history.last_change is change:  # it has not been asleep meanwhile
                logger.warning("the agent of sandbox %s does not answer", self.name)
                link.give_up()
        except AgentLostError:  # it ends just now, which others see to
            pass

    # What is known of it.

    @property
    def state(self) -> SandboxState:
        """Of one that is out of reach, as it was last seen."""
        if self.running.out_of_reach:
            return self.history.last_state
        if self.running.live is None:
            return SandboxState.STOPPED
        is_asleep = self._life.state in (State.FROZEN, State.THAWING)
        return SandboxState.FROZEN if is_asleep else SandboxState.RUNNING

    def record(self) -> SandboxRecord:
        record = self.workshop.find(self.name)
        if record is None:
            raise not_found(self.name)
        return record

    async def record_to_change(self, by: Caller) -> SandboxRecord:
        """For who has begun a change. The sandbox is made, if its id is new."""
        if not self.workshop.exists(self.name):
            await self.have(Event.BE_UP, by.order(WHEN_USED))
        return self.record()

    def treat(self, record: SandboxRecord) -> None:
        """As it is on record from now on. Nothing is due of one that is out of reach: it is left alone."""
        if self.running.out_of_reach:
            return
        age = moments.elapsed(record.made, moments.now()) if record.upkeep.ttl is not None else 0.0
        self._life = self._life.treated(record.upkeep, since_boot() - age)
        self._plan_look(self._life.deadline)

    async def events(self, since: int) -> list[SandboxEvent]:
        events = await self.history.since(since)
        if not events and await self.history.is_empty():
            self.record()
        return events

    def follow(self, since: int) -> AsyncGenerator[SandboxEvent, None]:
        """Events that were, then those that come, to the end of the sandbox."""
        return self.history.follow(since, lambda: self.workshop.is_on_record(self.name))
