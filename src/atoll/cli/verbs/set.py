"""`atoll set`: a sandbox that exists, changed."""

from __future__ import annotations

from typing import Any

import click

from atoll.cli.making import LIMITS, TREATMENT, given_limits, with_options
from atoll.cli.options import env_option, existing_sandbox, id_argument, parse_pair, server_options
from atoll.cli.tables import print_document
from atoll.client_sync.sandbox import Sandbox

NEVER = "never"
TIMES = ("sleep_after", "stop_after", "ttl")


def set_options(verb: Any) -> Any:
    return with_options(
        verb,
        (
            *LIMITS,
            *TREATMENT,
            click.option("--keep-alive/--no-keep-alive", default=None, help="Whether it stays awake by itself."),
            click.option("--label", type=parse_pair, metavar="K=V", multiple=True, help="Give it this label."),
            click.option("--no-label", metavar="K", multiple=True, help="Take this label away."),
            env_option("A variable for all that runs in it from now on."),
            click.option("--no-env", metavar="K", multiple=True, help="Take this variable away."),
        ),
    )


@click.command(short_help="Change a sandbox: its limits, times, labels and variables.")
@id_argument
@set_options
@server_options
def set(sandbox_id: str, url: str | None, api_key: str | None, as_json: bool, **changes: Any) -> None:
    """Change the sandbox ID, which must exist. What is not given stays as it is. Limits of what runs are changed too.

    \b
      atoll set user-123 --memory 4GiB --cpus 2
      atoll set user-123 --stop-after never --label team=blue --no-env TOKEN

    A limit below what is in use is refused. TIME may be `never` for --stop-after and --ttl; --ttl counts from when the
    sandbox was made.
    """
    if not any(value not in (None, ()) for value in changes.values()):
        raise click.UsageError("Nothing is to be changed: give at least one option.")
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        apply(sandbox, **changes)
        if as_json:
            print_document(sandbox.status())


def apply(
    sandbox: Sandbox,
    *,
    label: tuple[tuple[str, str], ...],
    no_label: tuple[str, ...],
    env: tuple[tuple[str, str], ...],
    no_env: tuple[str, ...],
    keep_alive: bool | None,
    sleep_after: str | None,
    stop_after: str | None,
    ttl: str | None,
    **limits: Any,
) -> None:
    """Make the changes; those that may be refused come first."""
    if wanted := given_limits(**limits):
        sandbox.set_limits(wanted)
    if sleep_after is not None:
        sandbox.set_sleep_after(sleep_after)
    if keep_alive is not None:
        sandbox.set_keep_alive(keep_alive)
    if stop_after is not None:
        sandbox.set_stop_after(None if stop_after == NEVER else stop_after)
    if label or no_label:
        has = {name: value for name, value in sandbox.status().labels.items() if name not in no_label}
        sandbox.set_labels(has | dict(label))
    if env or no_env:
        sandbox.set_env_vars(dict.fromkeys(no_env) | dict(env))
    if ttl is not None:  # last, as it may be the end
        sandbox.set_ttl(None if ttl == NEVER else ttl)
