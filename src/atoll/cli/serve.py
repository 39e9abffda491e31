"""`atoll serve`: the server, in the foreground."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import msgspec

from atoll.cli.options import json_option
from atoll.client_sync.local_server import runtime_of
from atoll.protocol.durations import parse_duration
from atoll.server.run import serve as run_server
from atoll.server.settings import IDLE_EXIT_SECONDS, Settings
from atoll.supervisor.machine import DEFAULT_RUNTIME, DEFAULT_STATE

DEFAULT_PORT = 7070


@click.command()
@click.option("--host", help="Listen on this address too, for clients with an API key.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"Listen on this port too; {DEFAULT_PORT} if a host is given."
)
@click.option("--allow-host", multiple=True, help="Another name by which clients may call this server.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, readable=False),  # whose it is we say ourselves, and what to do
    default=DEFAULT_STATE,
    envvar="ATOLL_STATE_DIR",
    show_default=True,
    show_envvar=True,
    help="Where sandboxes are kept; one server at a time uses it.",
)
@click.option(
    "--runtime-dir",
    type=click.Path(path_type=Path),
    envvar="ATOLL_RUNTIME_DIR",
    show_default=f"{DEFAULT_RUNTIME}; for another state directory one of its own",
    show_envvar=True,
    help="Where its sockets are.",
)
@click.option(
    "--disk-overcommit",
    type=click.FloatRange(min=0, min_open=True),
    envvar="ATOLL_DISK_OVERCOMMIT",
    show_default="as often as what is in use allows",
    show_envvar=True,
    help="How often the pool may be promised to disks; with 1 all of it is allocated now, and every byte is certain.",
)
@click.option(
    "--keep-lost",
    default="30d",
    show_default=True,
    metavar="TIME",
    help="Remove disks that were set aside, and that nobody asked for, after so long; see `atoll ls --lost`.",
)
@click.option("--embedded", is_flag=True, hidden=True, help="End when nobody needs the server any more.")
@click.option("--idle-exit", type=float, default=IDLE_EXIT_SECONDS, hidden=True)
@json_option
def serve(
    host: str | None,
    port: int | None,
    allow_host: tuple[str, ...],
    state_dir: Path,
    runtime_dir: Path | None,
    disk_overcommit: float | None,
    keep_lost: str,
    embedded: bool,
    idle_exit: float,
    as_json: bool,
) -> None:
    """Run the server in the foreground.

    It listens on a Unix socket in the runtime directory; with --host or --port also on TCP, where every request needs
    an API key (see `atoll key create`). Its log goes to standard error; with --json each entry is a document.
    """
    open_log(as_json=as_json)
    if host is not None and port is None:
        port = DEFAULT_PORT
    state = state_dir.absolute()
    run_server(
        Settings(
            state=state,
            runtime=runtime_dir.absolute() if runtime_dir else runtime_of(state),
            host=host,
            port=port,
            is_embedded=embedded,
            idle_exit=idle_exit,
            allowed_hosts=allow_host,
            disk_overcommit=disk_overcommit,
            keep_lost=parse_duration(keep_lost, "--keep-lost"),
        )
    )


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of the log, as `--json` prints it."""

    time: float
    level: str
    logger: str
    message: str
    traceback: str = ""


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = LogLine(
            time=record.created,
            level=record.levelname.lower(),
            logger=record.name,
            message=record.getMessage(),
            traceback=self.formatException(record.exc_info) if record.exc_info else "",
        )
        return msgspec.json.encode(line).decode()


def open_log(*, as_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
