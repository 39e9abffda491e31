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
from atoll.protocol.sandboxes import SandboxState

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
    return click.argument("process_id", metavar="PROC", shell_complete=complete_process)(verb)


def env_option(help: str) -> Callable[[Verb], Verb]:
    """-e, --env"""
    return click.option("-e", "--env", type=parse_pair, metavar="K=V", multiple=True, help=help)


def quiet_option(verb: Verb) -> Verb:
    return click.option("-q", "--quiet", is_flag=True, help="Print ids only, one a line.")(verb)


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
    """Ids of sandboxes that begin like this."""
    given = context.params.get("sandbox_ids") or ()
    found = _completed(context, lambda url, key: [sandbox.id for sandbox in list_sandboxes(url=url, api_key=key)])
    return [name for name in found if name.startswith(incomplete) and name not in given]


def complete_process(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of processes of the sandbox that was named before."""
    return _completed_inside(context, incomplete, lambda sandbox: [process.id for process in sandbox.list_processes()])


def complete_session(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _completed_inside(context, incomplete, lambda sandbox: [session.id for session in sandbox.list_sessions()])


def complete_terminal(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _completed_inside(context, incomplete, lambda sandbox: [one.id for one in sandbox.list_terminals()])


def _completed_inside(context: click.Context, incomplete: str, ids: Callable[[Sandbox], list[str]]) -> list[str]:
    """Of a sandbox that is awake: no key that somebody presses wakes or makes one."""
    # Before an option whose value is being written nothing is sorted into parameters yet.
    name = context.params.get("sandbox_id") or next(iter(context.args), None)
    if name is None:
        return []

    def ask(url: str, api_key: str | None) -> list[str]:
        sandbox = get_sandbox(name, url=url, api_key=api_key)
        return ids(sandbox) if sandbox.status().state is SandboxState.RUNNING else []

    return [found for found in _completed(context, ask) if found.startswith(incomplete)]


def _completed(context: click.Context, ask: Callable[[str, str | None], list[str]]) -> list[str]:
    """The answer of a server that runs, if it comes soon: who presses a key waits for nothing else."""
    url, api_key = context.params.get("url"), context.params.get("api_key")
    found: list[str] = []

    def look() -> None:
        with suppress(AtollError, OSError):
            address = url or str(LocalServer.from_environment().address)
            found.extend(name for name in ask(address, api_key) if is_printable(name))  # a shell shows it as it is

    asking = threading.Thread(target=look, daemon=True)
    asking.start()
    asking.join(COMPLETION_SECONDS)
    return found
