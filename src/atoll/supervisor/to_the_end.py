"""Work that goes to its end, also if whoever asked for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def to_the_end(work: Coroutine[None, None, None]) -> None:
    """Also if we are cancelled: a thread that removes a disk would remove the next one of its name."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
