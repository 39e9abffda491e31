"""A sandbox as its users see it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.protocol.sandboxes import SandboxInfo, Use

if TYPE_CHECKING:
    from atoll.supervisor.actor import SandboxActor


def describe(actor: SandboxActor, use: Use | None = None) -> SandboxInfo:
    record, change, out_of_reach = actor.record(), actor.history.last_change, actor.running.out_of_reach
    cause = change.cause if change else ""
    return SandboxInfo(
        id=actor.name,
        state=actor.state,
        since=change.time if change else record.created_at,
        cause=out_of_reach.message if out_of_reach else cause,
        created_at=record.created_at,
        image=record.image,
        image_state=record.image_state,
        isolation=actor.workshop.engine.isolation,
        limits=record.limits,
        labels=record.upkeep.labels,
        env=sorted(name for name, value in record.env.items() if value is not None),
        sleep_after=record.upkeep.sleep_after,
        keep_alive=record.upkeep.keep_alive,
        stop_after=record.upkeep.stop_after,
        ttl=record.upkeep.ttl,
        network=record.network,
        use=use,
    )


async def describe_with_use(actor: SandboxActor) -> SandboxInfo:
    actor.record()  # it may not be there
    return describe(actor, await _use(actor))


async def _use(actor: SandboxActor) -> Use | None:
    live = actor.running.live
    if live is None:
        return None
    with suppress(FileNotFoundError):  # it ends just now
        usage = await actor.workshop.engine.usage(live)
        use = Use(
            cpu_seconds=usage.cpu_seconds,
            memory=usage.memory,
            processes=usage.processes,
            oom_kills=usage.oom_kills,
            disk=await asyncio.to_thread(actor.workshop.disk_use, actor.name),
        )
        return use if live is actor.running.live else None  # its control group may be another's by now
    return None
