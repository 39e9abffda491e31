"""`atoll ls`: the sandboxes there are."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from atoll.cli.options import parse_pair, quiet_option, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import STATE_STYLES, make_table, print_document, print_ids, show
from atoll.cli.text import pairs, size, span
from atoll.client_sync.lost import list_lost_sandboxes
from atoll.client_sync.sandbox import list_sandboxes
from atoll.protocol.printable import printable
from atoll.protocol.sandboxes import LostList, LostSandbox, SandboxInfo, SandboxList, SandboxState, Use

NONE_AT_ALL = "No sandboxes. `atoll exec ID CMD` makes one."


@click.command(short_help="List sandboxes.")
@click.option("--label", type=parse_pair, metavar="K=V", multiple=True, help="Only those with this label.")
@click.option("--state", type=click.Choice([state.value for state in SandboxState]), help="Only those in this state.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="So many at most.")
@click.option("--after", metavar="ID", help="Only ids after this one, to go on where --limit ended.")
@quiet_option
@click.option("--usage", is_flag=True, help="Show what each uses of cpu, memory and disk, too.")
@click.option("--lost", is_flag=True, help="List disks that were set aside instead, as they are no sandbox's.")
@server_options
def ls(
    label: tuple[tuple[str, str], ...],
    state: str | None,
    limit: int | None,
    after: str | None,
    quiet: bool,
    usage: bool,
    lost: bool,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """List sandboxes by id: all of them, or those with some labels or in some state."""
    if lost:
        if label or state or limit or after or usage or quiet:
            raise click.UsageError("A lost disk has none of what the other options ask for.")
        show_lost(list_lost_sandboxes(url=url, api_key=api_key), as_json=as_json)
        return
    labels, one_more = dict(label), None if limit is None else limit + 1
    wanted = None if state is None else SandboxState(state)
    found = list_sandboxes(
        labels=labels,
        state=wanted,
        limit=one_more,
        after=after,
        usage=usage,
        url=url,
        api_key=api_key,
    )
    shown = found[:limit]
    more = shown[-1].id if len(found) > len(shown) else None
    if as_json:
        print_document(SandboxList(sandboxes=shown, next=more))
        return
    if quiet:
        print_ids(sandbox.id for sandbox in shown)
    elif shown:
        show(to_table(shown, datetime.now(UTC), with_use=usage))
    else:
        print_to_stderr("No such sandboxes." if label or state or after else NONE_AT_ALL)
    if more:
        print_to_stderr(f"There are more: --after {printable(more)} goes on.")


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
            Text(printable(disk.name), "bold"),
            printable(disk.id or "-"),
            printable(disk.image or "-"),
            span(now - disk.since),
            printable(disk.reason),
        )
    return table


def to_table(sandboxes: list[SandboxInfo], now: datetime, *, with_use: bool) -> Table:
    table = make_table("id", "state", "image", "age", *(("cpu", "memory", "disk") if with_use else ()), "labels")
    for sandbox in sandboxes:
        table.add_row(
            Text(printable(sandbox.id), "bold"),
            Text(sandbox.state.value, STATE_STYLES[sandbox.state]),
            printable(sandbox.image),
            span(now - sandbox.created_at),
            *(use_columns(sandbox.use) if with_use else ()),
            pairs(sandbox.labels),
        )
    return table


def use_columns(use: Use | None) -> tuple[str, str, str]:
    if use is None:
        return "-", "-", "-"
    return f"{use.cpu_seconds:.1f}s", size(use.memory), "-" if use.disk is None else size(use.disk)
