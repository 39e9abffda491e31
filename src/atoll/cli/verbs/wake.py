"""`atoll wake`: sandboxes that sleep, or were stopped, made ready."""

from __future__ import annotations

import click

from atoll.cli.options import existing_sandbox, ids_argument, server_options
from atoll.cli.tables import print_document
from atoll.protocol.sandboxes import SandboxList


@click.command(short_help="Wake sandboxes that sleep, start those that stopped.")
@ids_argument
@server_options
def wake(sandbox_ids: tuple[str, ...], url: str | None, api_key: str | None, as_json: bool) -> None:
    """Wake sandboxes that sleep, and start those that were stopped.

    Every operation does that by itself; this spares the first one the wait.
    """
    sandboxes = [existing_sandbox(name, url, api_key) for name in sandbox_ids]
    for sandbox in sandboxes:
        sandbox.wake()
    if as_json:
        print_document(SandboxList(sandboxes=[sandbox.status() for sandbox in sandboxes]))
