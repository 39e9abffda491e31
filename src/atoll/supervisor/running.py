"""The part of a sandbox that runs: its processes, the connections to its agent, and who watches for its end.

It does what a lifecycle tells it to, and nothing besides. Its owner sees to it that this is one thing at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from atoll.engine.base import Capability, EventKind, LiveSandbox, require
from atoll.network.connection_log import ConnectionLog
from atoll.network.gateway_process import Attached
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.processes import KillAllProcesses
from atoll.supervisor.agent_failures import WHEN_CLOSED, WHEN_DESTROYED, WHEN_DISK_FAILED, WHEN_STOPPED
from atoll.supervisor.agent_link import AgentLink, check_room, link_to
from atoll.supervisor.lifecycle import ATOLL, Effect, Event
from atoll.supervisor.plans import Plan
from atoll.supervisor.to_the_end import to_the_end
from atoll.telemetry import counted

if TYPE_CHECKING:
    from atoll.protocol.errors import ErrorBody
    from atoll.protocol.ids import SandboxId
    from atoll.supervisor.history import History
    from atoll.supervisor.workshop import Workshop

KERNEL = "kernel"
SHOWN = 3
AFTER_LOSS = "sandbox %s is made anew and empty, while a disk of that id is set aside (`atoll ls --lost`): %s"
STARTS = {Effect.MAKE: "created", Effect.START: "started", Effect.THAW: "thawed"}
WATCH_PAUSE_SECONDS = 1.0
KILLS = {
    EventKind.OOM_KILLED: ("it used all the memory it may", KERNEL),
    EventKind.HOARD_KILLED: ("it held more in sockets or file locks than it may", ATOLL),
}

logger = logging.getLogger("atoll.supervisor")


class Order(msgspec.Struct, frozen=True):
    """Why something is done, and for whom. Without a `plan` no sandbox is made."""

    cause: str
    by: str
    plan: Plan | None = None


class Running:
    """`live` and `link` are None while nothing runs; the link also while nobody has used it.

    From the moment that something runs it is `live`: one that we did not know of would get a second one on its disk.
    """

    def __init__(self, name: SandboxId, workshop: Workshop, history: History) -> None:
        self.live: LiveSandbox | None = None
        self.link: AgentLink | None = None
        self.out_of_reach: ErrorBody | None = None  # then it is not known whether anything runs
        self._name = name
        self._workshop = workshop
        self._history = history
        self._watcher: asyncio.Task[None] | None = None
        self.connections = ConnectionLog()

    def opened_link(self) -> AgentLink:
        assert self.live
        if self.link is None:
            self.link = link_to(self._workshop.engine, self.live, self._name)
        return self.link

    def found(self) -> Event:
        """The state of things, seen with our own eyes: when nothing runs, and when something went wrong."""
        if self.live:
            return Event.STANDS_STILL if self._stands_still(self.live) else Event.RUNS
        if self._workshop.exists(self._name):
            return Event.ENDED
        return Event.ENDED_FOR_GOOD if self._workshop.is_on_record(self._name) else Event.GONE

    def _stands_still(self, live: LiveSandbox) -> bool:
        """If that cannot be seen just now it may, and whoever thaws one that does not does no harm."""
        try:
            return self._workshop.engine.is_frozen(live)
        except FileNotFoundError:  # it ends just now
            return False
        except OSError:
            return True

    async def perform(self, effect: Effect, order: Order) -> Event:
        """Returns what became of it; if it raises, `found` knows."""
        began = time.monotonic()
        found = await self._perform(effect, order)
        if kind := STARTS.get(effect):
            counted.starts.note(kind, time.monotonic() - began)
        return found

    async def _perform(self, effect: Effect, order: Order) -> Event:
        match effect:
            case Effect.MAKE:
                return await self._make(order)
            case Effect.START:
                return await self._start(order)
            case Effect.REMOVE:
                await self._workshop.remove(self._name)
                return self.found()
        assert self.live, f"nothing runs to {effect.name}"
        return await _OF_WHAT_RUNS[effect](self, self.live, order)

    async def _make(self, order: Order) -> Event:
        check_room()
        if order.plan is None:
            raise not_found(self._name)
        self._history.labels = order.plan.upkeep.labels
        self.live = await self._workshop.make(self._name, order.plan)
        await self.connect()
        await self._history.begin(cause=self._why_made(), by=order.by)
        return Event.RUNS

    def _why_made(self) -> str:
        aside = self._workshop.lost.of_id(self._name)
        if not aside:
            return "its id was used for the first time"
        named = ", ".join(aside[:SHOWN]) + (", ..." if aside[SHOWN:] else "")
        logger.warning(AFTER_LOSS, self._name, named)
        return f"its id was used and there was none; `atoll ls --lost` has a disk of an earlier one: {named}"

    async def _start(self, order: Order) -> Event:
        check_room()
        self.live = await self._workshop.start(self._name)
        await self.connect()
        await self._history.note("started", cause=order.cause, by=order.by)
        return Event.RUNS

    async def connect(self) -> None:
        """Have it reach what its policy allows; nobody, if it cannot be led to a gateway."""
        gateway, live = self._workshop.gateway, self.live
        if live is None or gateway is None or Capability.NETWORK not in self._workshop.engine.capabilities:
            return
        policy, engine = self._workshop.record(self._name).network, self._workshop.engine
        try:
            attached = Attached(self._name, policy, self.connections, lambda: engine.open_gateway(live))
            await gateway.attach(live.generation, attached)
        except AtollError as problem:
            logger.warning("%s", problem.message)

    def _disconnect(self, live: LiveSandbox) -> None:
        if self._workshop.gateway:
            self._workshop.gateway.detach(live.generation)

    async def _freeze(self, live: LiveSandbox, order: Order) -> Event:
        require(self._workshop.engine, Capability.FREEZE)
        # To the end: the thread that does it goes on without whoever waits for it.
        await to_the_end(self._workshop.engine.freeze(live))
        await self._history.note("frozen", cause=order.cause, by=order.by)
        return Event.STANDS_STILL

    async def _thaw(self, live: LiveSandbox, order: Order) -> Event:
        await self._workshop.engine.thaw(live)
        await self._history.note_if_possible("thawed", cause=order.cause, by=order.by)
        return Event.RUNS

    async def _stop(self, live: LiveSandbox, order: Order) -> Event:
        with suppress(AtollError):  # one that does not answer is ended all the same
            # They are told first, and given a moment.
            await self.opened_link().ask(KillAllProcesses())
        if self.link:
            self.link.ending = WHEN_STOPPED
        await self._workshop.stop(live)
        self._note_end_of_link()
        await self._history.note("stopped", cause=order.cause, by=order.by)
        return await self.let_go()

    async def _end(self, live: LiveSandbox, order: Order) -> Event:
        """Its disk takes nothing more: whatever it was asked would wait for the disk."""
        if self.link:
            self.link.ending = WHEN_DISK_FAILED
        await self._workshop.stop(live)
        self._note_end_of_link()
        await self._history.note_if_possible("stopped", cause=order.cause, by=order.by)
        return await self.let_go()

    async def _destroy(self, live: LiveSandbox, _: Order) -> Event:
        if self.link:
            self.link.ending = WHEN_DESTROYED
        try:
            await self._workshop.destroy(live)
        finally:  # it has ended, also if its disk could not be removed
            await self.let_go()
        return self.found()

    def _note_end_of_link(self) -> None:
        """So that a call which it did not take any more starts it again."""
        if self.link:
            self.link.has_ended = True

    async def end_by_itself(self) -> None:
        """Act on an end that nobody asked for."""
        await self._history.note_if_possible("stopped", cause="its first process was killed", by=KERNEL)
        self._note_end_of_link()
        await self.let_go()

    async def let_go(self) -> Event:
        """Of one that has ended."""
        live, self.live = self.live, None
        self._close_link()
        if live:
            self._disconnect(live)
            await self._workshop.stop(live)
        await self._end_watch()
        return self.found()

    async def close(self) -> None:
        """The server ends; the sandbox lives on."""
        live, self.live = self.live, None
        await self._end_watch()
        if self.link:
            self.link.ending = WHEN_CLOSED
        self._close_link()
        if live:
            self._disconnect(live)
            await self._workshop.engine.release(live)

    def _close_link(self) -> None:
        if self.link:
            self.link.close()
            self.link = None

    async def _end_watch(self) -> None:
        if self._watcher and self._watcher is not asyncio.current_task():
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        self._watcher = None

    async def wait_for_end(self, seconds: float) -> None:
        """Until what whoever watches saw has been acted upon; no longer than that."""
        if self._watcher:
            await asyncio.wait({self._watcher}, timeout=seconds)

    def watch(self, on_end: Callable[[LiveSandbox], Awaitable[None]]) -> None:
        """Have what runs watched. Twice is fine."""
        if self.live and self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(self.live, on_end), name=f"watch {self._name}")

    async def _watch(self, live: LiveSandbox, on_end: Callable[[LiveSandbox], Awaitable[None]]) -> None:
        """To its end, which is acted upon whatever goes wrong before: else it would be running for ever."""
        while not await self._saw_end(live):
            continue
        await on_end(live)

    async def _saw_end(self, live: LiveSandbox) -> bool:
        """True when it has ended; False if it must be looked at again: there may be no descriptor for it just now."""
        try:
            async for event in self._workshop.engine.events(live):
                if event.kind in KILLS:
                    cause, by = KILLS[event.kind]
                    await self._history.note_if_possible("oom_killed", cause=cause, by=by)
        except OSError as cause:
            logger.warning("sandbox %s cannot be watched, so this is tried again: %s", self._name, cause)
            await asyncio.sleep(WATCH_PAUSE_SECONDS)
            return False
        return True


_OF_WHAT_RUNS: dict[Effect, Callable[[Running, LiveSandbox, Order], Awaitable[Event]]] = {
    Effect.FREEZE: Running._freeze,
    Effect.THAW: Running._thaw,
    Effect.STOP: Running._stop,
    Effect.END: Running._end,
    Effect.DESTROY: Running._destroy,
}


def not_found(name: SandboxId) -> AtollError:
    return error(
        ErrorCode.SANDBOX_NOT_FOUND,
        f"there is no sandbox {name!r}",
        remedy="Check the id; any operation on it, such as exec, makes it.",
        sandbox=name,
    )
