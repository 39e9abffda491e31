"""`atoll ps`: the background processes of a sandbox."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from atoll.cli.options import existing_sandbox, id_argument, quiet_option, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_document, print_ids, show
from atoll.cli.text import span
from atoll.protocol.printable import printable
from atoll.protocol.processes import ProcessInfo, ProcessList, ProcessStatus

STYLES = {
    ProcessStatus.STARTING: "yellow",
    ProcessStatus.RUNNING: "green",
    ProcessStatus.COMPLETED: "dim",
    ProcessStatus.FAILED: "red",
    ProcessStatus.KILLED: "dim",
    ProcessStatus.ERROR: "bold red",
}


@click.command(short_help="List the background processes of a sandbox.")
@id_argument
@quiet_option
@server_options
def ps(sandbox_id: str, quiet: bool, url: str | None, api_key: str | None, as_json: bool) -> None:
    """List the background processes of the sandbox ID: those that run, and the latest of those that are over."""
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        found = [process.info for process in sandbox.list_processes()]
    if as_json:
        print_document(ProcessList(processes=found))
    elif quiet:
        print_ids(process.id for process in found)
    elif found:
        show(to_table(found, datetime.now(UTC)))
    else:
        print_to_stderr("No background processes. `atoll start ID -- CMD` starts one.")


def to_table(processes: list[ProcessInfo], now: datetime) -> Table:
    table = make_table("id", "pid", "status", "age", "exit", "restarts", "command")
    for process in processes:
        table.add_row(
            Text(printable(process.id), "bold"),
            str(process.pid),
            Text(process.status.value, STYLES[process.status]),
            span(now - process.start_time),
            "-" if process.exit_code is None else str(process.exit_code),
            str(process.restarts) if process.restart else "-",
            printable(process.command if isinstance(process.command, str) else shlex.join(process.command)),
        )
    return table
