"""Variables of a sandbox: kept, and told to the agent of one that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.protocol.arguments import check_lasting_variables
from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AgentLostError, ErrorCode
from atoll.protocol.sessions import SetEnvironment
from atoll.supervisor.lifecycle import ASKED_FOR, Event
from atoll.supervisor.running import Order

if TYPE_CHECKING:
    from atoll.supervisor.actor import Caller, SandboxActor
    from atoll.supervisor.agent_link import AgentLink


async def set_variables(actor: SandboxActor, changes: dict[str, str | None], by: Caller) -> None:
    """None takes one away."""
    check_lasting_variables(changes)
    async with actor.change():
        record = await actor.record_to_change(by)
        merged = {**record.env, **changes}
        check_environment(merged)
        await actor.have(Event.BE_THAWED, Order("its variables are set", by.name))
        if actor.running.live:
            await tell(actor.running.opened_link(), changes)
        defaults = actor.workshop.default_env(record)
        kept = {name: value for name, value in merged.items() if value is not None or name in defaults}
        await actor.workshop.update(record, env=kept)
        await actor.history.note("env_changed", cause=ASKED_FOR, by=by.name)


async def tell(link: AgentLink, changes: dict[str, str | None]) -> None:
    try:
        await link.ask(SetEnvironment(env=changes))
    except AgentLostError as problem:
        if problem.code != ErrorCode.SANDBOX_NOT_RUNNING:  # if it ends just now, the next start has them
            raise
