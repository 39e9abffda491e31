# Generated from client/plumbing/transport.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""HTTP/1.1 to one server, over connections that are kept for the next request.

Rules:
1. A request is repeated only when nothing can have run: the connection could not be made, one kept idle had been closed
   before anything was written to it, or a Unix socket says that the server left without reading all of the request.
   Any other lost connection is SERVER_LOST.
2. Nobody waits for ever. A command may be silent for hours, so silence is no failure unless the caller says for how
   long; but after QUIET_SECONDS of it the server is asked, over another connection, whether it is there.
3. What a server may make us keep is bounded: the head of an answer, the body of one that is not streamed, idle
   connections.
4. The pool is a deque, whose `append` and `pop` are atomic: threads share it without a lock, which a fork could
   leave locked for ever. A forked process leaves its parent's connections alone.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import httptools

from atoll.client_sync.plumbing.network import Bytes, NotYet, SourceError, Stream, TcpAddress, connect
from atoll.client_sync.plumbing.waiting import pause
from atoll.protocol.errors import AtollError, ErrorCode, error

if TYPE_CHECKING:
    from atoll.client_sync.plumbing.network import Address

IDLE_CONNECTIONS = 16
CONNECT_SECONDS = 10.0
ATTEMPTS = 3
CONNECT_PAUSES = (0.1, 0.3, 0.6)  # a server that is being restarted is back within them, more often than not
QUIET_SECONDS = 5.0
PROBE_SECONDS = 10.0
END_SECONDS = 0.1  # for the end of an answer whose last frame is here; later ones cost us the connection
MAX_HEAD = 64 * 1024
MAX_ANSWER = 64 * 2**20
REFUSED = 300  # the first of the statuses that say so

_PREPARED = re.compile(rb'"preparing":\["([ -!#-\[\]-~]{1,200})"')  # of GET /v1/server, in ASCII and safe to print

logger = logging.getLogger("atoll.client_sync")

Opener = Callable[[], Stream]


class Transport:
    """The connections to one server. `open_stream` makes one, and may start the server for it."""

    def __init__(self, address: Address, *, api_key: str | None = None, open_stream: Opener | None = None) -> None:
        self.address = address
        self.quiet_seconds = QUIET_SECONDS
        self.probe_seconds = PROBE_SECONDS
        host = address.authority if isinstance(address, TcpAddress) else "localhost"
        self._head = f" HTTP/1.1\r\nhost: {host}\r\n"
        if api_key:
            self._head += f"authorization: Bearer {api_key}\r\n"
        self._open_stream = open_stream
        self._idle: deque[Stream] = deque()
        self._owner = os.getpid()
        self._alive_at = -self.quiet_seconds

    def request(
        self,
        method: str,
        target: str,
        *,
        body: bytes | tuple[Bytes, ...] | Iterator[bytes | NotYet] = b"",
        content_type: str = "application/json",
        accept: str = "application/json",
        headers: str = "",
        scope: CancelScope | None = None,
    ) -> Response:
        """Send a request and return its answer once its head is here.

        A body that is an iterator goes out in chunks, also while the answer is read; what it raises is raised there.
        `headers` are lines, each with its end. Whoever closes `opening` makes this fail, as if the server had hung up.
        """
        head = f"{method} {target}{self._head}accept: {accept}\r\n{headers}"
        if not isinstance(body, bytes | tuple):
            head += f"content-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
            return self._exchange(self._connection(), scope, (head.encode(),), chunked(body))
        parts = (body,) if isinstance(body, bytes) else body
        kind = f"content-type: {content_type}\r\n" if body else ""
        whole = f"{head}{kind}content-length: {sum(map(len, parts))}\r\n\r\n".encode(), *parts
        for _ in range(ATTEMPTS - 1):
            stream = self._connection()
            try:
                return self._exchange(stream, scope, whole)
            except AtollError:
                if not stream.was_left_unread or (scope and scope.is_cancelled):  # a server acts on whole requests
                    raise
        return self._exchange(self._connection(), scope, whole)

    def _exchange(
        self,
        stream: Stream,
        scope: CancelScope | None,
        data: tuple[Bytes, ...],
        more: Iterator[bytes | NotYet] | None = None,
    ) -> Response:
        response = Response(self, stream)
        if scope:
            scope.hold(response)
        try:
            stream.send(*data, more=more)
            response.read_head()
        except BaseException:
            response.close()
            raise
        return response

    def begin(self, method: str, target: str, *, content_type: str, accept: str, headers: str = "") -> Upload:
        """A request whose body is sent piece by piece."""
        stream = self._connection()
        upload = Upload(self, stream)
        head = f"{method} {target}{self._head}accept: {accept}\r\ncontent-type: {content_type}\r\n{headers}"
        try:
            upload.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        except BaseException:
            upload.close()
            raise
        return upload

    def take_back(self, stream: Stream) -> None:
        if len(self._idle) < IDLE_CONNECTIONS and self._owner == os.getpid():
            self._idle.append(stream)
        else:
            stream.close()

    def close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def check_alive(self) -> None:
        """Return if the server answers anything at all, on a connection of its own; SERVER_LOST if not."""
        if time.monotonic() < self._alive_at + self.quiet_seconds:  # another silent answer has just had us ask
            return
        deadline = time.monotonic() + self.probe_seconds
        try:
            stream = connect(self.address, self.probe_seconds)
            try:
                stream.send(f"GET /v1/server{self._head}connection: close\r\n\r\n".encode())
                is_alive = stream.read(deadline - time.monotonic())
            finally:
                stream.close()
        except OSError as cause:
            raise self.lost("no longer answers") from cause
        if not is_alive:
            raise self.lost("no longer answers")
        self._alive_at = time.monotonic()
        if prepared := _PREPARED.search(is_alive):
            logger.info("the server at %s is preparing %s", self.address, prepared[1].decode())

    def lost(self, what: str) -> AtollError:
        return error(
            ErrorCode.SERVER_LOST,
            f"the server at {self.address} {what}",
            remedy="What was asked for may or may not have happened. Look, then ask again; sandboxes live on.",
            address=str(self.address),
        )

    def _connection(self) -> Stream:
        if self._owner != os.getpid():
            self._idle, self._owner = deque(), os.getpid()  # dropped, so closed here; the parent's stay open
        while True:
            try:
                stream = self._idle.pop()
            except IndexError:  # another thread may have taken the last
                break
            if stream.is_quiet():
                return stream
            stream.close()
        return (self._open_stream or self._connect)()

    def _connect(self) -> Stream:
        for seconds in CONNECT_PAUSES:
            try:
                return connect(self.address, CONNECT_SECONDS)
            except (ConnectionRefusedError, FileNotFoundError):
                pause(seconds)
            except OSError as cause:
                raise not_reachable(self.address, cause) from cause
        try:
            return connect(self.address, CONNECT_SECONDS)
        except OSError as cause:
            raise not_reachable(self.address, cause) from cause


class Upload:
    """A request under way, which is finished or takes the connection with it."""

    def __init__(self, transport: Transport, stream: Stream) -> None:
        self._transport = transport
        self._stream = stream
        self._response = Response(transport, stream)
        self._is_wanted = True

    def send(self, *parts: Bytes) -> bool:
        """A piece of the body. False: the server has answered already, or hung up, and wants no more."""
        return self.write(b"%x\r\n" % sum(map(len, parts)), *parts, b"\r\n")

    def write(self, *parts: Bytes) -> bool:
        while self._is_wanted:
            try:
                self._is_wanted = self._stream.write(*parts, seconds=self._transport.quiet_seconds)
                return self._is_wanted
            except TimeoutError:
                self._transport.check_alive()
                parts = ()
        return False

    def finish(self) -> Response:
        """The answer, once its head is here."""
        try:
            self._response.may_keep_connection = self.write(b"0\r\n\r\n")
            self._response.read_head()
        except BaseException:
            self.close()
            raise
        return self._response

    def close(self) -> None:
        self._response.close()


class Response:
    """An answer: its head is here, its body comes as it is read. Left early, it takes the connection with it."""

    def __init__(self, transport: Transport, stream: Stream) -> None:
        self.status = 0
        self.content_type = ""
        self.may_keep_connection = True
        self._transport = transport
        self._stream = stream
        self._answer = Answer()
        self._is_released = False

    def read_head(self) -> None:
        while not self._answer.has_head:
            self._receive()
        self.status, self.content_type = self._answer.status, self._answer.content_type

    def is_good(self, content_type: str = "") -> bool:
        """Whether it is no refusal, and of the type that is wanted."""
        return self.status < REFUSED and self.content_type.startswith(content_type)

    def next_chunk(self, patience: float | None = None) -> bytes:
        """Some of the body as it comes, b"" at its end; SilenceError if nothing comes for `patience` seconds."""
        deadline = math.inf if patience is None else time.monotonic() + patience
        while not self._answer.body and not self._answer.is_complete:
            self._receive(deadline)
        body = self._answer.take_body()
        if self._answer.is_complete:
            self._release()
        return body

    def read(self, limit: int = MAX_ANSWER) -> bytes:
        """The whole body."""
        body = bytearray()
        try:
            while chunk := self.next_chunk():
                body += chunk
                if len(body) > limit:
                    raise self._transport.lost(f"sent an answer of more than {limit} bytes")
        finally:
            self.close()
        return bytes(body)

    def finish(self) -> None:
        """Nothing more is wanted. If the end is near the connection is kept."""
        deadline = time.monotonic() + END_SECONDS
        try:
            while not self._answer.is_complete and not self._answer.body:
                self._feed(self._stream.read(deadline - time.monotonic()))
            self._release()
        except (OSError, AtollError, SourceError):  # the answer was whole before this
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the connection. The server takes it as a cancellation, if the answer was not complete."""
        if not self._is_released:
            self._is_released = True
            self._answer.end()
            self._stream.close()

    def _release(self) -> None:
        if self._is_released:
            return
        if self.may_keep_connection and self._answer.may_be_reused and not self._stream.has_unsent:
            self._is_released = True
            self._answer.end()
            self._transport.take_back(self._stream)
            del self._stream  # it is another's from now on, and closed when that one is dropped
        self.close()

    def _receive(self, deadline: float = math.inf) -> None:
        try:
            data = self._stream.read(min(self._transport.quiet_seconds, deadline - time.monotonic()))
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise SilenceError from None
            self._transport.check_alive()
            return
        except SourceError as failure:
            raise failure.cause from failure.cause.__cause__
        except OSError as cause:
            raise self._transport.lost(f"broke the connection: {cause.strerror}") from cause
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        if not data:
            raise self._transport.lost("hung up before its answer was complete")
        try:
            self._answer.feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, HeadTooLargeError) as cause:
            if not self._answer.is_complete:  # what follows a whole answer spoils the connection, not the answer
                raise self._transport.lost(f"sent what is no HTTP answer: {cause}") from cause
            self._answer.may_be_reused = False


class CancelScope:
    """A request for whoever may cancel it from another task or thread: before it is sent, under way, or answered."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._response: Response | None = None

    def hold(self, response: Response) -> None:
        self._response = response
        if (
            self.is_cancelled
        ):  # looked at after the response is there for `cancel`, which looks at the two the other way
            response.close()

    def cancel(self) -> None:
        self.is_cancelled = True
        if self._response:
            self._response.close()


class SilenceError(Exception):
    """Nothing came for as long as somebody was ready to wait. The server itself is there."""


class HeadTooLargeError(Exception):
    pass


class Answer:
    """An answer, as far as the parser has found it."""

    def __init__(self) -> None:
        self.status = 0
        self.content_type = ""
        self.body: list[bytes] = []
        self.has_head = False
        self.is_complete = False
        self.may_be_reused = False
        self._head_bytes = 0
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        if not self.has_head:
            self._head_bytes += len(data)
        parser = self._parser
        if parser is None:  # closed by another thread
            raise httptools.HttpParserError("it is not wanted any more")
        parser.feed_data(data)
        if not self.has_head and self._head_bytes > MAX_HEAD:
            raise HeadTooLargeError(f"its head has more than {MAX_HEAD} bytes")

    def take_body(self) -> bytes:
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body.clear()
        return body

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("more than one answer came")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser
        self.status = self._parser.get_status_code()
        self.has_head = self.status >= 200  # 100 Continue and 103 Early Hints come before the answer proper

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head
        self.may_be_reused = self.has_head and self._parser is not None and self._parser.should_keep_alive()

    def end(self) -> None:
        """Parser and answer know each other; without this they would wait for the garbage collector."""
        self._parser = None


def chunked(pieces: Iterator[bytes | NotYet]) -> Iterator[bytes | NotYet]:
    for piece in pieces:
        yield piece if isinstance(piece, NotYet) else b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def not_reachable(address: Address, cause: OSError) -> AtollError:
    return error(
        ErrorCode.SERVER_NOT_REACHABLE,
        f"no server answers at {address}: {cause.strerror or cause}",
        remedy="Start one (`atoll serve`), or correct url= or ATOLL_URL.",
        address=str(address),
    )
