"""Timelines: what happened to each sandbox, the latest MAX_EVENTS of it.

The next sandbox of an id begins anew, and its numbers go on: who gives the last that it saw misses nothing.

The last change of state is kept however much happened since: it says why a sandbox is in the state it is in.
Of those that were destroyed, the latest MAX_RETIRED are remembered.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from atoll.protocol.sandboxes import SandboxEvent
from atoll.store import moments
from atoll.store.moments import UNKNOWN_BOOT, Moment

if TYPE_CHECKING:
    from atoll.protocol.ids import SandboxId
    from atoll.store.base import Timeline

MAX_EVENTS = 1_000
MAX_RETIRED = 1_000
DESTROYED = "destroyed"
UNNOTED = "it was asked of a server that was killed"
JOINED = {"oom_killed"}  # code inside can make them happen: in a row they are one, or they would push out the others


class Entry(SandboxEvent, frozen=True, kw_only=True):
    """An event as it is kept: with its moment by the clock that nobody sets, which nobody is told."""

    since_boot: float = 0.0
    boot_id: str = UNKNOWN_BOOT

    @property
    def moment(self) -> Moment:
        return Moment(wall=self.time, since_boot=self.since_boot, boot_id=self.boot_id)

    def told(self) -> SandboxEvent:
        return SandboxEvent(**{name: getattr(self, name) for name in SandboxEvent.__struct_fields__})


def new_entry(number: int, what: str, *, cause: str, by: str, count: int = 1) -> Entry:
    """An event of just now."""
    now = moments.now()
    return Entry(
        number=number,
        time=now.wall,
        what=what,
        cause=cause,
        by=by,
        count=count,
        since_boot=now.since_boot,
        boot_id=now.boot_id,
    )


async def destroyed_at(timeline: Timeline, sandbox: SandboxId) -> datetime | None:
    """When it was destroyed, if that is the last that is known of this id."""
    last = await timeline.last(sandbox)
    return last.time if last and last.what == DESTROYED else None
