"""Upkeep of a sandbox: when it is put to sleep and stopped, as its users change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict, replace

from atoll.protocol.durations import parse_duration

if TYPE_CHECKING:
    from atoll.protocol.sandboxes import UpkeepChanges
    from atoll.supervisor.actor import Caller, SandboxActor


async def set_upkeep(actor: SandboxActor, changes: UpkeepChanges, by: Caller) -> None:
    checked = _checked(changes)
    async with actor.change():
        record = await actor.record_to_change(by)
        upkeep = replace(record.upkeep, **checked)
        actor.workshop.update(record, upkeep=upkeep)
        actor.treat(upkeep)
        asked = " and ".join(f"{name}={_in_words(value)}" for name, value in checked.items())
        actor.history.note("upkeep_changed", cause=f"{asked or 'nothing'} was asked for", by=by.name)


def _checked(changes: UpkeepChanges) -> dict[str, Any]:
    """Fields of `Upkeep` with what they become."""
    given = {name: value for name, value in asdict(changes).items() if value is not msgspec.UNSET}
    for name in ("sleep_after", "stop_after"):
        if given.get(name) is not None:
            given[name] = parse_duration(given[name], name)
    return given


def _in_words(value: object) -> str:
    return f"{value:g}s" if isinstance(value, float) else str(value)
