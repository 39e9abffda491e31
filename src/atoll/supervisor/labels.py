"""Labels of a sandbox: what it is found by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from atoll.protocol.sandboxes import check_labels
from atoll.supervisor.lifecycle import ASKED_FOR

if TYPE_CHECKING:
    from atoll.supervisor.actor import Caller, SandboxActor


async def set_labels(actor: SandboxActor, labels: dict[str, str], by: Caller) -> None:
    """Replace its labels; those of the key of whoever asks stay."""
    labels = check_labels({**labels, **by.labels})
    async with actor.change():
        record = await actor.record_to_change(by)
        await actor.workshop.update(record, upkeep=replace(record.upkeep, labels=labels))
        actor.treat(actor.record())
        await actor.history.note("labels_changed", cause=ASKED_FOR, by=by.name)
