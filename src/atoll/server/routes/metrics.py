"""Metrics of a server for Prometheus: what it counted, and how things are just now.

No control group of a sandbox is read for it, and no disk of one looked at: a thousand cost no more than one, but for a
look at the state that each actor knows by itself.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from atoll import __version__
from atoll.protocol.sandboxes import SandboxState
from atoll.server.api_route import ApiRoute, Reach
from atoll.server.routes.sandboxes import roster_of
from atoll.supervisor.roster import Roster
from atoll.supervisor.workshop import Workshop
from atoll.telemetry import counted
from atoll.telemetry.metrics import CONTENT_TYPE, Gauge, rendered

STARTED = time.time()


async def get_metrics(request: Request) -> Response:
    roster = roster_of(request)
    found = [*await sandboxes(roster), *await memory(roster.workshop), *await disks(roster.workshop), *process()]
    return Response(rendered((*found, *counted.ALL)), media_type=CONTENT_TYPE)


async def sandboxes(roster: Roster) -> list[Gauge]:
    states = Counter({state.value: 0 for state in SandboxState})
    states.update(await roster.states())
    help = "Sandboxes there are, by their state."
    return [Gauge(name="atoll_sandboxes", help=help, label="state", values=dict(states))]


async def memory(workshop: Workshop) -> list[Gauge]:
    promised = workshop.promised_memory
    return [
        _one("atoll_memory_used_bytes", "Memory that all sandboxes use together.", await workshop.engine.memory_used()),
        _one("atoll_memory_promised_bytes", "Memory that running sandboxes may use together.", promised.total),
        _one("atoll_memory_promisable_bytes", "Memory that may be promised to running sandboxes.", promised.most),
    ]


async def disks(workshop: Workshop) -> list[Gauge]:
    """None while they cannot be looked at, which the first of them says."""
    is_usable = workshop.storage.problem() is None
    found = [_one("atoll_disks_usable", "Whether disks take what is written.", is_usable)]
    if is_usable:
        room = await asyncio.to_thread(workshop.storage.room)
        found += [
            _one("atoll_pool_size_bytes", "What all disks of sandboxes may hold together.", room.size),
            _one("atoll_pool_used_bytes", "What they hold.", room.used),
            _one("atoll_pool_promised_bytes", "What each of them may hold, summed up.", room.promised),
        ]
    return found


def process() -> list[Gauge]:
    """Of the server itself, by the names that every exporter has for them."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return [
        Gauge(name="atoll_info", help="Which server this is.", label="version", values={__version__: 1}),
        _one("process_cpu_seconds_total", "Processor time used.", use.ru_utime + use.ru_stime, is_total=True),
        _one("process_resident_memory_bytes", "Resident memory.", resident),
        _one("process_open_fds", "Open descriptors.", sum(1 for _ in Path("/proc/self/fd").iterdir())),
        _one("process_start_time_seconds", "Start, in seconds since the epoch.", STARTED),
    ]


def _one(name: str, help: str, value: float, *, is_total: bool = False) -> Gauge:
    return Gauge(name=name, help=help, values={"": value}, is_total=is_total)


ROUTES = (
    ApiRoute(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        summary="What the server counted, and how things are, for Prometheus",
        tag="server",
        reach=Reach.SERVER,
        answers={200: str},
        answer_type="text/plain",
    ),
)
