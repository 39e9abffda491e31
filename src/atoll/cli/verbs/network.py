"""`atoll network`: what a sandbox may reach."""

from __future__ import annotations

import click

from atoll.cli.options import existing_sandbox, id_argument, server_options
from atoll.cli.tables import print_document
from atoll.protocol.network import NONE, PUBLIC, NetworkPolicy, suggest


@click.group()
def network() -> None:
    """Show and set what a sandbox may reach."""


@network.command(name="show")
@id_argument
@server_options
def show_policy(sandbox_id: str, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Show the policy of the sandbox ID."""
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        put_out(sandbox.status().network, as_json=as_json)


@network.command(name="set")
@id_argument
@click.argument("whole", required=False, type=click.Choice([PUBLIC, NONE]))
@click.option("--allow", multiple=True, metavar="RULE", help="It may reach this; and nobody for whom there is no rule.")
@click.option("--deny", multiple=True, metavar="RULE", help="It may not reach this, whatever is allowed.")
@server_options
def set_policy(
    sandbox_id: str,
    whole: str | None,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Let the sandbox ID reach everything public, nobody ("none"), or what rules say.

    What is open and no longer allowed ends.

    \b
      atoll network set user-123 --allow api.example.com:443 --allow "*.example.org:443"
      atoll network set user-123 public --deny "*.example.com"
      atoll network set user-123 none
    """
    if not (whole or allow or deny) or (whole and allow) or (whole == NONE and deny):
        raise click.UsageError('Give "public", "none", or rules with --allow and --deny.')
    policy = NetworkPolicy(allow=[] if whole == NONE else [*allow] or [PUBLIC], deny=[*deny])
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        sandbox.set_network(policy)
        put_out(sandbox.status().network, as_json=as_json)


@network.command(name="suggest")
@id_argument
@server_options
def suggest_policy(sandbox_id: str, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Print the policy that allows what the sandbox ID has reached, and nothing else.

    Let it do its work with everything public allowed, and ask then: it knows of the last 1,000 connections.
    """
    with existing_sandbox(sandbox_id, url, api_key) as sandbox:
        put_out(suggest(sandbox.connections()), as_json=as_json)


def put_out(policy: NetworkPolicy, *, as_json: bool) -> None:
    if as_json:
        print_document(policy)
        return
    for name, rules in (("allow", policy.allow), ("deny", policy.deny)):
        for rule in rules:
            click.echo(f"{name} {rule}")
    if not policy.allow:
        click.echo("allow nobody")
