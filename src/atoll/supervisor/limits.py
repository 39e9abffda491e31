"""Limits of a sandbox, changed while it runs, or before it starts again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from atoll.engine.base import Capability, require
from atoll.protocol.errors import AtollError
from atoll.protocol.limits import Limits
from atoll.supervisor.lifecycle import Event
from atoll.supervisor.running import Order
from atoll.supervisor.usual_variables import told_inside
from atoll.supervisor.variables import tell

if TYPE_CHECKING:
    from atoll.protocol.sandboxes import LimitChanges
    from atoll.supervisor.actor import Caller, SandboxActor


async def set_limits(actor: SandboxActor, changes: LimitChanges, by: Caller) -> None:
    """Processes beyond a lower limit of their number live on; memory and disk are refused if more is in use."""
    changes.applied_to(Limits())  # what makes no sense makes no sandbox either
    async with actor.change():
        record = await actor.record_to_change(by)
        limits = changes.applied_to(record.limits)
        if limits == record.limits:
            return
        if actor.running.live:
            require(actor.workshop.engine, Capability.SET_LIMITS)
        await actor.have(Event.BE_THAWED, Order("its limits are set", by.name))
        await actor.workshop.set_limits(record, limits, actor.running.live)
        await actor.history.note(
            "limits_changed", cause=f"{_in_words(record.limits, limits)} was asked for", by=by.name
        )
        if actor.running.live:
            told = told_inside(limits).items() - told_inside(record.limits).items()
            with suppress(AtollError):  # it is done; an agent that does not hear of it has them with its next start
                await tell(actor.running.opened_link(), {name: it for name, it in told if name not in record.env})


def _in_words(before: Limits, after: Limits) -> str:
    has, had = asdict(after), asdict(before)
    return " and ".join(f"{name}={value}" for name, value in has.items() if value != had[name])
