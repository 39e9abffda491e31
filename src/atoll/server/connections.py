"""Connections of clients, where Uvicorn's own are not enough.

Rules:
1. Until a request has been let in, its client is anybody. It may make us keep MAX_HEAD bytes, for HEAD_SECONDS.
2. So many connections over TCP, and no more; whoever may use the Unix socket always gets in. Those without a whole head
   are few for each address, and give way (`strangers.py`), so that they keep nobody out.
3. A client's departure is noticed also while it is not read from.
4. What is large is not copied on its way: an endpoint may take the rest of a request's body in the pieces in which it
   came (`Wire.take_body`), and write an answer's in parts (`Wire.write`). And the head of an answer goes out with what
   follows it at once, since each write wakes the client.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from starlette.requests import ClientDisconnect
from starlette.types import Scope

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.server.problems import problem_response
from atoll.server.strangers import PATIENCE_SECONDS, Strangers
from atoll.server.uvicorn_insides import (
    STATUS_LINE,
    FlowControl,
    HttpToolsProtocol,
    RequestResponseCycle,
    WebSocketsSansIOProtocol,
)
from atoll.supervisor.descriptors import is_reserved, no_room

MAX_HEAD = 64 * 1024
HEAD_SECONDS = PATIENCE_SECONDS
MAX_CONNECTIONS = 2_048
MAX_PIPELINED = 16
LAST_PART = 0.25  # of the reserve of descriptors, which no client gets
SILENT_SECONDS = 1.0  # after which who has connected and said nothing may be closed for others
CLOSED_FOR_ROOM = 4  # idle connections, for a new one
MAX_WAITING = 512 * 1024  # bytes of a body that wait for their endpoint before the client has to
DEPARTURE = "atoll.departure"  # the extension of a scope by which an endpoint gets at its client's `Departure`
WIRE = "atoll.wire"  # the one by which it gets at its `Wire`

NOT_HTTP = error(
    ErrorCode.INVALID_REQUEST,
    "this is not an HTTP request that can be understood",
    remedy="Speak HTTP/1.1, without TLS; /docs says what there is to ask for.",
)
HEAD_TOO_LARGE = error(
    ErrorCode.HEAD_TOO_LARGE,
    f"the head of the request has more than {MAX_HEAD} bytes",
    remedy="Send shorter headers; what is large goes into the body.",
)
WRONG_TARGET = error(
    ErrorCode.INVALID_REQUEST,
    "the URL of the request names another host than its Host header",
    remedy="Ask for a path, such as /v1/server, and name the server in Host.",
)
TOO_MANY = error(
    ErrorCode.TOO_MANY_CONNECTIONS,
    f"this server has {MAX_CONNECTIONS} connections already",
    remedy="Close some, or try again later.",
)


class ClientConnection(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.departure = Departure()
        self._since = self.loop.time()
        self.flow = self._watched_flow = WatchedFlow(transport, self.loop)
        self._head_bytes = 0
        self._bytes_of_nothing = 0  # came since the last that made a head, a piece of a body or a whole request
        self._is_in_head = self._is_in_body = self._is_for_one_request = False
        self._deadline: asyncio.TimerHandle | None = None
        is_tcp = bool(self.server and self.server[1] is not None)
        self._address = self.client[0] if is_tcp and self.client else None
        if not self._has_room(transport, 1.0 if is_tcp else 0.5):
            self._refuse(no_room())
        elif is_tcp and len(self.connections) > MAX_CONNECTIONS and not self._strangers.make_room(self):
            self._refuse(TOO_MANY)
        else:
            self._set_deadline()

    @property
    def _strangers(self) -> Strangers:
        """Of this server: all its connections share this state."""
        found: Strangers = vars(self.server_state).setdefault("strangers", Strangers())
        return found

    def _has_room(self, transport: asyncio.Transport, part: float) -> bool:
        """Whether there is room for one more. Connections that nobody uses are closed for it: their clients come again.

        That helps the next. This one has a descriptor of the reserve, so it is not kept for longer than a request.
        """
        fd = transport.get_extra_info("socket").fileno()
        if not is_reserved(fd, part):
            return True
        idle = [one for one in self.connections if one is not self and getattr(one, "is_idle", False)]
        for connection in idle[:CLOSED_FOR_ROOM]:
            connection.transport.close()
        self._is_for_one_request = True
        return bool(idle) and not is_reserved(fd, LAST_PART)

    @property
    def is_idle(self) -> bool:
        """Whether its client has had its last answer and has not begun to ask again, or has never said a word."""
        if self.cycle is None:
            return not self._bytes_of_nothing and self.loop.time() - self._since > SILENT_SECONDS
        return self.cycle.response_complete and not (self._is_in_head or self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._watched_flow.close()
        super().connection_lost(exc)
        self.departure.happen()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._bytes_of_nothing += len(data)
        super().data_received(data)
        if self._bytes_of_nothing > MAX_HEAD:
            self._refuse(HEAD_TOO_LARGE)
        elif self._is_in_head or (self._bytes_of_nothing and not self._is_in_body):
            self._set_deadline()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0
        self._wire = Wire(self)
        self.scope["extensions"] = {DEPARTURE: self.departure, WIRE: self._wire}  # type: ignore[dict-item]

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + len(b": \r\n")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel_deadline()
        if not agrees_with_host(self.url, self.headers):
            self._refuse(WRONG_TARGET)
            raise ValueError(WRONG_TARGET.message)
        if self._head_bytes > MAX_HEAD:  # it may have come as a whole, in one piece or two
            self._refuse(HEAD_TOO_LARGE)
            raise ValueError(HEAD_TOO_LARGE.message)  # so that the parser stops
        self._bytes_of_nothing, self._is_in_head, self._is_in_body = 0, False, True
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("so many requests before the first is answered")  # which the parser takes for a bad one
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # else it is a WebSocket from now on
            self._wire.hold(self.cycle)
            self.cycle.keep_alive = self.cycle.keep_alive and not self._is_for_one_request

    def on_body(self, body: bytes) -> None:
        self._bytes_of_nothing = 0
        if self._wire.body and self.cycle and not self.cycle.response_complete:
            self._wire.body.add(body)
        else:  # also what comes after the answer, which is read and dropped
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_of_nothing, self._is_in_body = 0, False
        if self._wire.body:
            self._wire.body.end()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._watched_flow.close()  # the WebSocket has its own, and we hear no more of this connection
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """For what the parser refuses."""
        self._refuse(NOT_HTTP)

    def _set_deadline(self) -> None:
        if self._deadline is None:
            patience = HEAD_SECONDS
            if self._address is not None:
                self._strangers.add(self, self._address, self.loop.time())
                patience = min(patience, self._strangers.patience)
            self._deadline = self.loop.call_later(patience, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
            self._strangers.discard(self)

    def give_way(self) -> None:
        self.transport.abort()

    def _refuse(self, problem: AtollError) -> None:
        if self.transport.is_closing():
            return
        answer = problem_response(problem)
        answer.headers["connection"] = "close"
        head = [STATUS_LINE[answer.status_code], *(b"%b: %b\r\n" % pair for pair in answer.raw_headers), b"\r\n"]
        self.transport.write(b"".join(head) + bytes(answer.body))
        self.transport.close()


def agrees_with_host(target: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
    """A target may be a whole URL, as proxies get it. Then it is that which counts, and it must be what Host says."""
    scheme, found, rest = target.partition(b"://")
    if not found or b"/" in scheme or b"?" in scheme:
        return True
    authority = re.split(rb"[/?#]", rest, maxsplit=1)[0].lower()
    return [authority] == [value.lower() for name, value in headers if name == b"host"]


class ClientWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket whose client's last words are passed on also after it left, if somebody takes them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.departure = Departure()
        self._watch = HangUpWatch(self.transport, self.loop, self.departure.happen)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.close()
        super().connection_lost(exc)
        self.departure.happen()

    def send_receive_event_to_app(self) -> None:
        super().send_receive_event_to_app()
        if self.read_paused:
            self._watch.begin()

    async def run_asgi(self) -> None:
        self.scope["extensions"][DEPARTURE] = self.departure  # type: ignore[assignment]
        await super().run_asgi()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # a refusal is an answer too, which Uvicorn would log as our mistake


class Wire:
    """The connection of one request, for an endpoint that moves much."""

    def __init__(self, connection: ClientConnection) -> None:
        self.body: Body | None = None
        self._connection = connection
        self._answer: HeldHead

    def hold(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._answer = HeldHead(self._connection.transport, self._connection.loop)
        cycle.transport = cast(asyncio.Transport, self._answer)

    def take_body(self) -> Body:
        """The rest of the body, for an endpoint that has just received a piece which is not the last."""
        self.body = Body(self._connection.flow, self._connection.departure)
        return self.body

    async def write(self, parts: Sequence[bytes]) -> None:
        """A piece of an answer that has begun, and whose length nobody has said. None of `parts` is copied."""
        flow = self._connection.flow
        if flow.write_paused and not self._cycle.disconnected:
            await flow.drain()
        if not self._cycle.disconnected:
            self._answer.write_all((b"%x\r\n" % sum(map(len, parts)), *parts, b"\r\n"))


def wire_of(scope: Scope) -> Wire:
    wire: Wire = scope["extensions"][WIRE]
    return wire


class Body:
    """The rest of a request's body, piece by piece, as it was read."""

    def __init__(self, flow: FlowControl, departure: Departure) -> None:
        self._flow = flow
        self._departure = departure
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > MAX_WAITING:
            self._flow.pause_reading()
        self._wake()

    def end(self) -> None:
        self._is_over = True
        self._wake()

    async def next(self) -> bytes:
        """The next piece, b"" after the last."""
        while not self._pieces:
            if self._is_over:
                return b""
            self._flow.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            with self._departure.calls(self._wake):
                await self._waiter
            if self._departure.has_happened and not self._pieces and not self._is_over:
                raise ClientDisconnect
        piece = self._pieces.popleft()
        self._size -= len(piece)
        return piece

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)


class HeldHead:
    """A transport to which the first that is written waits for the second, if that comes at once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None
        self._has_begun = False

    def write(self, data: bytes) -> None:
        if self._has_begun:
            self.write_all((data,))
        else:
            self._has_begun, self._held = True, data
            self._loop.call_soon(self._let_go)

    def write_all(self, parts: Sequence[bytes]) -> None:
        if self._held is not None:
            parts, self._held = (self._held, *parts), None
        if not self._transport.is_closing():
            self._transport.writelines(parts)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def _let_go(self) -> None:
        if self._held is not None:
            self.write_all(())


class Departure:
    """The departure of a client, and what is to be done then."""

    def __init__(self) -> None:
        self._acts: list[Callable[[], None]] = []
        self.has_happened = False

    @contextmanager
    def calls(self, act: Callable[[], None]) -> Iterator[None]:
        """Call `act` if the client leaves while this lasts, or has left."""
        if self.has_happened:
            act()
        self._acts.append(act)
        try:
            yield
        finally:
            self._acts.remove(act)

    def happen(self) -> None:
        self.has_happened = True
        for act in self._acts:
            act()


def departure_of(scope: Scope) -> Departure:
    departure: Departure = scope["extensions"][DEPARTURE]
    return departure


class HangUpWatch:
    """While reading is paused nobody sees the end of what the client sends: then this calls `act`.

    It is kept once it is there, as a large body is paused again and again.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
        self._transport = transport
        self._loop = loop
        self._act = act
        self._epoll: select.epoll | None = None
        self.has_hung_up = False

    def begin(self) -> None:
        if self._epoll is None and not self.has_hung_up:
            self._epoll = select.epoll(1)
            self._epoll.register(self._transport.get_extra_info("socket").fileno(), select.EPOLLRDHUP)
            self._loop.add_reader(self._epoll.fileno(), self._on_hang_up)

    def _on_hang_up(self) -> None:
        self.has_hung_up = True
        self.close()
        self._act()

    def close(self) -> None:
        if self._epoll:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None


class WatchedFlow(FlowControl):
    """Aborts the connection of a client that leaves while it is not read from.

    What it sent before is lost, which matters to nobody: Uvicorn answers no one who has closed its sending side.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
        self._watch = HangUpWatch(transport, loop, self._abort_if_paused)

    def pause_reading(self) -> None:
        super().pause_reading()
        self._watch.begin()
        if self._watch.has_hung_up:
            self._transport.abort()

    def _abort_if_paused(self) -> None:
        if self.read_paused:
            self._transport.abort()

    def close(self) -> None:
        self._watch.close()
