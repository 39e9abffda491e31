"""`atoll adopt`: a disk that was set aside, made a sandbox again."""

from __future__ import annotations

import click

from atoll.cli.options import server_options
from atoll.cli.tables import print_document
from atoll.client_sync.lost import adopt_lost_sandbox
from atoll.protocol.printable import printable


@click.command(short_help="Make a lost disk a sandbox again.")
@click.argument("name", metavar="NAME")
@click.option("--as", "sandbox_id", metavar="ID", help="The id it gets; its own if not given.")
@click.option("--image", help="On which image it was made, if the disk does not say.")
@server_options
def adopt(
    name: str, sandbox_id: str | None, image: str | None, url: str | None, api_key: str | None, as_json: bool
) -> None:
    """Make a disk that was set aside a sandbox again, with its files. `atoll ls --lost` lists those disks.

    It is stopped, and started by its first use. If there is a sandbox of its id by now, give it another with --as.
    """
    info = adopt_lost_sandbox(name, sandbox_id, image=image, url=url, api_key=api_key)
    if as_json:
        print_document(info)
    else:
        click.echo(printable(info.id))
