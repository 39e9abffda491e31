"""The network of a sandbox: what it may reach, as its users change it, and what it tried to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.engine.base import Capability, require
from atoll.protocol.network import ConnectionList, parse_network

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from atoll.protocol.network import Connection, NetworkPolicy
    from atoll.supervisor.actor import Caller, SandboxActor


async def set_network(actor: SandboxActor, given: object, by: Caller) -> None:
    """From now on, also of what is open. It stays as it is, asleep or stopped."""
    policy = parse_network(given)
    require(actor.workshop.engine, Capability.NETWORK)
    async with actor.change():
        record = await actor.record_to_change(by)
        await actor.workshop.update(record, network=policy)
        if (live := actor.running.live) and actor.workshop.gateway:
            actor.workshop.gateway.change(live.generation, policy)
        await actor.history.note("network_changed", cause=f"{_in_words(policy)} was asked for", by=by.name)


async def connections(actor: SandboxActor) -> ConnectionList:
    """Since this server runs; what was allowed and denied, the latest."""
    actor.record()
    if actor.workshop.gateway:
        await actor.workshop.gateway.catch_up()
    return actor.running.connections.listed()


def follow(actor: SandboxActor) -> AsyncGenerator[Connection, None]:
    actor.record()
    return actor.running.connections.follow()


def _in_words(policy: NetworkPolicy) -> str:
    words = [f"{name}={_shortened(rules)}" for name, rules in (("allow", policy.allow), ("deny", policy.deny)) if rules]
    return " and ".join(words) or "no network"


def _shortened(rules: list[str]) -> str:
    more = f" and {len(rules) - 5} more" if len(rules) > 5 else ""
    return ", ".join(rules[:5]) + more
