"""`atoll kill`: a signal for a background process."""

from __future__ import annotations

import click

from atoll.cli.options import existing_sandbox, id_argument, process_argument, server_options
from atoll.cli.tables import print_document


@click.command(short_help="End a background process, or send it a signal.")
@id_argument
@process_argument
@click.option("-s", "--signal", default="SIGTERM", show_default=True, metavar="SIGNAL", help="By name or number.")
@server_options
def kill(sandbox_id: str, process_id: str, signal: str, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Send a signal to the background process PROC of the sandbox ID, and to all it has started.

    SIGTERM is followed by SIGKILL after five seconds. One that is over already is no error.
    """
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        process = sandbox.kill_process(process_id, signal)
    if as_json:
        print_document(process.info)
