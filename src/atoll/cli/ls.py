"""`atoll ls`: the sandboxes there are."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from atoll.cli.options import parse_pair, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import STATE_STYLES, make_table, print_document, show
from atoll.cli.text import pairs, size, span
from atoll.client_sync.sandbox import list_sandboxes
from atoll.protocol.printable import printable
from atoll.protocol.sandboxes import SandboxInfo, SandboxList, SandboxState


@click.command(short_help="List sandboxes.")
@click.option("--label", type=parse_pair, metavar="K=V", multiple=True, help="Only those with this label.")
@click.option("--state", type=click.Choice([state.value for state in SandboxState]), help="Only those in this state.")
@server_options
def ls(
    label: tuple[tuple[str, str], ...], state: str | None, url: str | None, api_key: str | None, as_json: bool
) -> None:
    """List sandboxes: all of them, or those with some labels or in some state."""
    found = list_sandboxes(labels=dict(label), state=state, url=url, api_key=api_key)
    if as_json:
        print_document(SandboxList(sandboxes=found))
    elif found:
        show(to_table(found, datetime.now(UTC)))
    else:
        print_to_stderr("No such sandboxes." if label or state else "No sandboxes. `atoll exec ID CMD` makes one.")


def to_table(sandboxes: list[SandboxInfo], now: datetime) -> Table:
    table = make_table("id", "state", "image", "age", "memory", "labels")
    for sandbox in sandboxes:
        table.add_row(
            Text(printable(sandbox.id), "bold"),
            Text(sandbox.state.value, STATE_STYLES[sandbox.state]),
            printable(sandbox.image),
            span(now - sandbox.created_at),
            size(sandbox.use.memory) if sandbox.use else "-",
            pairs(sandbox.labels),
        )
    return table
