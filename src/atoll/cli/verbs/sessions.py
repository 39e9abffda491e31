"""`atoll sessions`: the shells of a sandbox."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.text import Text

from atoll.cli.options import existing_sandbox, id_argument, quiet_option, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_document, print_ids, show
from atoll.cli.text import span
from atoll.protocol.printable import printable
from atoll.protocol.sessions import Sessions


@click.command(short_help="List the sessions of a sandbox.")
@id_argument
@quiet_option
@server_options
def sessions(sandbox_id: str, quiet: bool, url: str | None, api_key: str | None, as_json: bool) -> None:
    """List the sessions of the sandbox ID: its shells, each with a directory and variables of its own.

    `atoll exec ID --session NAME` runs a command in one, and makes it.
    """
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        found = sandbox.list_sessions()
    if as_json:
        print_document(Sessions(sessions=found))
    elif quiet:
        print_ids(session.id for session in found)
    elif found:
        table = make_table("id", "age", "waiting", "directory")
        for session in found:
            age = span(datetime.now(UTC) - session.created_at)
            table.add_row(
                Text(printable(session.id), "bold"), age, str(session.commands_waiting), printable(session.cwd)
            )
        show(table)
    else:
        print_to_stderr("No sessions: nothing has been run in a shell of this sandbox since it was started.")
