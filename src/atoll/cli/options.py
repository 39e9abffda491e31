"""Options that verbs share: which server, which sandbox, in which form; and the completion of ids."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from atoll.client_sync.plumbing.local_server import STATE_DIRECTORY, LocalServer
from atoll.client_sync.sandbox import Sandbox, get_sandbox, list_sandboxes
from atoll.protocol.errors import AtollError
from atoll.protocol.printable import is_printable

COMPLETION_SECONDS = 1.0

Verb = TypeVar("Verb", bound=Callable[..., Any])


def server_options(verb: Verb) -> Verb:
    """--url, --api-key and --json."""
    url = click.option(
        "--url", metavar="URL", envvar="ATOLL_URL", show_envvar=True, help="The server; this machine's if not given."
    )
    api_key = click.option(
        "--api-key", metavar="KEY", envvar="ATOLL_API_KEY", show_envvar=True, help="The key it asks for."
    )
    return url(api_key(json_option(verb)))


def json_option(verb: Verb) -> Verb:
    return click.option("--json", "as_json", is_flag=True, help="Print for programs; errors too.")(verb)


def state_dir_option(verb: Verb) -> Verb:
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path, readable=False),  # whose it is we say ourselves, and what to do
        default=STATE_DIRECTORY,
        envvar="ATOLL_STATE_DIR",
        show_default=True,
        show_envvar=True,
        help="Where the server keeps its state.",
    )(verb)


def id_argument(verb: Verb) -> Verb:
    return click.argument("sandbox_id", metavar="ID", shell_complete=complete_id)(verb)


def process_argument(verb: Verb) -> Verb:
    return click.argument("process_id", metavar="PROC")(verb)


def existing_sandbox(sandbox_id: str, url: str | None, api_key: str | None) -> Sandbox:
    """For verbs that look at what is in one: the first look shall not make it."""
    sandbox = get_sandbox(sandbox_id, url=url, api_key=api_key)
    sandbox.status()
    return sandbox


def ids_argument(verb: Verb) -> Verb:
    return click.argument("sandbox_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_id)(verb)


def parse_pair(text: str) -> tuple[str, str]:
    """NAME=VALUE"""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE.")
    return name, value


def complete_id(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids that begin like this. Nobody who presses a key waits long for it, or wants a server started."""
    url, api_key = context.params.get("url"), context.params.get("api_key")
    found: list[str] = []

    def ask() -> None:
        with suppress(AtollError, OSError):
            address = url or str(LocalServer.from_environment().address)
            listed = (sandbox.id for sandbox in list_sandboxes(url=address, api_key=api_key))
            found.extend(name for name in listed if is_printable(name))  # a shell shows what it is given as it is

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(COMPLETION_SECONDS)
    given = context.params.get("sandbox_ids") or ()
    return [name for name in found if name.startswith(incomplete) and name not in given]
