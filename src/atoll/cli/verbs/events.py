"""`atoll events`: what happened to a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.table import Table
from rich.text import Text

from atoll.cli.options import id_argument, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_line, show
from atoll.cli.text import short_time
from atoll.client_sync.sandbox import Sandbox, get_sandbox
from atoll.protocol.printable import printable
from atoll.protocol.sandboxes import SandboxEvent

STYLES = {"created": "green", "oom_killed": "bold red", "stopped": "yellow", "destroyed": "red"}
NUMBER_WIDTH, WHAT_WIDTH = 4, len("session_created")
LAST = "destroyed"


@click.command(short_help="Show what happened to a sandbox.")
@id_argument
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen, until the sandbox is destroyed.")
@click.option("--since", type=click.IntRange(0), metavar="NUMBER", help="Only events after this one.")
@server_options
def events(
    sandbox_id: str, follow: bool, since: int | None, url: str | None, api_key: str | None, as_json: bool
) -> None:
    """Show what happened to the sandbox ID: when, what, why, and who asked.

    With --json each event is a line of its own.
    """
    sandbox = get_sandbox(sandbox_id, url=url, api_key=api_key)
    if as_json:
        for event in followed(sandbox, since) if follow else sandbox.events(since):
            print_line(event)
    elif follow:
        for event in followed(sandbox, since):
            show(to_table([event]))  # one of its own, as the next may be a day later
    elif found := sandbox.events(since):
        show(to_table(found))
    else:
        print_to_stderr(f"Nothing happened after event {since}.")


def followed(sandbox: Sandbox, since: int | None) -> Iterator[SandboxEvent]:
    """The next sandbox of this id has a timeline of its own."""
    with sandbox.follow_events(since) as stream:
        for event in stream:
            yield event
            if event.what == LAST:
                return


def to_table(events: list[SandboxEvent]) -> Table:
    table = make_table("", "", "", "", has_head=False)
    table.columns[0].min_width = NUMBER_WIDTH
    table.columns[0].justify = "right"
    table.columns[2].min_width = WHAT_WIDTH
    for event in events:
        times = f", {event.count} times" if event.count > 1 else ""
        table.add_row(
            Text(str(event.number), "dim"),
            Text(short_time(event.time), "dim"),
            Text(printable(event.what), STYLES.get(event.what, "")),
            Text.assemble(printable(event.cause), times, (f" ({printable(event.by)})", "dim")),
        )
    return table
