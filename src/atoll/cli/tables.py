"""Tables and colour, for people; what goes to a file or another program has neither colour nor a width."""

from __future__ import annotations

import os

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from atoll.protocol.sandboxes import SandboxState

UNBOUNDED = 10_000  # columns: where nobody looks, no line is broken
STATE_STYLES = {SandboxState.RUNNING: "green", SandboxState.FROZEN: "cyan", SandboxState.STOPPED: "dim"}


def open_console() -> Console:
    # Without a colour system not even bold is written, which is what those who set NO_COLOR want.
    return Console(
        color_system=None if os.environ.get("NO_COLOR") else "auto", highlight=False, markup=False, emoji=False
    )


def make_table(*columns: str, has_head: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=has_head, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), overflow="fold")
    return table


def show(renderable: Table | Text) -> None:
    console = open_console()
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as captured:
        console.print(renderable, width=UNBOUNDED, crop=False)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_document(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_line(value: object) -> None:
    """A document on a line of its own, for those of which there are many."""
    click.echo(msgspec.json.encode(value))
