"""`atoll sleep`: sandboxes frozen, or stopped, until somebody uses them."""

from __future__ import annotations

import click

from atoll.cli.options import ids_argument, server_options
from atoll.cli.tables import print_document
from atoll.client_sync.sandbox import get_sandbox
from atoll.protocol.sandboxes import SandboxList


@click.command(short_help="Freeze or stop sandboxes until they are used.")
@ids_argument
@click.option("--stop", is_flag=True, help="End all that runs in them; their files are kept.")
@server_options
def sleep(sandbox_ids: tuple[str, ...], stop: bool, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Let sandboxes stand still, memory kept, until the next operation on them.

    One that is in use falls asleep when the last command or stream has ended; with --stop these end at once.
    """
    sandboxes = [get_sandbox(name, url=url, api_key=api_key) for name in sandbox_ids]  # with a bad id none sleeps
    for sandbox in sandboxes:
        sandbox.sleep(stop=stop)
    if as_json:
        print_document(SandboxList(sandboxes=[sandbox.status() for sandbox in sandboxes]))
