"""`atoll create`: a sandbox, made with options."""

from __future__ import annotations

import click

from atoll.cli.making import Making, making_options
from atoll.cli.options import env_option, id_argument, server_options
from atoll.cli.preparations import telling_preparations
from atoll.cli.tables import print_document
from atoll.client_sync.sandbox import get_sandbox


@click.command(short_help="Make a sandbox, with options.")
@id_argument
@making_options
@env_option("A variable for all that runs in it.")
@server_options
def create(
    sandbox_id: str,
    making: Making,
    env: tuple[tuple[str, str], ...],
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Make the sandbox ID, and print its id. Most verbs make one when they need it; this one says how.

    \b
      atoll create user-123 --memory 512MiB --label team=red --ttl 2d
      atoll create db --size standard-1 --keep-alive -e PGDATA=/workspace/db

    One that exists keeps what it has: options that differ are told, or with --strict are an error. `atoll set` changes
    them.
    """
    with (
        telling_preparations(url, api_key),
        get_sandbox(sandbox_id, **making.arguments(url, api_key, env)) as sandbox,
    ):
        sandbox.wake()
        if as_json:
            print_document(sandbox.status())
        else:
            click.echo(sandbox.id)
