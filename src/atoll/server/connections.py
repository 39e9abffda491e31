"""A client's connection, where Uvicorn's own is not enough."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

DEPARTURE = "atoll.departure"  # the extension of a scope by which an endpoint gets at its client's `Departure`


class ClientConnection(HttpToolsProtocol):
    """Notices a client's departure also while it is not read from."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.departure = Departure()
        self.flow = self._watched_flow = WatchedFlow(transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watched_flow.close()
        super().connection_lost(exc)
        self.departure.happen()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {DEPARTURE: self.departure}  # type: ignore[dict-item]


class Departure:
    """That of a client, and what is to be done then."""

    def __init__(self) -> None:
        self._acts: list[Callable[[], None]] = []
        self._has_happened = False

    @contextmanager
    def calls(self, act: Callable[[], None]) -> Iterator[None]:
        """Call `act` if the client leaves while this lasts, or has left."""
        if self._has_happened:
            act()
        self._acts.append(act)
        try:
            yield
        finally:
            self._acts.remove(act)

    def happen(self) -> None:
        self._has_happened = True
        for act in self._acts:
            act()


def departure_of(scope: Scope) -> Departure:
    departure: Departure = scope["extensions"][DEPARTURE]
    return departure


class WatchedFlow(FlowControl):
    """While reading is paused nobody sees the end of what the client sends: then a watch aborts the connection.

    It is kept once it is there, as a large body is paused again and again. What the client sent before it left is lost,
    which matters to nobody: Uvicorn answers no one who has closed its sending side.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
        self._loop = loop
        self._epoll: select.epoll | None = None
        self._has_hung_up = False

    def pause_reading(self) -> None:
        super().pause_reading()
        if self._has_hung_up:
            self._transport.abort()
        elif self._epoll is None:
            self._epoll = select.epoll(1)
            self._epoll.register(self._transport.get_extra_info("socket").fileno(), select.EPOLLRDHUP)
            self._loop.add_reader(self._epoll.fileno(), self._on_hang_up)

    def _on_hang_up(self) -> None:
        self._has_hung_up = True
        self.close()
        if self.read_paused:
            self._transport.abort()

    def close(self) -> None:
        if self._epoll:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
