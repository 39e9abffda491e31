"""`atoll events`: what happened to a sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from rich.table import Table
from rich.text import Text

from atoll.cli.options import complete_id, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_line, show
from atoll.cli.text import short_time
from atoll.client_sync.news import events as list_events
from atoll.client_sync.news import follow_events
from atoll.client_sync.sandbox import Sandbox, get_sandbox
from atoll.protocol.printable import printable
from atoll.protocol.sandboxes import MAX_SANDBOXES_PER_PAGE as MOST
from atoll.protocol.sandboxes import SANDBOXES_PER_PAGE as USUAL
from atoll.protocol.sandboxes import NewsEvent, SandboxEvent

STYLES = {"created": "green", "oom_killed": "bold red", "stopped": "yellow", "destroyed": "red"}
NUMBER_WIDTH, WHAT_WIDTH = 4, len("session_created")
LAST = "destroyed"


@click.command(short_help="Show what happened to a sandbox, or to all.")
@click.argument("sandbox_id", metavar="[ID]", required=False, shell_complete=complete_id)
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen; for one, until it is destroyed.")
@click.option("--since", type=click.IntRange(0), metavar="NUMBER", help="Only events of the sandbox after this one.")
@click.option(
    "--limit", type=click.IntRange(1, MOST), metavar="N", help=f"Of all sandboxes so many of the latest; {USUAL}."
)
@server_options
def events(
    sandbox_id: str | None,
    follow: bool,
    since: int | None,
    limit: int | None,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Show what happened to the sandbox ID, or to all of a server: when, what, why, and who asked.

    With --json each event is a line of its own.
    """
    if sandbox_id is None:
        if since is not None:
            raise click.UsageError("--since counts the events of one sandbox: name it.")
        show_news(news(limit or USUAL, url, api_key, follow=follow), as_json=as_json)
        return
    if limit is not None:
        raise click.UsageError("--limit is for the events of all sandboxes; --since for those of one.")
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


def news(limit: int, url: str | None, api_key: str | None, *, follow: bool) -> Iterator[list[NewsEvent]]:
    """The latest; or they, and each that comes, one by one."""
    if not follow:
        yield list_events(limit=limit, url=url, api_key=api_key)
        return
    with follow_events(limit=limit, url=url, api_key=api_key) as stream:
        for event in stream:
            yield [event]


def show_news(found: Iterator[list[NewsEvent]], *, as_json: bool) -> None:
    for some in found:
        if as_json:
            for event in some:
                print_line(event)
        elif some:
            show(to_table(some))
        else:
            print_to_stderr("Nothing has happened yet.")


def followed(sandbox: Sandbox, since: int | None) -> Iterator[SandboxEvent]:
    """The next sandbox of this id has a timeline of its own."""
    with sandbox.follow_events(since) as stream:
        for event in stream:
            yield event
            if event.what == LAST:
                return


def to_table(events: Sequence[SandboxEvent]) -> Table:
    """Of one sandbox by their numbers, of several by whose they are."""
    table = make_table("", "", "", "", has_head=False)
    table.columns[0].min_width = NUMBER_WIDTH
    table.columns[0].justify = "right"
    table.columns[2].min_width = WHAT_WIDTH
    for event in events:
        times = f", {event.count} times" if event.count > 1 else ""
        table.add_row(
            Text(printable(event.sandbox), "bold") if isinstance(event, NewsEvent) else Text(str(event.number), "dim"),
            Text(short_time(event.time), "dim"),
            Text(printable(event.what), STYLES.get(event.what, "")),
            Text.assemble(printable(event.cause), times, (f" ({printable(event.by)})", "dim")),
        )
    return table
