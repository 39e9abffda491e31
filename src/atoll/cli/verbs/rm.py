"""`atoll rm`: sandboxes destroyed, and lost disks."""

from __future__ import annotations

import sys
from contextlib import suppress

import click
import msgspec

from atoll.cli.options import complete_id, parse_pair, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import print_document
from atoll.client_sync.lost import remove_lost_sandbox
from atoll.client_sync.sandbox import Sandbox, get_sandbox, list_sandboxes
from atoll.protocol.errors import NotFoundError
from atoll.protocol.printable import printable
from atoll.protocol.sandboxes import REMOVED_LATER

SHOWN = 10


class Removed(msgspec.Struct, frozen=True):
    """The document that `--json` prints."""

    destroyed: list[str]


@click.command(short_help="Destroy sandboxes.")
@click.argument("sandbox_ids", metavar="ID...", nargs=-1, shell_complete=complete_id)
@click.option("--all", "is_all", is_flag=True, help="All there are.")
@click.option("--label", type=parse_pair, metavar="K=V", multiple=True, help="All with this label.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, where --all or --label names them.")
@click.option("--lost", is_flag=True, help="Remove disks that were set aside instead; see `atoll ls --lost`.")
@server_options
def rm(
    sandbox_ids: tuple[str, ...],
    is_all: bool,
    label: tuple[tuple[str, str], ...],
    yes: bool,
    lost: bool,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Destroy sandboxes: their processes, files and sessions are gone. Twice is fine.

    \b
      atoll rm user-123 user-124
      atoll rm --label team=red
      atoll rm --all

    Which those are is asked first with --all or --label where a person can answer; --yes says that it is so.
    """
    if bool(sandbox_ids) + is_all + bool(label) != 1:
        raise click.UsageError("Say which: by ID..., with --all, or with --label.")
    if lost and not sandbox_ids:
        raise click.UsageError("Lost disks are named: see `atoll ls --lost`.")
    if lost:
        for name in sandbox_ids:
            remove_lost_sandbox(name, url=url, api_key=api_key)
        if as_json:
            print_document(Removed(list(sandbox_ids)))
        return
    if not sandbox_ids:
        sandbox_ids = tuple(found.id for found in list_sandboxes(labels=dict(label), url=url, api_key=api_key))
        if not yes:
            confirm(sandbox_ids)
    sandboxes = [get_sandbox(name, url=url, api_key=api_key) for name in sandbox_ids]  # a bad id destroys nothing
    for sandbox in sandboxes:
        sandbox.destroy()
        if why := why_removed_later(sandbox):
            told = f"{sandbox.id} is gone, and its disk goes as soon as disks can be written again"
            print_to_stderr(f"{told}: {printable(why)}")
    if as_json:
        print_document(Removed([sandbox.id for sandbox in sandboxes]))


def confirm(ids: tuple[str, ...]) -> None:
    """Ask a person; a script that names all means it."""
    if not ids or sys.stdin is None or not sys.stdin.isatty():
        return
    named = ", ".join(map(printable, ids[:SHOWN])) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")
    click.confirm(f"Destroy {named}?", abort=True, err=True)


def why_removed_later(sandbox: Sandbox) -> str:
    """By its timeline; nothing for one that is gone with its disk, or never was."""
    with suppress(NotFoundError):
        latest = sandbox.events()[-2:]
        return next((event.cause for event in latest if event.what == REMOVED_LATER), "")
    return ""
