"""The last words of what runs in a sandbox, for whoever waits for a service that does not listen yet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from atoll.preview.pages import MAX_LINES, LastWords
from atoll.protocol.errors import AtollError
from atoll.protocol.process_log import LogFold
from atoll.protocol.processes import ListProcesses, StreamProcessLog

if TYPE_CHECKING:
    from atoll.protocol.processes import ProcessInfo
    from atoll.supervisor.actor import Caller, SandboxActor

MAX_PROCESSES = 3
MAX_LOG = 8 * 1024
PATIENCE_SECONDS = 2.0


async def last_words(actor: SandboxActor, by: Caller) -> list[LastWords]:
    """Of the latest background processes. Nothing at all if that takes long: somebody waits for a page."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = (await actor.ask(by, ListProcesses())).processes
            latest = sorted(found, key=lambda process: process.start_time)[-MAX_PROCESSES:]
            return [await _words_of(actor, by, process) for process in latest]
    except (AtollError, TimeoutError):
        return []


async def _words_of(actor: SandboxActor, by: Caller, process: ProcessInfo) -> LastWords:
    call = StreamProcessLog(process_id=process.id, follow=False)
    fold, tail = LogFold(call), b""
    async with actor.answering(by, call) as (agent, _):
        while part := fold.take(await agent.next_frame()):
            tail = b"".join((tail, *(entry.data for entry in part.entries)))[-MAX_LOG:]
    lines = tail.decode(errors="replace").splitlines()
    command = process.command if isinstance(process.command, str) else " ".join(process.command)
    return LastWords(command, process.status.value, lines[-MAX_LINES:])
