"""The front of all previews: where visitors connect, who of them may, and what becomes of those that do not go on.

It listens from the first port that is exposed, and then whenever a server begins. The port it listens on is part of
every URL, so the one that was found is kept in the state directory.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from atoll.preview.address import PreviewPlace
from atoll.preview.connection import PreviewConnection
from atoll.preview.door import Door
from atoll.preview.exposing import are_exposed
from atoll.preview.settings import DEFAULT_PORT, PreviewSettings
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.supervisor.descriptors import is_reserved

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.supervisor.roster import Roster

KEPT_PORT = "preview.port"
USUAL_PORTS = {"http": 80, "https": 443}
MAX_CONNECTIONS = 1_024
MAX_OF_A_SANDBOX = 512
LOOK_SECONDS = 0.5
BACKLOG = 512

logger = logging.getLogger("atoll.preview")


class Previews:
    """The previews of one server. Leaving the block ends every connection."""

    def __init__(self, roster: Roster, settings: PreviewSettings, state: Path) -> None:
        self.door = Door(roster)
        self._roster = roster
        self._settings = settings
        self._kept_port = state / KEPT_PORT
        self._connections: dict[PreviewConnection, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None
        self._listening = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Previews:
        if self._settings.port is not None or are_exposed(self._roster.records()):
            await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._server.close()
        for connection in list(self._connections):
            await connection.ended()
        if self._watcher:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    @property
    def is_needed(self) -> bool:
        """Whether somebody may come: an address that leads nowhere as its server has left would be none."""
        return self._server is not None and are_exposed(self._roster.records())

    async def listen(self) -> PreviewPlace:
        """Where previews are. Twice is fine."""
        async with self._listening:
            if self._server is None:
                self._server = await self._listen()
                self.place = _place(self._settings, _port_of(self._server))
                self._watcher = asyncio.create_task(self._watch(), name="watch connections of previews")
                logger.info("previews are at %s, below %s", _name(self._server), self.place.authority)
            return self.place

    def add(self, connection: PreviewConnection) -> None:
        if not self._has_room(connection):
            connection.abort()
            return
        self._connections[connection] = None

    def discard(self, connection: PreviewConnection) -> None:
        self._connections.pop(connection, None)

    def recheck(self) -> None:
        """End connections that came by an address which leads nowhere any more."""
        for connection in list(self._connections):
            if connection.address and not self.door.find(connection.address):
                connection.abort()

    def has_room_for(self, sandbox: str) -> bool:
        """Whether one more connection may go there. One address that is busy keeps nobody from the others."""
        return sum(one.sandbox == sandbox for one in self._connections) < MAX_OF_A_SANDBOX

    def _has_room(self, connection: PreviewConnection) -> bool:
        """Whether there is room for one more. The oldest on which nothing is asked makes some."""
        peer = connection.transport.get_extra_info("socket")
        if len(self._connections) < MAX_CONNECTIONS and not (peer and is_reserved(peer.fileno())):
            return True
        idle = next((one for one in self._connections if one.is_idle), None)
        if idle:
            self.discard(idle)
            idle.abort()
        return idle is not None

    async def _listen(self) -> asyncio.Server:
        settings = self._settings
        tls = _tls_of(settings)
        if settings.port is not None:
            return await _server_on(self, settings.host, settings.port, tls)
        wanted = self._read_port()
        try:
            server = await _server_on(self, settings.host, wanted or DEFAULT_PORT, tls)
        except AtollError:
            server = await _server_on(self, settings.host, 0, tls)
            if wanted:
                logger.warning("port %d is taken, so all URLs of previews have another from now on", wanted)
        self._keep_port(_port_of(server))
        return server

    def _read_port(self) -> int | None:
        try:
            return int(self._kept_port.read_text()) or None
        except (OSError, ValueError):
            return None

    def _keep_port(self, port: int) -> None:
        try:
            self._kept_port.write_text(f"{port}\n")
        except OSError as cause:
            logger.warning("%s cannot be written, so URLs of previews may change: %s", self._kept_port, cause)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for connection in list(self._connections):
                try:
                    await connection.look(asyncio.get_running_loop().time())
                except Exception as mistake:  # of one, which must not keep the others from being looked at
                    logger.error("a connection of a preview cannot be looked at", exc_info=mistake)
                    connection.abort()


async def _server_on(previews: Previews, host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(lambda: PreviewConnection(previews), host, port, ssl=tls, backlog=BACKLOG)
    except (OSError, OverflowError) as cause:
        raise error(
            ErrorCode.ADDRESS_NOT_USABLE,
            f"{host}:{port} cannot be listened on for previews: {cause}",
            remedy="Choose another with --preview-listen, or end what listens there.",
        ) from cause


def _place(settings: PreviewSettings, port: int) -> PreviewPlace:
    """The place as visitors are told: with the port that is listened on, unless the operator says how they come."""
    scheme, found, authority = settings.domain.rpartition("://")
    if found:
        return PreviewPlace(scheme, authority, settings.by_path)
    scheme = "https" if settings.certificate else "http"
    if ":" not in authority and port != USUAL_PORTS[scheme]:
        authority = f"{authority}:{port}"
    return PreviewPlace(scheme, authority, settings.by_path)


def _tls_of(settings: PreviewSettings) -> ssl.SSLContext | None:
    if settings.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as cause:
        raise error(
            ErrorCode.ADDRESS_NOT_USABLE,
            f"{settings.certificate} cannot be used as a certificate: {cause}",
            remedy="Give a file with the certificate, its chain and its key; or the key with --tls-key.",
        ) from cause
    return context


def _port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def _name(server: asyncio.Server) -> str:
    host, port, *_ = server.sockets[0].getsockname()
    return f"port {port} of {host}"
