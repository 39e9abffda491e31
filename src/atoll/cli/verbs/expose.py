"""`atoll expose`: a port of a sandbox under a URL."""

from __future__ import annotations

import sys

import click

from atoll.cli.options import id_argument, server_options
from atoll.cli.tables import print_document
from atoll.client_sync.sandbox import get_sandbox


@click.command(short_help="Give a port of a sandbox a URL.")
@id_argument
@click.argument("port", type=int)
@click.option("--name", help="What to call it in lists.")
@click.option("--token", help="The part of the URL that nobody should guess; random if not given.")
@click.option(
    "--expires", metavar="TIME", help='After so long the URL leads nowhere, such as "1h"; never if not given.'
)
@click.option("--open", "is_opened", is_flag=True, help="Open it in a browser.")
@server_options
def expose(
    sandbox_id: str,
    port: int,
    name: str | None,
    token: str | None,
    expires: str | None,
    is_opened: bool,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Expose PORT of the sandbox ID, and print the URL under which it is reached from now on.

    Whoever has the URL may come in. It stays the same until `atoll unexpose ID PORT`, and opening it wakes the sandbox.
    """
    exposed = get_sandbox(sandbox_id, url=url, api_key=api_key).expose_port(
        port, name=name, token=token, expires=expires
    )
    if as_json:
        print_document(exposed)
    else:
        sys.stdout.write(f"{exposed.url}\n")
    if is_opened:
        click.launch(exposed.url)
