"""`atoll rm`: sandboxes destroyed, and lost disks."""

from __future__ import annotations

import click
import msgspec

from atoll.cli.options import ids_argument, server_options
from atoll.cli.tables import print_document
from atoll.client_sync.lost import remove_lost_sandbox
from atoll.client_sync.sandbox import get_sandbox


class Removed(msgspec.Struct, frozen=True):
    """The document that `--json` prints."""

    destroyed: list[str]


@click.command(short_help="Destroy sandboxes.")
@ids_argument
@click.option("--lost", is_flag=True, help="Remove disks that were set aside instead; see `atoll ls --lost`.")
@server_options
def rm(sandbox_ids: tuple[str, ...], lost: bool, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Destroy sandboxes: their processes, files and sessions are gone. Twice is fine."""
    if lost:
        for name in sandbox_ids:
            remove_lost_sandbox(name, url=url, api_key=api_key)
        if as_json:
            print_document(Removed(list(sandbox_ids)))
        return
    sandboxes = [get_sandbox(name, url=url, api_key=api_key) for name in sandbox_ids]  # a bad id destroys nothing
    for sandbox in sandboxes:
        sandbox.destroy()
    if as_json:
        print_document(Removed([sandbox.id for sandbox in sandboxes]))
