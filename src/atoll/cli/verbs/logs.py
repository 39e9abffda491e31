"""`atoll logs`: what a background process wrote, and writes."""

from __future__ import annotations

import click

from atoll.cli.live_command import STDERR, STDOUT, write_all
from atoll.cli.options import existing_sandbox, id_argument, process_argument, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import print_line
from atoll.cli.tail import Tail
from atoll.client_sync.sandbox import Sandbox
from atoll.values.processes import ProcessEvent


@click.command(short_help="Show what a background process wrote.")
@id_argument
@process_argument
@click.option("-f", "--follow", is_flag=True, help="Go on as it writes, until it and all it started have ended.")
@click.option("--since", type=click.IntRange(0), metavar="NUMBER", help="Only what comes after this event of --json.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Begin with its last N lines.")
@server_options
def logs(
    sandbox_id: str,
    process_id: str,
    follow: bool,
    since: int | None,
    tail: int | None,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Show what the background process PROC of the sandbox ID wrote, each stream where it belongs, byte for byte.

    With --json each event is a line of its own. The number of the last one is for --since, to go on from there.
    """
    if tail is not None and as_json:
        raise click.UsageError("--tail counts lines, and --json prints events: --since goes on after one of them.")
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        if tail is not None:
            since = pass_on_tail(sandbox, process_id, since, tail)
            if not follow:
                return
        with sandbox.stream_process_logs(process_id, follow=follow, since=since) as events:
            for event in events:
                if as_json:
                    print_line(event)
                else:
                    pass_on(event)


def pass_on_tail(sandbox: Sandbox, process_id: str, since: int | None, lines: int) -> int | None:
    """Show what has been written so far, in part. Returns the number of the last event, to go on from there."""
    kept = Tail(lines)
    with sandbox.stream_process_logs(process_id, follow=False, since=since) as events:
        for event in events:
            since = event.number
            if event.data_bytes:
                kept.add(event.type, event.data_bytes)
    for stream, line in kept.lines():
        write_all(STDOUT if stream == "stdout" else STDERR, line)
    return since


def pass_on(event: ProcessEvent) -> None:
    if event.type == "dropped":
        print_to_stderr(f"atoll: {event.dropped} bytes of the log are not kept any more")
    elif event.data_bytes:
        write_all(STDOUT if event.type == "stdout" else STDERR, event.data_bytes)
