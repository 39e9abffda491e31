"""A visitor's connection: each request passed on to the service that its address means, and the answer back.

Rules:
1. A connection to a service is of one visitor's connection. Whatever a service or a visitor makes of the protocol, no
   other visitor hears of it.
2. Bytes go on as fast as they are taken, and no faster: neither side is read while the other does not take.
3. The sandbox is held awake from a request to its answer, and while bytes move; a connection on which nothing does lets
   it sleep, and the next byte wakes it.
4. The address is looked at anew for each request, and from time to time, so that one that was taken away ends what came
   by it.
5. What was cut off ends cut off: the visitor's connection is closed before its answer looks whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atoll.preview import heads, pages
from atoll.preview.address import PreviewAddress, parse_host, parse_path
from atoll.preview.door import VISITOR, Hold
from atoll.preview.heads import AmbiguousError, Framing, RequestHead, ResponseHead, Visit
from atoll.preview.last_words import last_words
from atoll.preview.messages import (
    Answers,
    End,
    GoneError,
    HeadTooLargeError,
    HungUp,
    MalformedError,
    Requests,
    Side,
)
from atoll.protocol.errors import AtollError, ErrorCode, error

if TYPE_CHECKING:
    from atoll.preview.front import Previews

HEAD_SECONDS = 30.0  # for a whole head, from its first byte or from the beginning
IDLE_SECONDS = 120.0  # between requests
STALL_SECONDS = 60.0  # in which a peer takes nothing of what waits for it
SILENT_SECONDS = 3600.0  # in which nothing moves at all
QUIET_SECONDS = 1.0  # after which a connection on which nothing moves holds its sandbox no longer
LINGER_SECONDS = 2.0  # in which what is left of a request is read and dropped, so that its answer arrives
SAFE = (b"GET", b"HEAD", b"OPTIONS")  # may be asked again, where nobody knows whether they were asked


class PreviewConnection(Requests):
    def __init__(self, front: Previews) -> None:
        super().__init__()
        self._front = front
        self.address: PreviewAddress | None = None
        self._hold: Hold | None = None
        self._service: Answers | None = None
        self._is_answering = False
        self._is_waiting_for_answer = False
        self._began = self._loop.time()
        self._client = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._client = peer[0] if isinstance(peer, tuple) else ""
        self._task = self._loop.create_task(self._serve())
        self._front.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._task.cancel()
        self._front.discard(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._began = self._loop.time()

    @property
    def is_idle(self) -> bool:
        return not self._is_answering

    @property
    def sandbox(self) -> str | None:
        """The one whose service it is connected to."""
        return self._hold.actor.name if self._hold and self._service else None

    async def ended(self) -> None:
        """Return when nothing of it is left."""
        self.abort()
        await asyncio.gather(self._task, return_exceptions=True)

    async def look(self, now: float) -> None:
        """Done from time to time: give up what does not go on, and let go of a sandbox that nobody uses."""
        service = self._service
        moved_at = max(self.moved_at, service.moved_at if service else 0.0)
        has_stalled = [side.has_stalled(now, STALL_SECONDS) for side in (self, service) if side]
        has_stalled.append(self._is_too_slow(now) or now - moved_at > SILENT_SECONDS)
        if any(has_stalled) or not self._is_admitted:
            self.abort()
        elif self._hold and now - moved_at > QUIET_SECONDS and not self._is_waiting_for_answer:
            await self._hold.let_go()

    @property
    def _is_admitted(self) -> bool:
        """Whether the address that it came by still leads somewhere, while that matters."""
        return not (self.address and self._is_answering) or self._front.door.find(self.address) is not None

    def _is_too_slow(self, now: float) -> bool:
        if self._is_answering:
            return False
        is_in_request = self.is_in_head or self.address is None
        return now - self._began > HEAD_SECONDS if is_in_request else now - self.moved_at > IDLE_SECONDS

    # A connection's life.

    async def _serve(self) -> None:
        try:
            while await self._answer_next():
                continue
        except HeadTooLargeError:
            self.write(pages.refusal(431, "the headers are too large", "Send shorter ones."))
        except (MalformedError, AmbiguousError) as problem:
            self.write(pages.refusal(400, f"this is no request that can be passed on: {problem}", "Speak HTTP/1.1."))
        except GoneError:
            pass
        finally:
            self.close()
            if self._service:
                self._service.close()
            if self._hold:
                await self._hold.let_go()

    async def _answer_next(self) -> bool:
        """Whether another request may follow."""
        head = await self.next()
        if not isinstance(head, RequestHead):
            return False
        self._is_answering = True
        try:
            return await self._answer(head)
        except AtollError as problem:
            await self._tell(head, problem)
            return False
        finally:
            self._is_answering = False
            self._began = self._loop.time()

    async def _answer(self, head: RequestHead) -> bool:
        if head.method == b"CONNECT":
            self.write(pages.refusal(405, "this is no proxy for other hosts", "Ask for a path."))
            return False
        framing, path = heads.request_framing(head), heads.path_of(head)
        address, path, visit = self._route(head, path)
        actor = self._front.door.find(address) if address else None
        if address is None or actor is None:
            raise pages.NOTHING_HERE
        if self._hold is None or self._hold.actor is not actor or self.address != address:
            await self._leave_service()
            self._hold = Hold(actor)
        self.address = address
        self._is_waiting_for_answer = True
        try:
            return await self._exchange(head, heads.to_service(head, path, framing, visit), framing)
        finally:
            self._is_waiting_for_answer = False

    def _route(self, head: RequestHead, path: bytes) -> tuple[PreviewAddress | None, bytes, Visit]:
        """The address that is meant, and the path as the service knows it."""
        place = self._front.place
        visit = Visit(self._client, place.scheme)
        if not place.by_path:
            return parse_host(heads.host_of(head).decode("latin-1"), place.domain), path, visit
        found = parse_path(path.decode("latin-1"))
        if found is None:
            return None, path, visit
        address, rest = found
        return address, rest.encode("latin-1"), visit._replace(prefix=b"/p/" + address.label.encode())

    # A request and its answer.

    async def _exchange(self, head: RequestHead, request: bytes, framing: Framing) -> bool:
        service, is_new = await self._connect()
        service.begin(head.method)
        service.write(request)
        if framing is Framing.NONE:
            await self.next()  # its end
            sending = None
        else:
            sending = asyncio.create_task(self._send_body(service, framing))
        try:
            return await self._pass_answer(head, service, sending)
        except GoneError as cause:
            if self.is_gone:
                raise
            if is_new or service.has_spoken or head.method not in SAFE or sending:
                raise _no_answer("it hung up before it had answered") from cause
        finally:
            if sending:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        await self._leave_service()  # it had closed a connection that was kept, just as we wrote
        return await self._repeat(head, request)

    async def _repeat(self, head: RequestHead, request: bytes) -> bool:
        service, _ = await self._connect()
        service.begin(head.method)
        service.write(request)
        try:
            return await self._pass_answer(head, service, None)
        except GoneError as cause:
            raise _no_answer("it hung up before it had answered") from cause

    async def _connect(self) -> tuple[Answers, bool]:
        """A connection to the service, and whether it is a new one. One that is kept may have been closed."""
        assert self._hold and self.address
        if self._service:
            await self._hold.take()
        if self._service and self._service.is_quiet:
            return self._service, False
        await self._leave_service()
        if not self._front.has_room_for(self._hold.actor.name):
            raise _too_many(self._hold.actor.name)
        peer = await self._hold.connect(self.address.port)
        _, self._service = await self._loop.create_connection(Answers, sock=peer)
        return self._service, True

    async def _leave_service(self) -> None:
        if self._service:
            self._service.close()
            self._service = None
        if self._hold:
            await self._hold.let_go()

    async def _send_body(self, service: Answers, framing: Framing) -> None:
        while isinstance(event := await self.next(), bytes):
            await self._stay_awake()
            service.write(*_piece(event, framing))
            await service.drain()
        if isinstance(event, End) and framing is Framing.CHUNKED:
            service.write(heads.trailer_lines(event.trailers))

    async def _pass_answer(self, head: RequestHead, service: Answers, sending: asyncio.Task[None] | None) -> bool:
        answer = await self._first_head(head, service, sending)
        self._is_waiting_for_answer = False
        if answer.status == 101:
            return await self._tunnel(head, answer, service)
        framing = heads.response_framing(answer, head.method)
        if framing is Framing.UNTIL_CLOSE:
            may_stay, outgoing = heads.keeps_alive(head) and head.version == "1.1", Framing.CHUNKED
        else:
            may_stay, outgoing = heads.keeps_alive(head), framing
        if head.version == "1.0" and outgoing is Framing.CHUNKED:
            may_stay, outgoing = False, Framing.UNTIL_CLOSE
        may_stay = may_stay and not self.is_raw and (sending is None or sending.done())
        self.write(heads.to_visitor(answer, outgoing, version=head.version, may_stay=may_stay))
        if not await self._pass_body(service, outgoing):
            return False
        if framing is Framing.UNTIL_CLOSE or not heads.keeps_alive(answer) or self.is_raw:
            await self._leave_service()
        if sending and not sending.done():
            await self._linger()
        return may_stay

    async def _first_head(
        self, head: RequestHead, service: Answers, sending: asyncio.Task[None] | None
    ) -> ResponseHead:
        """The head of the answer proper; those that come before it, such as early hints, are passed on."""
        while True:
            try:
                answer = await service.next()
            except GoneError:
                if not service.has_spoken:
                    _raise_failure(sending)
                    raise
                answer = HungUp()
            except MalformedError as problem:
                raise _no_answer(f"what it sent is no HTTP: {problem}") from problem
            if not isinstance(answer, ResponseHead):
                _raise_failure(sending)
                if isinstance(answer, HungUp) and not service.has_spoken:
                    raise GoneError
                raise _no_answer("it hung up before it had answered")
            if answer.status >= 200 or answer.status == 101:
                return answer
            if head.version == "1.1":
                self.write(heads.to_visitor(answer, Framing.NONE, version=head.version, may_stay=True))
            await service.next()

    async def _pass_body(self, service: Answers, framing: Framing) -> bool:
        """Whether it came whole."""
        try:
            while isinstance(event := await service.next(), bytes):
                self.write(*_piece(event, framing))
                await self.drain()
                await self._stay_awake()
        except (GoneError, MalformedError):
            return False
        if isinstance(event, End) and framing is Framing.CHUNKED:
            self.write(heads.trailer_lines(event.trailers))
        return isinstance(event, End)

    async def _linger(self) -> None:
        """A connection closed on what was not read loses the answer on its way (RFC 9112, 9.6)."""
        with suppress(TimeoutError, GoneError, MalformedError):
            async with asyncio.timeout(LINGER_SECONDS):
                while isinstance(await self.next(), bytes):
                    continue

    # WebSockets.

    async def _tunnel(self, head: RequestHead, answer: ResponseHead, service: Answers) -> bool:
        if not (heads.is_websocket(head) and heads.accepts_websocket(answer)):
            raise _no_answer("it changed to a protocol that nobody asked for")
        if isinstance(await service.next(), End):
            service.is_raw = True  # what it says from here on is no HTTP
        self.write(heads.switching(answer))
        await _both(self._pump(self, service), self._pump(service, self))
        return False

    async def _pump(self, source: Side, sink: Side) -> None:
        while isinstance(event := await source.next(), bytes):
            await self._stay_awake()
            sink.write(event)
            await sink.drain()
        sink.write_eof()

    async def _stay_awake(self) -> None:
        if self._hold and not self._hold.is_held:
            await self._hold.take()

    # Answers of our own.

    async def _tell(self, head: RequestHead, problem: AtollError) -> None:
        """The visitor what went wrong, unless it has been told something else already."""
        for_people = heads.wants_page(head)
        words = []
        if for_people and self._hold and problem.code is ErrorCode.PORT_NOT_OPEN:
            words = await last_words(self._hold.actor, VISITOR)
        self.write(pages.problem_answer(problem, for_people=for_people, with_body=head.method != b"HEAD", words=words))
        if heads.request_framing(head) is not Framing.NONE:
            await self._linger()


def _piece(data: bytes, framing: Framing) -> tuple[bytes, ...]:
    return (b"%x\r\n" % len(data), data, b"\r\n") if framing is Framing.CHUNKED else (data,)


def _raise_failure(sending: asyncio.Task[None] | None) -> None:
    """If the request's body is what is wrong, that is what there is to tell."""
    if sending and sending.done() and not sending.cancelled():
        problem = sending.exception()
        if isinstance(problem, (MalformedError, AtollError)):
            raise problem


async def _both(*work: Coroutine[Any, Any, None]) -> None:
    """Until all are done, or one has failed."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _no_answer(what: str) -> AtollError:
    return error(
        ErrorCode.AGENT_MISBEHAVED,
        f"the service of this preview gave no answer: {what}",
        remedy="Look at its log; ask again if it is restarting.",
    )


def _too_many(sandbox: str) -> AtollError:
    return error(
        ErrorCode.TOO_MANY_CONNECTIONS,
        f"the previews of sandbox {sandbox!r} have as many connections as they may",
        remedy="Close some, or try again later.",
        sandbox=sandbox,
    )
