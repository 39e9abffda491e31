"""`atoll top`: what sandboxes use, as it changes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
import msgspec
from rich.live import Live
from rich.table import Table
from rich.text import Text

from atoll.cli.options import complete_id, parse_pair, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import STATE_STYLES, make_table, open_console, print_document, show
from atoll.cli.text import size
from atoll.client_sync.sandbox import get_sandbox, list_sandboxes
from atoll.protocol.limits import Limits
from atoll.protocol.printable import printable
from atoll.protocol.sandboxes import SandboxInfo, SandboxState

ONCE_SECONDS = 0.5  # between two looks, of which a share of the cpus is taken
WARNING, FULL = 0.8, 0.95


class Using(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one sandbox just now. `cpus` is how many, between two looks."""

    id: str
    state: SandboxState
    cpus: float
    memory: int
    processes: int
    disk: int | None
    limits: Limits


class Uses(msgspec.Struct, frozen=True):
    """The document that `--json` prints, those that use most cpu first."""

    sandboxes: list[Using]


class Look(msgspec.Struct, frozen=True):
    moment: float
    sandboxes: list[SandboxInfo]


@click.command(short_help="Watch what sandboxes use.")
@click.argument("sandbox_ids", metavar="[ID...]", nargs=-1, shell_complete=complete_id)
@click.option("--label", type=parse_pair, metavar="K=V", multiple=True, help="Only those with this label.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print it once, as also where no person watches.")
@server_options
def top(
    sandbox_ids: tuple[str, ...],
    label: tuple[tuple[str, str], ...],
    interval: float,
    once: bool,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Show what sandboxes use of cpu, memory, processes and disk: all that are awake or asleep, or those named.

    On a terminal it goes on until Ctrl-C; elsewhere it is printed once. Looking wakes none.
    """

    def look() -> Look:
        if sandbox_ids:
            return Look(time.monotonic(), [get_sandbox(id, url=url, api_key=api_key).status() for id in sandbox_ids])
        found = list_sandboxes(labels=dict(label), usage=True, url=url, api_key=api_key)
        return Look(time.monotonic(), found)

    if sandbox_ids and label:
        raise click.UsageError("Give ids or --label, not both.")
    console = open_console()
    if not once and not as_json and console.is_terminal:
        before = look()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            pause = ONCE_SECONDS
            while True:
                time.sleep(pause)
                now = look()
                live.update(to_table(uses(before, now)), refresh=True)
                before, pause = now, interval
    before = look()
    time.sleep(ONCE_SECONDS)
    found = uses(before, look())
    if as_json:
        print_document(Uses(found))
    elif found:
        show(to_table(found))
    else:
        print_to_stderr("No sandbox is awake or asleep.")


def uses(before: Look, now: Look) -> list[Using]:
    return sorted(_uses(before, now), key=lambda using: (-using.cpus, -using.memory, using.id))


def _uses(before: Look, now: Look) -> Iterator[Using]:
    """The cpus of one between two looks; one that was stopped or made meanwhile has used what it has since."""
    known = {(info.id, info.since): info.use.cpu_seconds for info in before.sandboxes if info.use}
    seconds = max(now.moment - before.moment, 0.001)
    for info in now.sandboxes:
        if use := info.use:
            used = use.cpu_seconds - known.get((info.id, info.since), use.cpu_seconds)
            yield Using(
                id=info.id,
                state=info.state,
                cpus=round(max(0.0, used) / seconds, 3),
                memory=use.memory,
                processes=use.processes,
                disk=use.disk,
                limits=info.limits,
            )


def to_table(found: list[Using]) -> Table:
    table = make_table("id", "state", "cpu", "memory", "processes", "disk")
    for using in found:
        limits = using.limits
        table.add_row(
            Text(printable(using.id), "bold"),
            Text(using.state.value, STATE_STYLES[using.state]),
            Text(f"{using.cpus:.0%} of {limits.cpus:.0%}", style_of(using.cpus, limits.cpus)),
            Text(f"{size(using.memory)} of {size(limits.memory)}", style_of(using.memory, limits.memory)),
            Text(f"{using.processes} of {limits.pids}", style_of(using.processes, limits.pids)),
            "-"
            if using.disk is None
            else Text(f"{size(using.disk)} of {size(limits.disk)}", style_of(using.disk, limits.disk)),
        )
    return table


def style_of(used: float, limit: float) -> str:
    """The style of a figure, seen at once if it is nearly used up."""
    return "bold red" if used >= FULL * limit else "yellow" if used >= WARNING * limit else ""
