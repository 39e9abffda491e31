"""`atoll connections`: what a sandbox tried to reach."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from atoll.cli.options import existing_sandbox, id_argument, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_line, show
from atoll.cli.text import short_time
from atoll.protocol.network import Connection, Verdict
from atoll.protocol.printable import printable

STYLES = {Verdict.ALLOWED: "green", Verdict.DENIED: "red", Verdict.FAILED: "yellow"}
WIDEST_VERDICT = max(map(len, Verdict))


@click.command(short_help="Show what a sandbox tried to reach.")
@id_argument
@click.option("-f", "--follow", is_flag=True, help="Go on as connections begin, change and end.")
@server_options
def connections(sandbox_id: str, follow: bool, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Show what the sandbox ID tried to reach: when, whom, whether it was allowed, by which rule, and how many bytes.

    With --json each is a line of its own; with --follow one that changes comes again, under its number.
    """
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        if follow:
            with sandbox.follow_connections() as stream:
                for found in stream:
                    print_line(found) if as_json else show(to_table([found]))
            return
        listed = sandbox.connections()
    if as_json:
        for found in listed:
            print_line(found)
    elif listed:
        show(to_table(listed))
    else:
        print_to_stderr("It has tried to reach nobody.")


def to_table(listed: list[Connection]) -> Table:
    table = make_table("", "", "", "", "", has_head=False)
    table.columns[2].min_width = WIDEST_VERDICT
    for one in listed:
        times = f", {one.count} times" if one.count > 1 else ""
        table.add_row(
            Text(str(one.number), "dim"),
            Text(short_time(one.time), "dim"),
            Text(one.verdict.value, STYLES[one.verdict]),
            place_of(one),
            Text.assemble(printable(why(one)), times, (traffic(one), "dim")),
        )
    return table


def place_of(one: Connection) -> str:
    host = one.name or one.address
    beside = f" ({one.address})" if one.name and one.address else ""
    return printable(f"{host}:{one.port}{beside}" if one.port else host)


def why(one: Connection) -> str:
    return ": ".join(filter(None, (one.rule, one.detail)))


def traffic(one: Connection) -> str:
    if one.verdict is not Verdict.ALLOWED:
        return ""
    return f" {one.sent} B out, {one.received} B in{'' if one.ended else ', open'}"
