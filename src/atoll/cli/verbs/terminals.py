"""`atoll terminals`: the terminals of a sandbox."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import click
from rich.text import Text

from atoll.cli.options import existing_sandbox, id_argument, quiet_option, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_document, print_ids, show
from atoll.cli.text import span
from atoll.protocol.printable import printable
from atoll.protocol.terminals import TerminalList


@click.command(short_help="List the terminals of a sandbox.")
@id_argument
@quiet_option
@server_options
def terminals(sandbox_id: str, quiet: bool, url: str | None, api_key: str | None, as_json: bool) -> None:
    """List the terminals of the sandbox ID that are open. `atoll shell ID --attach TERMINAL` looks at one."""
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        found = sandbox.list_terminals()
    if as_json:
        print_document(TerminalList(terminals=found))
    elif quiet:
        print_ids(info.id for info in found)
    elif found:
        table = make_table("id", "pid", "size", "viewers", "age", "command")
        for info in found:
            table.add_row(
                Text(printable(info.id), "bold"),
                str(info.pid),
                f"{info.cols}x{info.rows}",
                str(info.viewers),
                span(datetime.now(UTC) - info.created_at),
                printable(shlex.join(info.command)),
            )
        show(table)
    else:
        print_to_stderr("No terminals. `atoll shell ID` opens one.")
