"""`atoll cp`: files and directories, into a sandbox and out of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path

import click
import msgspec

from atoll.cli.live_command import STDIN, STDOUT, write_all
from atoll.cli.options import complete_id, existing_sandbox, server_options
from atoll.cli.problems import print_to_stderr
from atoll.cli.tables import print_document
from atoll.client_sync.progress import Bar, OnProgress, is_watched
from atoll.client_sync.sandbox import Sandbox, get_sandbox
from atoll.protocol.errors import AtollError
from atoll.protocol.ids import parse_sandbox_id
from atoll.protocol.limits import parse_bounds
from atoll.protocol.names import to_shown
from atoll.protocol.printable import printable
from atoll.protocol.transfer_bounds import MAX_DEPTH, MAX_ENTRIES, Bounds
from atoll.values.files import LeftOutWarning

STREAM = "-"
CHUNK = 1024 * 1024


class Copied(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON of a copy. `bytes` is what travelled: of a file without its holes, of a directory its archive."""

    source: str
    target: str
    bytes: int
    warnings: list[str] = []


class AllCopied(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON where several were copied."""

    copied: list[Copied]


class Remote(msgspec.Struct, frozen=True):
    """ID:PATH"""

    sandbox_id: str
    path: str


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes that every copy of a run has."""

    bounds: Bounds
    exclude: tuple[str, ...]
    exclude_from: str | None


@click.command(short_help="Copy files into a sandbox, or out of it.")
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, shell_complete=complete_id)
@click.argument("target", metavar="DST", shell_complete=complete_id)
@click.option("-x", "--exclude", metavar="RULE", multiple=True, help="Leave out what this fits, as in .gitignore.")
@click.option("--exclude-from", metavar="FILE", help="A file of such rules on this machine, such as .gitignore.")
@click.option("-r", "--recursive", is_flag=True, expose_value=False, help="For habit: directories are copied anyway.")
@click.option("--max-bytes", metavar="SIZE", default="32GiB", show_default=True, help="Of what is copied out, or none.")
@click.option("--max-entries", metavar="N", default=str(MAX_ENTRIES), show_default=True, help="The same for entries.")
@click.option("--max-depth", metavar="N", default=str(MAX_DEPTH), show_default=True, help="The same for directories.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@server_options
def cp(
    sources: tuple[str, ...],
    target: str,
    exclude: tuple[str, ...],
    exclude_from: str | None,
    max_bytes: str,
    max_entries: str,
    max_depth: str,
    quiet: bool,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Copy files and directories. One of SRC and DST is ID:PATH, in the sandbox ID; the other is on this machine.

    \b
      atoll cp data.csv src user-123:/workspace/
      atoll cp -x node_modules -x '*.log' app user-123:
      atoll cp user-123:/workspace/results ./results
      tar c src | atoll cp - user-123:src.tar
      atoll cp user-123:/etc/os-release -

    A directory is copied with all that is in it but sockets, FIFOs and devices, and out of a sandbox also without links
    that lead out of the directory; they are named. What exists at DST and is a directory takes SRC in, as with cp;
    several need such a one. A relative PATH counts from /workspace, or wherever the sandbox's shell is. A local name
    with a colon in it is written with ./ before it.
    """
    wanted = Wanted(bounds=parse_bounds(max_bytes, max_entries, max_depth), exclude=exclude, exclude_from=exclude_from)
    if len(sources) > 1:
        check_takes_several(target, url, api_key)
    done = [
        copy(source, target, wanted, url, api_key, as_json=as_json, is_quiet=quiet or as_json) for source in sources
    ]
    if as_json:
        print_document(done[0] if len(done) == 1 else AllCopied(copied=done))


def check_takes_several(target: str, url: str | None, api_key: str | None) -> None:
    far = parse_remote(target)
    if far is None:
        is_directory = Path(target).is_dir()
    else:
        with existing_sandbox(far.sandbox_id, url, api_key) as sandbox:
            is_directory = is_remote_directory(sandbox, far.path)
    if not is_directory:
        raise click.UsageError(f"{printable(target)} is no directory, and takes only one SRC.")


def copy(
    source: str, target: str, wanted: Wanted, url: str | None, api_key: str | None, *, as_json: bool, is_quiet: bool
) -> Copied:
    far_source, far_target = parse_remote(source), parse_remote(target)
    if (far_source is None) == (far_target is None):
        raise click.UsageError("One of SRC and DST must be ID:PATH, and only one.")
    if as_json and target == STREAM:
        raise click.UsageError("Standard output cannot take both the file and --json.")
    far = far_source or far_target
    assert far
    find = existing_sandbox if far_source else get_sandbox
    sandbox = find(far.sandbox_id, url=url, api_key=api_key)
    counter = Counter()
    is_bar_wanted = not is_quiet and STREAM not in (source, target)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", LeftOutWarning)
        with sandbox, progress_bar(far, counter, is_wanted=is_bar_wanted) as on_progress:
            if far_source:
                copy_out(sandbox, far_source.path, target, wanted, on_progress)
            else:
                copy_in(sandbox, source, far.path, wanted, on_progress)
    told = [str(warning.message) for warning in warned if warning.category is LeftOutWarning]
    for line in () if as_json else told:
        print_to_stderr(f"atoll: {printable(line)}")
    return Copied(source=_shown(source), target=_shown(target), bytes=counter.done, warnings=told)


def parse_remote(word: str) -> Remote | None:
    """None for a local name, also one with a colon that cannot be an id's."""
    before, colon, path = word.partition(":")
    if not colon or "/" in before:
        return None
    with suppress(AtollError):
        return Remote(parse_sandbox_id(before), path or ".")
    raise click.UsageError(
        f"{printable(before)!r} is not a sandbox's id. A local name with a colon needs ./ before it."
    )


def copy_in(sandbox: Sandbox, source: str, target: str, wanted: Wanted, on_progress: OnProgress) -> None:
    if source == STREAM:
        with open(STDIN, "rb", closefd=False) as stdin:
            sandbox.write_file(target, counted(stdin, on_progress))
        return
    if is_remote_directory(sandbox, target):
        target = f"{target.rstrip('/')}/"
        if Path(source).is_dir() and Path(source).name != "..":  # what is in "..", "." or "/" goes there by itself
            target += Path(source).name
    sandbox.upload(source, target, exclude=wanted.exclude, exclude_from=wanted.exclude_from, on_progress=on_progress)


def copy_out(sandbox: Sandbox, source: str, target: str, wanted: Wanted, on_progress: OnProgress) -> None:
    if target == STREAM:
        with sandbox.read_file_stream(source) as stream:
            for chunk in stream:
                write_all(STDOUT, chunk)
        return
    name = source.rstrip("/").rpartition("/")[2]
    if Path(target).is_dir() and name not in ("", ".", "..") and is_remote_directory(sandbox, source):
        target = str(Path(target) / name)
    sandbox.download(
        source,
        target,
        max_bytes=wanted.bounds.max_bytes,
        max_entries=wanted.bounds.max_entries,
        max_depth=wanted.bounds.max_depth,
        exclude=wanted.exclude,
        exclude_from=wanted.exclude_from,
        on_progress=on_progress,
    )


def is_remote_directory(sandbox: Sandbox, path: str) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sandbox.stat(path).is_directory
    return False


class Counter:
    def __init__(self) -> None:
        self.done = 0


@contextmanager
def progress_bar(far: Remote, counter: Counter, *, is_wanted: bool) -> Iterator[OnProgress]:
    """Shown where a person watches, and gone when it is done."""

    def count(done: int, total: int | None) -> None:
        counter.done = done

    if not is_wanted or not is_watched():
        yield count
        return
    bar = Bar(far.path, after=0)

    def show(done: int, total: int | None) -> None:
        count(done, total)
        bar.show(done, total)

    try:
        yield show
    finally:
        bar.close()


def counted(file: BufferedIOBase, on_progress: OnProgress) -> Iterator[bytes]:
    done = 0
    while piece := file.read1(CHUNK):
        yield piece
        done += len(piece)
        on_progress(done, None)


def _shown(word: str) -> str:
    return to_shown(os.fsencode(word))[0]
