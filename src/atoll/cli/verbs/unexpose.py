"""`atoll unexpose`: the end of a port's URL."""

from __future__ import annotations

import click

from atoll.cli.options import existing_sandbox, id_argument, server_options
from atoll.cli.tables import print_document
from atoll.protocol.ports import ExposedPorts


@click.command(short_help="Take the URL of a port away.")
@id_argument
@click.argument("port", type=int)
@server_options
def unexpose(sandbox_id: str, port: int, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Take the URL of PORT of the sandbox ID away. Connections that came by it end."""
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        sandbox.unexpose_port(port)
        if as_json:
            print_document(ExposedPorts(ports=sandbox.get_exposed_ports()))
