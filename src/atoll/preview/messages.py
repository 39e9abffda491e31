"""Messages of HTTP/1.1 as they come, on either side of the proxy; httptools parses them.

1. What waits to be taken is bounded: a peer is not read from while MAX_WAITING bytes of it wait.
2. So are heads, trailers and what is between pieces of a body: MAX_HEAD bytes that make nothing are too many.
3. An answer counts only if it was asked for. What else comes spoils the connection, which is then nobody's any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, cast

import httptools

from atoll.preview.heads import (
    AmbiguousError,
    Framing,
    Header,
    Headers,
    RequestHead,
    ResponseHead,
    response_framing,
)

MAX_HEAD = 64 * 1024
MAX_WAITING = 256 * 1024
MAX_UNSENT = 256 * 1024


class End(NamedTuple):
    """The end of a message."""

    trailers: Headers = ()


class HungUp(NamedTuple):
    """The end of what a peer sends, where there are no messages any more."""


Event = RequestHead | ResponseHead | bytes | End | HungUp


class GoneError(Exception):
    """The connection is over."""


class MalformedError(Exception):
    """Bytes came that are no HTTP which can be understood."""


class HeadTooLargeError(MalformedError):
    pass


class Side(asyncio.Protocol):
    """A side of the proxy: events of what comes from it, and bytes that go there as fast as they are taken."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.is_raw = False  # bytes are bytes: a WebSocket
        self.is_gone = False
        self.moved_at = self._loop.time()
        self._events: deque[Event] = deque()
        self._waiting = 0
        self._is_paused = False
        self._failure: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_blocked = False
        self._unsent = 0  # when last looked at
        self._bytes_of_nothing = 0
        self._pieces: list[bytes] = []
        self._headers: list[Header] = []

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own are none by their class
        self.transport.set_write_buffer_limits(high=MAX_UNSENT)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self._fail(GoneError())
        if self._writer and not self._writer.done():
            self._writer.set_exception(GoneError())

    def data_received(self, data: bytes) -> None:
        self.moved_at = self._loop.time()
        if self.is_raw:
            self._add(data)
        elif self._failure is None:
            self._feed(data)
        if self._waiting > MAX_WAITING and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._add(HungUp())
        return self.is_raw  # one that may go on listening

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        if self._writer and not self._writer.done():
            self._writer.set_result(None)

    # What comes.

    async def next(self) -> Event:
        """The next event. GoneError, MalformedError when nothing comes any more."""
        while not self._events:
            if self._failure:
                raise self._failure
            if self._is_paused:
                self._is_paused = False
                self.transport.resume_reading()
            self._reader = self._loop.create_future()
            await self._reader
        event = self._events.popleft()
        if isinstance(event, bytes):
            self._waiting -= len(event)
        return event

    def _add(self, event: Event) -> None:
        if isinstance(event, bytes):
            self._waiting += len(event)
        self._events.append(event)
        if self._reader and not self._reader.done():
            self._reader.set_result(None)

    def _fail(self, problem: Exception) -> None:
        """Known when all is taken that came before."""
        if self._failure is None:
            self._failure = problem
            if self._reader and not self._reader.done():
                self._reader.set_result(None)

    def _feed(self, data: bytes) -> None:
        self._bytes_of_nothing += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._begin_raw(data[upgrade.args[0] :])
        except (httptools.HttpParserError, AmbiguousError) as cause:
            self._flush()
            problem = cause.__context__ if isinstance(cause.__context__, AmbiguousError) else cause
            self._fail(MalformedError(str(problem)))
            return
        self._flush()
        if self._bytes_of_nothing > MAX_HEAD:
            self._fail(HeadTooLargeError())

    def _parse(self, data: bytes) -> None:
        raise NotImplementedError

    def _begin_raw(self, rest: bytes) -> None:
        self._flush()
        self.is_raw = True
        self._bytes_of_nothing = 0
        if rest:
            self._add(rest)

    def _flush(self) -> None:
        """Pieces that came together are one."""
        if self._pieces:
            self._add(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
            self._pieces.clear()

    # What goes.

    def write(self, *parts: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.writelines(parts)

    async def drain(self) -> None:
        """Return when more may be written."""
        while self._is_blocked and not self.is_gone:
            self._writer = self._loop.create_future()
            await self._writer
        if self.is_gone:
            raise GoneError

    def has_stalled(self, now: float, seconds: float) -> bool:
        """Whether the peer has taken nothing for so long of what waits for it. To be asked from time to time."""
        unsent = 0 if self.is_gone else self.transport.get_write_buffer_size()
        if not unsent or unsent < self._unsent or not self._unsent:
            self._stalled_since = now
        self._unsent = unsent
        return bool(unsent) and now - self._stalled_since > seconds

    def write_eof(self) -> None:
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def close(self) -> None:
        """Bytes that were written still go out."""
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    # What the parser finds, in both.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._bytes_of_nothing = 0
        self._pieces.append(body)


class Requests(Side):
    """A visitor's side: requests. After one that asks for an upgrade all is raw."""

    def __init__(self) -> None:
        super().__init__()
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self.is_in_head = False

    def _parse(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._target, self._headers, self.is_in_head = b"", [], True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > MAX_HEAD:
            self._fail(HeadTooLargeError())
            raise AmbiguousError
        self._bytes_of_nothing = 0
        self._add(RequestHead(self._parser.get_method(), self._target, self._parser.get_http_version(), self._headers))
        self._headers = []

    def on_message_complete(self) -> None:
        self._bytes_of_nothing = 0
        self._flush()
        self._add(End(self._headers))


class Answers(Side):
    """A service's side: answers, each to a request that was begun."""

    def __init__(self) -> None:
        super().__init__()
        self._method: bytes | None = None
        self._parser: httptools.HttpResponseParser
        self._reason = b""
        self._framing = Framing.NONE
        self.has_spoken = False

    def begin(self, method: bytes) -> None:
        """A request is about to go out. Each has a parser of its own, as none knows which answers have no body."""
        self._method, self.has_spoken = method, False
        self._parser = httptools.HttpResponseParser(self)
        self._framing = Framing.NONE
        self._bytes_of_nothing = 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing came that nobody asked for."""
        return not self._events and self._failure is None and not self.transport.is_closing()

    def eof_received(self) -> bool:
        if self._method is not None and self._framing is Framing.UNTIL_CLOSE and not self.is_raw:
            self._method = None
            self._add(End())
        return super().eof_received()

    def _parse(self, data: bytes) -> None:
        if self._method is None:
            self._fail(MalformedError("it sent what nobody asked for"))
            return
        self.has_spoken = True
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._reason, self._headers = b"", []

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_headers_complete(self) -> None:
        if self._method is None:  # a second answer, or the body of one that has none
            return
        status = self._parser.get_status_code()
        head = ResponseHead(status, self._reason, self._parser.get_http_version(), self._headers)
        size = len(self._reason) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > MAX_HEAD:
            self._fail(HeadTooLargeError())
            raise AmbiguousError
        self._framing = response_framing(head, self._method)
        self._bytes_of_nothing = 0
        self._headers = []
        self._add(head)
        if status >= 200 and self._framing is Framing.NONE:
            self._method = None
            self._add(End())

    def on_body(self, body: bytes) -> None:
        if self._method is None:
            self._fail(MalformedError("it sent what nobody asked for"))
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_of_nothing = 0
        if self._method is None:
            return
        self._flush()
        if self._parser.get_status_code() >= 200:
            self._method = None
        self._add(End(self._headers))
