"""Upkeep of a sandbox: when it is put to sleep, stopped and destroyed, as its users change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict, replace

from atoll.protocol.durations import parse_duration
from atoll.protocol.sandboxes import parse_lasting

if TYPE_CHECKING:
    from atoll.protocol.sandboxes import UpkeepChanges
    from atoll.supervisor.actor import Caller, SandboxActor


async def set_upkeep(actor: SandboxActor, changes: UpkeepChanges, by: Caller) -> None:
    checked = _checked(changes)
    async with actor.change():
        record = await actor.record_to_change(by)
        upkeep = replace(record.upkeep, **checked)
        await actor.workshop.update(record, upkeep=upkeep)
        actor.treat(actor.record())
        asked = " and ".join(f"{name}={_in_words(value)}" for name, value in checked.items())
        await actor.history.note("upkeep_changed", cause=f"{asked or 'nothing'} was asked for", by=by.name)


def _checked(changes: UpkeepChanges) -> dict[str, Any]:
    """Fields of `Upkeep` with what they become."""
    given = {name: value for name, value in asdict(changes).items() if value is not msgspec.UNSET}
    if "sleep_after" in given:
        given["sleep_after"] = parse_duration(given["sleep_after"], "sleep_after")
    for name in ("stop_after", "ttl"):
        if name in given:
            given[name] = parse_lasting(name, given[name])
    return given


def _in_words(value: object) -> str:
    return f"{value:g}s" if isinstance(value, float) else str(value)
