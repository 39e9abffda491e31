"""`atoll files`: the files of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.table import Table
from rich.text import Text

from atoll.cli.live_command import STDOUT, write_all
from atoll.cli.options import existing_sandbox, id_argument, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import make_table, print_document, show
from atoll.cli.text import local_time, short_time, size
from atoll.client_sync.sandbox import get_sandbox
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.files import FileInfo, FileType
from atoll.protocol.printable import printable
from atoll.server.file_bodies import FileCountBody, FileListBody, to_info_body

STYLES = {FileType.DIRECTORY: "bold blue", FileType.SYMLINK: "cyan"}


@click.group()
def files() -> None:
    """List, show and remove files of a sandbox. `atoll cp` copies them.

    A relative PATH counts from /workspace, or wherever the sandbox's shell is.
    """


@files.command()
@id_argument
@click.argument("path", default=".")
@click.option("-r", "--recursive", is_flag=True, help="Also what is in directories.")
@click.option("-a", "--all", "include_hidden", is_flag=True, help="Also names that begin with a dot.")
@server_options
def ls(
    sandbox_id: str,
    path: str,
    recursive: bool,
    include_hidden: bool,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """List what is in a directory of the sandbox ID."""
    sandbox = existing_sandbox(sandbox_id, url, api_key)
    found = sandbox.list_files(path, recursive=recursive, include_hidden=include_hidden)
    if as_json:
        print_document(FileListBody(files=[to_info_body(file) for file in found], count=len(found)))
    elif found:
        show(to_table(found, has_paths=recursive))
    else:
        print_to_stderr("Nothing there." if include_hidden else "Nothing there. -a shows also what is hidden.")


@files.command()
@id_argument
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@server_options
def cat(sandbox_id: str, paths: tuple[str, ...], url: str | None, api_key: str | None, as_json: bool) -> None:
    """Print files, byte for byte."""
    if as_json:
        raise click.UsageError("Files are printed as they are; --json has no place here.")
    sandbox = existing_sandbox(sandbox_id, url, api_key)
    for path in paths:
        with sandbox.read_file_stream(path) as stream:
            for chunk in stream:
                write_all(STDOUT, chunk)


@files.command()
@id_argument
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Also directories, with all that is in them.")
@server_options
def rm(
    sandbox_id: str, paths: tuple[str, ...], recursive: bool, url: str | None, api_key: str | None, as_json: bool
) -> None:
    """Delete files; with -r also directories."""
    sandbox = existing_sandbox(sandbox_id, url, api_key)
    for path in paths:
        with advice(ErrorCode.IS_DIRECTORY, "With -r it is deleted, and all that is in it."):
            sandbox.rm(path, recursive=recursive)
    if as_json:
        print_document(FileCountBody(count=len(paths)))


@files.command()
@id_argument
@click.argument("path")
@click.option("-p", "--parents", is_flag=True, help="Also those on the way; one that is there is fine.")
@server_options
def mkdir(sandbox_id: str, path: str, parents: bool, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Make a directory."""
    with advice(ErrorCode.FILE_NOT_FOUND, "A directory on the way is missing; with -p those are made too."):
        made = get_sandbox(sandbox_id, url=url, api_key=api_key).mkdir(path, recursive=parents)
    if as_json:
        print_document(to_info_body(made))


@files.command(short_help="Show type, size, mode, owner and time of a file.")
@id_argument
@click.argument("path")
@server_options
def stat(sandbox_id: str, path: str, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Show type, size, mode, owner and time of a file; of a link itself, not of what it points to."""
    found = existing_sandbox(sandbox_id, url, api_key).stat(path, follow_symlinks=False)
    if as_json:
        print_document(to_info_body(found))
        return
    table = make_table("", "", has_head=False)
    table.add_row("path", shown(found, has_paths=True))
    table.add_row("type", found.type.value)
    table.add_row("size", f"{found.size} B" if found.size < 1024 else f"{size(found.size)} ({found.size} B)")
    table.add_row("mode", f"{found.mode:04o}")
    table.add_row("owner", f"{found.uid}:{found.gid}")
    table.add_row("modified", local_time(found.modified_at))
    show(table)


@contextmanager
def advice(code: ErrorCode, remedy: str) -> Iterator[None]:
    """Remedies in words of the command line, for errors of the block."""
    try:
        yield
    except AtollError as problem:
        if problem.code is code:
            problem.remedy = remedy
        raise


def to_table(found: list[FileInfo], *, has_paths: bool) -> Table:
    table = make_table("mode", "size", "modified", "name")
    table.columns[1].justify = "right"
    for file in sorted(found, key=lambda file: file.path.split("/")):  # each directory before what is in it
        table.add_row(
            f"{file.mode:04o}",
            size(file.size) if file.type is FileType.FILE else "-",
            Text(short_time(file.modified_at), "dim"),
            shown(file, has_paths=has_paths),
        )
    return table


def shown(file: FileInfo, *, has_paths: bool) -> Text:
    """A name as it is safe to look at, with where a link points to."""
    text = Text(printable(file.path if has_paths else file.name), STYLES.get(file.type, ""))
    if file.target is not None:
        text.append(f" → {printable(file.target)}", "dim")
    return text
