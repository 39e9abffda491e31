"""Tables and colour, for people; what goes to a file or another program has neither colour nor a width."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click
import msgspec
from rich.console import Console
from rich.table import Table

from atoll.protocol.printable import printable, printable_json
from atoll.protocol.sandboxes import SandboxState

UNBOUNDED = 10_000  # columns: where nobody looks, no line is broken
LAST_COLUMN = 12  # columns that are left to it in any case
STATE_STYLES = {SandboxState.RUNNING: "green", SandboxState.FROZEN: "cyan", SandboxState.STOPPED: "dim"}


def open_console() -> Console:
    # Without a colour system not even bold is written, which is what those who set NO_COLOR want.
    return Console(
        color_system=None if os.environ.get("NO_COLOR") else "auto", highlight=False, markup=False, emoji=False
    )


def make_table(*columns: str, has_head: bool = True) -> Table:
    """Only the last column is broken into lines: the others, ids among them, are to be copied."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=has_head, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), overflow="fold", no_wrap=True)
    table.columns[-1].no_wrap = False
    return table


def show(table: Table) -> None:
    console = open_console()
    if console.is_terminal:
        console.width = max(console.width, least_width(table, console))
        console.print(table)
        return
    console.width = UNBOUNDED
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def least_width(table: Table, console: Console) -> int:
    """In a narrower terminal lines go on in the next, which loses nothing."""
    last = table.columns[-1]
    last.max_width = LAST_COLUMN
    least = console.measure(table, options=console.options.update(width=UNBOUNDED)).minimum
    last.max_width = None
    return least


def print_document(value: object) -> None:
    click.echo(printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def print_ids(ids: Iterable[str]) -> None:
    """For other programs: one a line."""
    for name in ids:
        click.echo(printable(name))


def print_line(value: object) -> None:
    """A document on a line of its own, for those of which there are many."""
    click.echo(printable_json(msgspec.json.encode(value).decode()))
