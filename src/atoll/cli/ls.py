"""`atoll ls`: the sandboxes there are."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from atoll.cli.options import parse_pair, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import STATE_STYLES, make_table, print_document, show
from atoll.cli.text import pairs, printable, size, span
from atoll.client_sync.lost import list_lost_sandboxes
from atoll.client_sync.sandbox import list_sandboxes
from atoll.protocol.sandboxes import LostList, LostSandbox, SandboxInfo, SandboxList, SandboxState


@click.command(short_help="List sandboxes.")
@click.option("--label", type=parse_pair, metavar="K=V", multiple=True, help="Only those with this label.")
@click.option("--state", type=click.Choice([state.value for state in SandboxState]), help="Only those in this state.")
@click.option("--lost", is_flag=True, help="List disks that were set aside instead, as they are no sandbox's.")
@server_options
def ls(
    label: tuple[tuple[str, str], ...],
    state: str | None,
    lost: bool,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """List sandboxes: all of them, or those with some labels or in some state."""
    if lost:
        if label or state:
            raise click.UsageError("A lost disk has no labels and no state.")
        show_lost(list_lost_sandboxes(url=url, api_key=api_key), as_json=as_json)
        return
    found = list_sandboxes(labels=dict(label), state=state, url=url, api_key=api_key)
    if as_json:
        print_document(SandboxList(sandboxes=found))
    elif found:
        show(to_table(found, datetime.now(UTC)))
    else:
        print_to_stderr("No such sandboxes." if label or state else "No sandboxes. `atoll exec ID CMD` makes one.")


def show_lost(found: list[LostSandbox], *, as_json: bool) -> None:
    if as_json:
        print_document(LostList(lost=found))
    elif found:
        show(to_lost_table(found, datetime.now(UTC)))
        print_to_stderr("`atoll adopt NAME` makes one a sandbox again, `atoll rm --lost NAME` removes it.")
    else:
        print_to_stderr("No disks were set aside.")


def to_lost_table(lost: list[LostSandbox], now: datetime) -> Table:
    table = make_table("name", "id", "image", "since", "reason")
    for disk in lost:
        table.add_row(
            Text(disk.name, "bold"),
            printable(disk.id or "-"),
            printable(disk.image or "-"),
            span(now - disk.since),
            printable(disk.reason),
        )
    return table


def to_table(sandboxes: list[SandboxInfo], now: datetime) -> Table:
    table = make_table("id", "state", "image", "age", "memory", "labels")
    for sandbox in sandboxes:
        table.add_row(
            Text(sandbox.id, "bold"),
            Text(sandbox.state.value, STATE_STYLES[sandbox.state]),
            printable(sandbox.image),
            span(now - sandbox.created_at),
            size(sandbox.use.memory) if sandbox.use else "-",
            pairs(sandbox.labels),
        )
    return table
