"""`atoll key`: API keys, made and taken away in the state directory itself; a server that runs knows at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.text import Text

from atoll.cli.options import json_option, state_dir_option
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_document, show
from atoll.cli.text import local_time
from atoll.client_sync.plumbing.local_server import check_system
from atoll.protocol.errors import ErrorCode, cannot_write, error
from atoll.protocol.printable import is_printable, printable

if TYPE_CHECKING:
    from atoll.store.keys import Keys


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `create --json` prints."""

    id: str
    name: str
    key: str


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `ls --json` prints; `keys` are what the store has of them."""

    keys: list[msgspec.Struct]


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    removed: str


@click.group()
def key() -> None:
    """Make, list and take away API keys.

    A key opens the server of a state directory to clients on TCP. Needs to be run where that directory is, as root.
    """


@key.command()
@click.argument("name")
@state_dir_option
@json_option
def create(name: str, state_dir: Path, as_json: bool) -> None:
    """Make a key. NAME is for you: whose it is, or what for.

    The key is printed once, and not kept.
    """
    if not name or not is_printable(name):
        raise click.BadParameter(f"{name!r} is no name that can be printed.", param_hint="NAME")
    with opened(state_dir) as keys:
        info, secret = asyncio.run(keys.create(name))
    if as_json:
        print_document(NewKey(id=info.id, name=info.name, key=secret))
    else:
        click.echo(secret)
        print_to_stderr("Keep it: it is not shown again. Clients take it from ATOLL_API_KEY.")


@key.command()
@state_dir_option
@json_option
def ls(state_dir: Path, as_json: bool) -> None:
    """List the keys there are, by the beginning of each."""
    with opened(state_dir) as keys:
        found = asyncio.run(keys.list())
    if as_json:
        print_document(KeyList(keys=[*found]))
    elif found:
        table = make_table("id", "name", "created")
        for info in found:
            table.add_row(Text(printable(info.id), "bold"), printable(info.name), local_time(info.created_at))
        show(table)
    else:
        print_to_stderr("No keys. `atoll key create NAME` makes one.")


@key.command()
@click.argument("key_id", metavar="ID")
@state_dir_option
@json_option
def rm(key_id: str, state_dir: Path, as_json: bool) -> None:
    """Take a key away. Whoever has it is not let in any more."""
    with opened(state_dir) as keys:
        # Unlike a sandbox that is gone already: whoever mistypes an id must not believe that its key is.
        if not asyncio.run(keys.delete(key_id)):
            remedy = "`atoll key ls` shows those there are."
            raise error(ErrorCode.KEY_NOT_FOUND, f"there is no key {key_id!r:.100}", remedy=remedy)
    if as_json:
        print_document(Removed(removed=key_id))


@contextmanager
def opened(state: Path) -> Iterator[Keys]:
    check_system("`atoll key`")
    from atoll.store.choose import open_store  # where the server is, and nowhere else
    from atoll.store.keys import Keys

    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as cause:
        raise cannot_write(str(state), cause) from cause
    with closing(open_store(state)) as store:
        yield Keys(store.keys)
