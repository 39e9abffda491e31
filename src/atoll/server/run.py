"""A server's life: open the state directory, listen, serve, end when told to or when nobody needs it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import uvicorn
import uvloop
from msgspec.structs import asdict

from atoll.preview.front import Previews
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.frames import MAX_PAYLOAD
from atoll.server.app import make_app
from atoll.server.connections import ClientConnection, ClientWebSocket
from atoll.server.settings import Settings
from atoll.store.keys import Keys
from atoll.supervisor.descriptors import FEWEST_OPEN_FILES, check_limit
from atoll.supervisor.estate import Inherited
from atoll.supervisor.roster import Roster
from atoll.supervisor.workshop import Workshop
from atoll.telemetry.log_lines import about

KEEP_ALIVE_SECONDS = 3600
GRACEFUL_SECONDS = 5
PING_SECONDS, PONG_SECONDS = 20.0, 60.0  # a WebSocket's peer that does not answer is gone
IDLE_LOOK_SECONDS = 1.0
LAST_CALL_SECONDS = 0.2
KEEP_USES_SECONDS = 60.0
TAKE_OVER_SECONDS, TAKE_OVER_PAUSE_SECONDS = 20.0, 0.02
BACKLOG = 512
MAX_SOCKET_PATH = 107
KEEP_ALIVE_OPTIONS = (  # a client whose machine is gone says nothing: it is asked, and given up after two minutes
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 60),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 15),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 4),
)
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

logger = logging.getLogger("atoll.server")


def serve(settings: Settings) -> None:
    """Until SIGTERM or SIGINT."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    take_enough_files()  # before anything is made
    workshop = await open_workshop(settings)
    if workshop is None:
        logger.info("another server is there, so this one is not needed")
        return
    if is_listened_on(settings.socket):  # before anything in there is taken for ours
        await workshop.close()
        raise occupied(settings.socket)
    raise_file_limit()
    async with (
        workshop,
        Roster(workshop, workshop.store.timeline) as roster,
        Previews(roster, settings.previews, settings.state) as previews,
    ):
        log_inherited(workshop.inherited)
        keys = Keys(workshop.store.keys)
        server = make_server(settings, roster, keys, previews)
        with listening(settings) as sockets:
            logger.info("process %d serves %s", os.getpid(), settings.state)
            logger.info("ready on %s", ", ".join(map(_name, sockets)))
            gc.freeze()  # what was loaded is there for good: looking through it for garbage stops everybody for 3 ms
            watchers = [
                asyncio.create_task(end_when_idle(server, roster, settings, previews), name="watch for idleness"),
                asyncio.create_task(keep_uses(keys), name="note the uses of keys"),
            ]
            try:
                await server.serve(sockets=sockets)
            finally:
                for watcher in watchers:
                    watcher.cancel()
                for failure in await asyncio.gather(*watchers, return_exceptions=True):
                    if isinstance(failure, Exception):
                        logger.error("a watch of the server failed", exc_info=failure)
                with suppress(AtollError):
                    await keys.keep_uses()


async def keep_uses(keys: Keys) -> None:
    """When keys were used, written now and then. What cannot be written is nothing to stop for."""
    while True:
        await asyncio.sleep(KEEP_USES_SECONDS)
        try:
            await keys.keep_uses()
        except AtollError as problem:
            logger.warning("when keys were used could not be noted: %s", problem)


async def open_workshop(settings: Settings) -> Workshop | None:
    """An embedded server is started when there is none to connect to: then one that holds the state is about to end.

    It may also have been about to begin, or have thought better of it: None if it is still there after a while.
    """
    give_up = time.monotonic() + (TAKE_OVER_SECONDS if settings.is_embedded else 0)
    while True:
        try:
            return Workshop(
                settings.state,
                settings.runtime,
                keep_lost=settings.keep_lost,
                disk_overcommit=settings.disk_overcommit,
                memory_overcommit=settings.memory_overcommit,
                keep_file_max=settings.keep_file_max,
                upstream=settings.upstream,
            )
        except AtollError as problem:
            if problem.code != ErrorCode.STATE_DIRECTORY_IN_USE:
                raise
            if time.monotonic() > give_up:
                if settings.is_embedded and is_listened_on(settings.socket):
                    return None
                raise
        await asyncio.sleep(TAKE_OVER_PAUSE_SECONDS)


def log_inherited(found: Inherited) -> None:
    """Log what an earlier server left."""
    counted = ", ".join(f"{len(names)} {what}" for what, names in asdict(found).items() if names)
    if counted:
        logger.info("sandboxes found: %s", counted)
    for name in found.damaged:
        logger.error("sandbox %s: its record is damaged", name, extra=about(sandbox=name))


def take_enough_files() -> None:
    """For the shells of sandboxes too: they begin with the limits that there are now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    check_limit(hard)
    if soft != resource.RLIM_INFINITY and soft < FEWEST_OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEWEST_OPEN_FILES, hard))


def raise_file_limit() -> None:
    """Raise the limit of files: a server holds some for each sandbox and client, and the usual one is for select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def make_server(settings: Settings, roster: Roster, keys: Keys, previews: Previews | None = None) -> uvicorn.Server:
    hosts = (*LOCAL_HOSTS, *settings.allowed_hosts, *([settings.host] if settings.host else []))
    config = uvicorn.Config(
        make_app(
            roster,
            keys,
            hosts,
            has_access_log=settings.has_access_log,
            has_audit_log=settings.has_audit_log,
            previews=previews,
        ),
        http=ClientConnection,
        ws=ClientWebSocket,
        ws_max_size=MAX_PAYLOAD,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        ws_per_message_deflate=False,  # terminals are chatty, and a compressor each costs more than it saves
        lifespan="off",
        access_log=False,
        log_level="error",  # or it notes every WebSocket with its query, and each time that a stranger speaks no HTTP
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nobody asks where a client is, and whoever is on this machine could say anything
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
    return uvicorn.Server(config)


@contextmanager
def listening(settings: Settings) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(listen_on_path(settings.socket)))]
        own = settings.socket.stat()
        stack.callback(unlink_if_own, settings.socket, own)
        stack.callback(unlink_if_own, settings.socket_put_away, own)
        if settings.port is not None:
            sockets.append(stack.enter_context(closing(listen_on_port(settings.host or LOCAL_HOSTS[1], settings.port))))
        yield sockets


def listen_on_path(path: Path) -> socket.socket:
    """A socket that listens. A dead server's at this path is replaced; that of a server of another state is not."""
    if is_listened_on(path):
        raise occupied(path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with short_path(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as cause:
        listener.close()
        raise error(
            ErrorCode.ADDRESS_NOT_USABLE,
            f"{path} cannot be listened on: {cause}",
            remedy="Choose another runtime directory, or remove what is in the way.",
        ) from cause
    return listener


def occupied(path: Path) -> AtollError:
    return error(
        ErrorCode.ADDRESS_NOT_USABLE,
        f"{path} belongs to a server that runs on another state directory",
        remedy="Give this one a directory of its own, with --runtime-dir or ATOLL_RUNTIME_DIR, or end the other.",
        path=str(path),
    )


def unlink_if_own(path: Path, own: os.stat_result) -> None:
    with suppress(FileNotFoundError):
        if os.path.samestat(path.stat(), own):
            path.unlink()


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A socket's path may have so many bytes; through a descriptor of its directory it always fits."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen_on_port(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        for option, value in KEEP_ALIVE_OPTIONS:
            listener.setsockopt(*option, value)  # every connection inherits them
        return listener
    except (OSError, OverflowError) as cause:
        raise error(
            ErrorCode.ADDRESS_NOT_USABLE,
            f"{host}:{port} cannot be listened on: {cause}",
            remedy="Choose another port or host, or end what listens there.",
        ) from cause


def is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            with short_path(path) as address:
                peer.connect(address)
        except OSError:
            return False
        return True


async def end_when_idle(server: uvicorn.Server, roster: Roster, settings: Settings, previews: Previews) -> None:
    """An embedded server leaves when no client came or is connected and no sandbox is awake for a while.

    Its socket goes first: whoever comes then starts another server, which waits for the state directory. Those who
    were quicker are served, and are a reason to stay.
    """
    last_needed, requests = time.monotonic(), 0
    while settings.is_embedded:
        await asyncio.sleep(min(IDLE_LOOK_SECONDS, settings.idle_exit))
        if is_needed(server, roster, previews) or server.server_state.total_requests != requests:
            last_needed, requests = time.monotonic(), server.server_state.total_requests
        elif time.monotonic() - last_needed >= settings.idle_exit:
            move(settings.socket, settings.socket_put_away)
            for _ in range(2):  # if the machine stands still in the one, the other is left for whoever came meanwhile
                await asyncio.sleep(LAST_CALL_SECONDS / 2)
            if not is_needed(server, roster, previews):
                logger.info("nobody needs this server any more")
                server.should_exit = True
                return
            move(settings.socket_put_away, settings.socket)
            logger.info("somebody came at the last moment, so this server stays")


def move(path: Path, target: Path) -> None:
    with suppress(FileNotFoundError):  # somebody tidied up; then nobody finds us, and leaving is all that is left
        path.rename(target)


def is_needed(server: uvicorn.Server, roster: Roster, previews: Previews) -> bool:
    return bool(server.server_state.connections) or roster.is_needed or previews.is_needed


def _name(listener: socket.socket) -> str:
    address = listener.getsockname()
    return address if isinstance(address, str) else f"{address[0]}:{address[1]}"
