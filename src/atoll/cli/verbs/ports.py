"""`atoll ports`: the exposed ports of a sandbox."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.text import Text

from atoll.cli.options import existing_sandbox, id_argument, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_document, show
from atoll.cli.text import span
from atoll.protocol.ports import ExposedPorts
from atoll.protocol.printable import printable


@click.command(short_help="List the exposed ports of a sandbox.")
@id_argument
@server_options
def ports(sandbox_id: str, url: str | None, api_key: str | None, as_json: bool) -> None:
    """List the exposed ports of the sandbox ID, with the URLs under which they are reached."""
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        found = sandbox.get_exposed_ports()
    if as_json:
        print_document(ExposedPorts(ports=found))
    elif found:
        table = make_table("port", "name", "expires in", "url")
        for exposed in found:
            left = span(exposed.expires_at - datetime.now(UTC)) if exposed.expires_at else ""
            table.add_row(Text(str(exposed.port), "bold"), printable(exposed.name or ""), left, printable(exposed.url))
        show(table)
    else:
        print_to_stderr(f"No ports are exposed. `atoll expose {sandbox_id} PORT` exposes one.")
