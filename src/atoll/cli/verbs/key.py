"""`atoll key`: API keys, made and taken away in the state directory itself; a server that runs knows at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.text import Text

from atoll.cli.options import json_option, parse_pair, state_dir_option
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_document, show
from atoll.cli.text import day, pairs, short_time
from atoll.client_sync.plumbing.local_server import check_system
from atoll.protocol.durations import parse_duration
from atoll.protocol.errors import ErrorCode, cannot_write, error
from atoll.protocol.printable import is_printable, printable
from atoll.protocol.sandboxes import check_labels

if TYPE_CHECKING:
    from atoll.store.keys import Keys, KeyScope


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
@click.option("--id", "patterns", metavar="PATTERN", multiple=True, help="Only for sandboxes of such ids: 'user-*'.")
@click.option("--label", type=parse_pair, metavar="K=V", multiple=True, help="Only for sandboxes with this label.")
@click.option("--read-only", is_flag=True, help="Only to look: it makes nothing and changes nothing.")
@click.option("--expires", metavar="TIME", help="It is good for so long: 12h, 30d.")
@state_dir_option
@json_option
def create(
    name: str,
    patterns: tuple[str, ...],
    label: tuple[tuple[str, str], ...],
    read_only: bool,
    expires: str | None,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Make a key. NAME is for you: whose it is, or what for. It is on timelines and in logs beside what was done.

    \b
      atoll key create laptop
      atoll key create team-red --id 'red-*' --id shared --expires 30d
      atoll key create dashboard --label team=red --read-only

    A key for some sandboxes sees no others; what is made with one for a label has that label, and keeps it. Such a key
    is not for what is about the whole server, such as its metrics. The key is printed once, and not kept.
    """
    if not name or not is_printable(name):
        raise click.BadParameter(f"{name!r} is no name that can be printed.", param_hint="NAME")
    good_for = None if expires is None else parse_duration(expires, "--expires")
    labels = check_labels(dict(label))
    with opened(state_dir) as keys:
        from atoll.store.keys import KeyScope, check_pattern

        scope = KeyScope(patterns=tuple(map(check_pattern, patterns)), labels=labels, reads_only=read_only)
        until = None if good_for is None else datetime.now(UTC) + timedelta(seconds=good_for)
        info, secret = asyncio.run(keys.create(name, scope, expires_at=until))
    if as_json:
        print_document(NewKey(id=info.id, name=info.name, key=secret))
    else:
        click.echo(secret)
        print_to_stderr("Keep it: it is not shown again. Clients take it from ATOLL_API_KEY.")


@key.command()
@state_dir_option
@json_option
def ls(state_dir: Path, as_json: bool) -> None:
    """List the keys there are, by the beginning of each: what for, until when, and when each was used last."""
    with opened(state_dir) as keys:
        found = asyncio.run(keys.list())
    if as_json:
        print_document(KeyList(keys=[*found]))
    elif found:
        table = make_table("id", "name", "created", "last used", "expires", "for")
        for info in found:
            table.add_row(
                Text(printable(info.id), "bold"),
                printable(info.name),
                day(info.created_at),
                short_time(info.last_used) if info.last_used else "-",
                Text(day(info.expires_at), "red" if info.has_expired else "") if info.expires_at else "never",
                in_words(info.scope),
            )
        show(table)
    else:
        print_to_stderr("No keys. `atoll key create NAME` makes one.")


def in_words(scope: KeyScope) -> str:
    what = [*map(printable, scope.patterns), *([pairs(scope.labels)] if scope.labels else [])]
    return f"{', '.join(what) or 'everything'}{', to read' if scope.reads_only else ''}"


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
