"""`atoll inspect`: everything about one sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
from rich.text import Text

from atoll.cli.options import id_argument, server_options
from atoll.cli.tables import STATE_STYLES, make_table, print_document, show
from atoll.cli.text import local_time, pairs, size, span
from atoll.client_sync.sandbox import get_sandbox
from atoll.protocol.printable import printable
from atoll.protocol.sandboxes import SandboxInfo


@click.command(short_help="Show what a sandbox is, may use and uses.")
@id_argument
@server_options
def inspect(sandbox_id: str, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Show what the sandbox ID is, may use and uses. Makes none, and wakes none."""
    info = get_sandbox(sandbox_id, url=url, api_key=api_key).status()
    if as_json:
        print_document(info)
        return
    table = make_table("", "", has_head=False)
    for name, value in describe(info, datetime.now(UTC)):
        table.add_row(Text(name, "bold"), value)
    show(table)


def describe(info: SandboxInfo, now: datetime) -> Iterator[tuple[str, str | Text]]:
    limits, use = info.limits, info.use
    yield "id", printable(info.id)
    since = f" for {span(now - info.since)}: {printable(info.cause)}" if info.cause else ""
    yield "state", Text.assemble((info.state.value, STATE_STYLES[info.state]), since)
    yield "created", f"{local_time(info.created_at)} ({span(now - info.created_at)} ago)"
    yield "image", f"{printable(info.image)}, {printable(info.image_state)}"
    yield "isolation", printable(info.isolation)
    yield "memory", f"{size(use.memory)} of {size(limits.memory)}" if use else f"at most {size(limits.memory)}"
    yield "processes", f"{use.processes} of {limits.pids}" if use else f"at most {limits.pids}"
    yield "cpus", f"{limits.cpus:g}" + (f"; {use.cpu_seconds:.1f}s used so far" if use else "")
    disk = use.disk if use else None
    yield "disk", f"at most {size(limits.disk)}" if disk is None else f"{size(disk)} of {size(limits.disk)}"
    if use and use.oom_kills:
        yield "out of memory", Text(f"{use.oom_kills} processes were killed", "yellow")
    yield "sleeps", sleeps(info)
    if info.ttl is not None:
        yield "ends", f"{span(timedelta(seconds=info.ttl))} after it was made"
    yield "labels", pairs(info.labels) or "-"
    yield "variables", ", ".join(map(printable, info.env)) or "-"


def sleeps(info: SandboxInfo) -> str:
    """When it is put to sleep, and whether it is stopped after that."""
    never = info.keep_alive or info.sleep_after is None
    after = "never by itself" if never else f"after {span(timedelta(seconds=info.sleep_after or 0))} without use"
    if info.stop_after is None:
        return after
    return f"{after}; is stopped after {span(timedelta(seconds=info.stop_after))} of sleep"
