"""`atoll serve`: the server, in the foreground."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from atoll import __version__
from atoll.client_sync.plumbing.local_server import (
    RUNTIME_DIRECTORY,
    STATE_DIRECTORY,
    check_installed,
    check_system,
    runtime_of,
)
from atoll.network.ways_out import RESOLV_CONF, ways_out
from atoll.preview.address import domain_of
from atoll.preview.settings import DEFAULT_DOMAIN, DEFAULT_HOST, PreviewSettings
from atoll.preview.settings import DEFAULT_PORT as PREVIEW_PORT
from atoll.protocol.durations import parse_duration
from atoll.protocol.errors import AtollError
from atoll.protocol.limits import MIB
from atoll.server.settings import IDLE_EXIT_SECONDS, Settings
from atoll.supervisor.promised_memory import OVERCOMMIT
from atoll.telemetry.log import AUDIT, opened_log
from atoll.telemetry.log_file import LogFile, Sink, StandardError
from atoll.telemetry.log_lines import LogFormat

DEFAULT_PORT = 7070

logger = logging.getLogger("atoll.server")


class Times(click.FloatRange):
    """How often something may be promised: a number above 0, and a number at all."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is no number.", param, ctx)
        return found


@click.command()
@click.option("--host", help="Listen on this address too, for clients with an API key.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"Listen on this port too; {DEFAULT_PORT} if a host is given."
)
@click.option("--allow-host", multiple=True, help="Another name by which clients may call this server.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, readable=False),  # whose it is we say ourselves, and what to do
    default=STATE_DIRECTORY,
    envvar="ATOLL_STATE_DIR",
    show_default=True,
    show_envvar=True,
    help="Where sandboxes are kept; one server at a time uses it.",
)
@click.option(
    "--runtime-dir",
    type=click.Path(path_type=Path, readable=False),
    envvar="ATOLL_RUNTIME_DIR",
    show_default=f"{RUNTIME_DIRECTORY}; for another state directory one of its own",
    show_envvar=True,
    help="Where its sockets are.",
)
@click.option(
    "--disk-overcommit",
    type=Times(min=0, min_open=True),
    envvar="ATOLL_DISK_OVERCOMMIT",
    show_default="as often as what is in use allows",
    show_envvar=True,
    help="How often the pool may be promised to disks; with 1 all of it is allocated now, and every byte is certain.",
)
@click.option(
    "--memory-overcommit",
    type=Times(min=0, min_open=True),
    default=OVERCOMMIT,
    show_default=True,
    envvar="ATOLL_MEMORY_OVERCOMMIT",
    show_envvar=True,
    help="How often the machine's memory may be promised to sandboxes that run.",
)
@click.option(
    "--keep-file-max",
    is_flag=True,
    envvar="ATOLL_KEEP_FILE_MAX",
    show_envvar=True,
    help="Leave fs.file-max as it is. Where it is low, one sandbox can open all the files that the machine may.",
)
@click.option(
    "--keep-lost",
    default="30d",
    show_default=True,
    metavar="TIME",
    help="Remove disks that were set aside, and that nobody asked for, after so long; see `atoll ls --lost`.",
)
@click.option(
    "--count-public",
    multiple=True,
    metavar="RANGE",
    envvar="ATOLL_COUNT_PUBLIC",
    show_envvar=True,
    help="Addresses that sandboxes may reach as if they were on the public internet.",
)
@click.option(
    "--refuse-range",
    multiple=True,
    metavar="RANGE",
    envvar="ATOLL_REFUSE_RANGE",
    show_envvar=True,
    help="Addresses that no sandbox reaches, whatever its policy says.",
)
@click.option(
    "--dns-server",
    multiple=True,
    metavar="ADDRESS",
    envvar="ATOLL_DNS_SERVER",
    show_envvar=True,
    show_default="those of /etc/resolv.conf",
    help="Whom to ask where names lead.",
)
@click.option(
    "--proxy",
    metavar="URL",
    envvar="ATOLL_PROXY",
    show_envvar=True,
    show_default="HTTPS_PROXY or ALL_PROXY, and NO_PROXY",
    help="An HTTP or SOCKS proxy through which sandboxes reach others.",
)
@click.option(
    "--preview-listen",
    metavar="[HOST:]PORT",
    envvar="ATOLL_PREVIEW_LISTEN",
    show_envvar=True,
    help=f"Serve previews here; if not given, from the first that is exposed on at {DEFAULT_HOST}:{PREVIEW_PORT}, or "
    "a port that is free.",
)
@click.option(
    "--preview-domain",
    metavar="[SCHEME://]DOMAIN[:PORT]",
    default=DEFAULT_DOMAIN,
    show_default=True,
    envvar="ATOLL_PREVIEW_DOMAIN",
    show_envvar=True,
    help="Previews are names below this one. Scheme and port are those that visitors use, if a proxy is in between.",
)
@click.option(
    "--preview-paths",
    is_flag=True,
    envvar="ATOLL_PREVIEW_PATHS",
    show_envvar=True,
    help="Previews are paths of the domain, where it has no names below it. Then all of them are of one origin.",
)
@click.option(
    "--tls-cert", type=click.Path(path_type=Path, dir_okay=False), help="Serve previews over TLS with this certificate."
)
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), help="Its key, if that is another file.")
@click.option("--embedded", is_flag=True, hidden=True, help="End when nobody needs the server any more.")
@click.option("--idle-exit", type=float, default=IDLE_EXIT_SECONDS, hidden=True)
@click.option(
    "--log-format",
    type=click.Choice([format.value for format in LogFormat]),
    default=LogFormat.TEXT.value,
    show_default=True,
    help="How each entry of the log is written.",
)
@click.option(
    "--log-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the log goes instead of standard error; SIGHUP has it opened anew.",
)
@click.option(
    "--log-size", type=click.IntRange(1), default=10, metavar="MIB", help="A file of so many MiB is full; 10."
)
@click.option(
    "--log-files", type=click.IntRange(0, 1000), default=5, metavar="N", help="So many full ones are kept; 5."
)
@click.option("--access-log", is_flag=True, help="Have a line in the log for every request: who, what, how long.")
@click.option(
    "--audit-log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file for every change and everything that was refused, as JSON: who, what, of which sandbox.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --log-format json; errors too.")
def serve(
    host: str | None,
    port: int | None,
    allow_host: tuple[str, ...],
    state_dir: Path,
    runtime_dir: Path | None,
    disk_overcommit: float | None,
    memory_overcommit: float,
    keep_file_max: bool,
    keep_lost: str,
    count_public: tuple[str, ...],
    refuse_range: tuple[str, ...],
    dns_server: tuple[str, ...],
    proxy: str | None,
    preview_listen: str | None,
    preview_domain: str,
    preview_paths: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    embedded: bool,
    idle_exit: float,
    log_format: str,
    log_file: Path | None,
    log_size: int,
    log_files: int,
    access_log: bool,
    audit_log: Path | None,
    as_json: bool,
) -> None:
    """Run the server in the foreground.

    It listens on a Unix socket in the runtime directory; with --host or --port also on TCP, where every request needs
    an API key (see `atoll key create`). Its log goes to standard error, or to a file that is put away when it is full:
    a line for each sandbox that is made, changes its state or is destroyed, for what is refused, and for what fails.
    It never has a command, a variable or a key in it.
    """
    check_system("`atoll serve`")
    check_installed()
    if host is not None and port is None:
        port = DEFAULT_PORT
    state = state_dir.absolute()
    settings = Settings(
        state=state,
        runtime=runtime_dir.absolute() if runtime_dir else runtime_of(state),
        host=host,
        port=port,
        is_embedded=embedded,
        idle_exit=idle_exit,
        allowed_hosts=allow_host,
        disk_overcommit=disk_overcommit,
        memory_overcommit=memory_overcommit,
        keep_file_max=keep_file_max,
        keep_lost=parse_duration(keep_lost, "--keep-lost"),
        upstream=ways_out(
            read_resolv_conf(),
            os.environ,
            servers=dns_server,
            counted=count_public,
            refused=refuse_range,
            proxy=proxy,
        ),
        has_access_log=access_log,
        has_audit_log=audit_log is not None,
        previews=preview_settings(preview_listen, preview_domain, preview_paths, tls_cert, tls_key),
    )
    sink: Sink = StandardError()
    if log_file is not None:
        sink = LogFile(log_file.absolute(), log_size * MIB, log_files, takes_stderr=embedded)
    files = [sink] if isinstance(sink, LogFile) else []
    with ExitStack() as logs:
        logs.enter_context(opened_log(sink, LogFormat.JSON if as_json else LogFormat(log_format)))
        if audit_log is not None:
            files.append(LogFile(audit_log.absolute(), log_size * MIB, log_files))
            logs.enter_context(opened_log(files[-1], LogFormat.JSON, AUDIT))
        if files and sys.platform != "win32":
            signal.signal(signal.SIGHUP, lambda *_: reopen(files))
        run_logged(settings, has_file=log_file is not None)


def reopen(files: list[LogFile]) -> None:
    for file in files:
        file.reopen()


def preview_settings(
    listen: str | None, domain: str, by_path: bool, certificate: Path | None, key: Path | None
) -> PreviewSettings:
    host, _, port = (listen or "").rpartition(":")
    if listen is not None and not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise click.BadParameter(f"{listen!r} is not HOST:PORT.", param_hint="--preview-listen")
    if not domain_of(domain.rpartition("://")[2]) or domain.rpartition("://")[0] not in ("", "http", "https"):
        raise click.BadParameter(f"{domain!r} is no domain.", param_hint="--preview-domain")
    return PreviewSettings(
        host=host.strip("[]") or DEFAULT_HOST,
        port=None if listen is None else int(port),
        domain=domain.lower(),
        by_path=by_path,
        certificate=certificate,
        key=key,
    )


def run_logged(settings: Settings, *, has_file: bool) -> None:
    """With its end, and why that came. On standard error that is told anyway, if it is an error with a remedy."""
    if has_file:
        logger.info("atoll %s begins as process %d, on %s", __version__, os.getpid(), settings.state)
    try:
        run_server(settings)
    except AtollError as problem:
        if has_file:
            logger.error("it ends: %s [%s]", problem.message, problem.code)
        raise
    except (SystemExit, KeyboardInterrupt) as end:
        logger.info("it ends, told by %s", signal_of(end))
        raise
    except BaseException:
        logger.exception("it ends, since it failed")
        raise
    logger.info("it ends")


def read_resolv_conf() -> str:
    try:
        return Path(RESOLV_CONF).read_text(errors="replace")
    except OSError:  # a machine that asks nobody
        return ""


def run_server(settings: Settings) -> None:
    """Loaded only now, with all that a server needs and clients may be without."""
    from atoll.server.run import serve as run

    run(settings)


def signal_of(end: BaseException) -> str:
    code = end.code if isinstance(end, SystemExit) else 128 + signal.SIGINT
    return signal.Signals(code - 128).name if isinstance(code, int) and code > 128 else f"exit code {code}"
