"""The doorway of a sandbox: what arrives at its two listeners, judged, and led on or turned away.

1. What a connection was meant for, the kernel says. A synthetic address stands for the name that the sandbox asked for;
   one that stands for none, or that is not the gateway's to serve, leads nowhere.
2. The name is judged, then looked up once; each address that comes of that is judged; one that passes is connected to.
3. What the client says first is looked at: over TLS it must ask for the same name.
4. A policy that changes is asked again about all that is open.
5. Nothing is answered from outside to a question of DNS: it is a name that may be asked for, or it is none.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, ip_address

from atoll.network import dns
from atoll.network.addresses import SYNTHETIC, Address
from atoll.network.attempts import Attempt, Attempts
from atoll.network.client_hello import BadHello, Hello, Incomplete, read_hello
from atoll.network.names import Names
from atoll.network.outlet import NotReached, Outlet
from atoll.network.policy import NO_RULE, Judgement, Policy
from atoll.network.relay import RESET, Look, Relay
from atoll.network.resolver import NoAddress
from atoll.network.turnstile import READ, Turnstile
from atoll.protocol.network import Verdict, is_name

MAX_OPEN = 512  # connections of one sandbox
MAX_LOOKUPS = 16  # of one sandbox, under way at a time
ACCEPTED_AT_ONCE, QUESTIONS_AT_ONCE = 8, 16
HELLO_SECONDS = 10.0  # for the rest of a first message that was begun
TO_LIVE_SECONDS = 30  # of our answers
ACCEPT_PAUSE_SECONDS = 0.1  # when there is no descriptor left
_SO_ORIGINAL_DST = 80
_ORIGINAL = struct.Struct("!HH4s8x")
_LOCALHOST = IPv4Address("127.0.0.1")
TOO_MANY = Judgement(False, f"{MAX_OPEN} connections at a time", "so many are open")
NAMELESS = Judgement(False, NO_RULE, "no name was asked for that this address stands for")
NOT_SERVED = Judgement(False, "never allowed", "it is the gateway's own address")


NOT_READ = "TLS must begin as TLS does"


@dataclass
class _Open:
    """A connection that is open; what was asked for over TLS, if anything was yet."""

    relay: Relay
    server_name: str | None = None
    is_timed: bool = False


class Doorway:
    def __init__(
        self,
        hostname: str,
        policy: Policy,
        listeners: tuple[socket.socket, socket.socket],
        outlet: Outlet,
        on_change: Callable[[], None],
    ) -> None:
        tcp, questions = listeners
        self.attempts = Attempts(on_change)
        self._own_names = {"localhost": _LOCALHOST, hostname: _LOCALHOST, f"{hostname}.local": _LOCALHOST}
        self._policy, self._outlet = policy, outlet
        self._tcp, self._questions = tcp, questions
        self._gateway = ip_address(tcp.getsockname()[0])
        self._loop = asyncio.get_running_loop()
        self._names = Names()
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._turnstile = Turnstile(self._loop)
        self._under_way: set[asyncio.Task[None]] = set()
        self._open: dict[Attempt, _Open] = {}
        for listener in (tcp, questions):
            listener.setblocking(False)
        self._listen()
        self._turnstile.watch(questions, READ, self._on_question)

    def _listen(self) -> None:
        if self._tcp.fileno() >= 0:
            self._turnstile.watch(self._tcp, READ, self._on_connection)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        for opened in list(self._open.values()):
            opened.relay.reset()
        for listener in (self._tcp, self._questions):
            self._turnstile.forget(listener)
            listener.close()
        self._turnstile.close()

    def change(self, policy: Policy) -> None:
        self._policy = policy
        for attempt, opened in list(self._open.items()):
            if denied := self._judge_again(attempt, opened.server_name):
                self._break(opened.relay, attempt, denied)

    def _judge_again(self, attempt: Attempt, asked: str | None) -> Judgement | None:
        found: Judgement | None
        address = ip_address(attempt.address) if attempt.address else None
        if attempt.name:
            found = self._policy.judge_name(attempt.name, attempt.port)
            if found.is_allowed and address:
                found = self._policy.judge_resolved(address, attempt.port)
        else:
            assert address
            found = self._policy.judge_address(address, attempt.port)
        if found.is_allowed:
            found = self._policy.judge_server_name(attempt.name, asked, attempt.port) if asked else None
        return found and Judgement(False, found.rule, found.detail or "the policy changed")

    def _break(self, relay: Relay, attempt: Attempt, denied: Judgement) -> None:
        self.attempts.end(attempt, Verdict.DENIED, denied)
        relay.reset()

    def note_progress(self) -> None:
        """Of what is open, so that it can be told."""
        for attempt, opened in self._open.items():
            if (attempt.sent, attempt.received) != (opened.relay.sent, opened.relay.received):
                attempt.sent, attempt.received = opened.relay.sent, opened.relay.received
                self.attempts.note(attempt)

    # Questions.

    def _on_question(self, ready: int) -> None:
        for _ in range(QUESTIONS_AT_ONCE):
            try:
                message, asker = self._questions.recvfrom(dns.MAX_MESSAGE)
            except OSError:
                return
            if answer := self._answer(message):
                with suppress(OSError):
                    self._questions.sendto(answer, asker)

    def _answer(self, message: bytes) -> bytes | None:
        try:
            question = dns.read_question(message)
        except dns.BadMessage:
            return dns.refusal(message)
        if not dns.is_query(question):
            return dns.answer(question, dns.Result.NOT_IMPLEMENTED)
        if question.cls not in (dns.INTERNET, dns.ANY_CLASS) or not is_name(question.name):
            return dns.answer(question, dns.Result.NO_NAME)
        wants_address = question.type in (dns.Type.A, dns.Type.ANY)
        if own := self._own_names.get(question.name):
            return dns.answer(question, dns.Result.DONE, (own,) if wants_address else ())
        found = self._policy.is_asked_for(question.name)
        if not found.is_allowed:
            self.attempts.end(self.attempts.begin(question.name, "", 0), Verdict.DENIED, found)
            return dns.answer(question, dns.Result.NO_NAME)
        addresses = (self._names.address_of(question.name),) if wants_address else ()
        return dns.answer(question, dns.Result.DONE, addresses, TO_LIVE_SECONDS)

    async def _answer_at_length(self, peer: socket.socket) -> None:
        """Questions over TCP: what some ask when they want much, or trust UDP little."""
        async with asyncio.timeout(HELLO_SECONDS):
            while message := await _take_message(self._loop, peer):
                answer = self._answer(message) or b""
                await self._loop.sock_sendall(peer, len(answer).to_bytes(2) + answer)

    # Connections.

    def _on_connection(self, ready: int) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                peer, _ = self._tcp.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:  # no descriptor left: others end meanwhile
                self._turnstile.forget(self._tcp)
                self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._listen)
                return
            self._take(peer)

    def _take(self, peer: socket.socket) -> None:
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address, port = original_destination(peer)
        except OSError:  # it is gone already
            peer.close()
            return
        if len(self._under_way) + len(self._open) >= MAX_OPEN:
            attempt = self.attempts.begin(self._name_at(address) or "", str(address), port)
            self.attempts.end(attempt, Verdict.DENIED, TOO_MANY)
            reset(peer)
            return
        task = self._loop.create_task(self._serve(peer, address, port))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _serve(self, peer: socket.socket, address: IPv4Address, port: int) -> None:
        with ExitStack() as undo:
            undo.callback(reset, peer)  # so that it learns at once of its end
            if port == dns.PORT:
                with suppress(OSError, TimeoutError):
                    await self._answer_at_length(peer)
                return
            if address == self._gateway:
                self._end_denied("", str(address), port, NOT_SERVED)
                return
            name = self._name_at(address)
            attempt = self.attempts.begin(name or "", "" if name else str(address), port)
            if name is None and address in SYNTHETIC:
                self.attempts.end(attempt, Verdict.DENIED, NAMELESS)
                return
            try:
                outer = await self._reach(attempt, name, address)
            except (NotReached, NoAddress, OSError) as cause:
                self.attempts.end(attempt, Verdict.FAILED, Judgement(False, "", str(cause)[:200]))
                return
            if outer:
                undo.pop_all()
                self._relay(attempt, peer, outer)

    def _name_at(self, address: IPv4Address) -> str | None:
        return self._names.name_of(address) if address in SYNTHETIC else None

    def _end_denied(self, name: str, address: str, port: int, judgement: Judgement) -> None:
        self.attempts.end(self.attempts.begin(name, address, port), Verdict.DENIED, judgement)

    async def _reach(self, attempt: Attempt, name: str | None, address: Address) -> socket.socket | None:
        """A connection; None if it is denied, which is noted."""
        if name is None:
            found = self._policy.judge_address(address, attempt.port, is_own=self._outlet.is_own(address))
            return await self._connect(attempt, found, address)
        found = self._policy.judge_name(name, attempt.port)
        if not found.is_allowed:
            self.attempts.end(attempt, Verdict.DENIED, found)
            return None
        attempt.rule = found.rule
        if self._outlet.uses_proxy(name):
            return await self._outlet.connect_by_proxy(name, attempt.port)
        async with self._lookups:
            addresses = await self._outlet.resolver.addresses_of(name)
        return await self._connect_to_any(attempt, addresses)

    async def _connect_to_any(self, attempt: Attempt, addresses: tuple[Address, ...]) -> socket.socket | None:
        """The first that may be reached, and is. What was judged is what is connected to."""
        denied, failed = None, None
        for address in addresses:
            is_own = self._outlet.is_own(address)
            found = self._policy.judge_resolved(address, attempt.port, is_own=is_own)
            attempt.address = str(address)
            if not found.is_allowed:
                denied = found
                continue
            try:
                return await self._outlet.connect(address, attempt.port, is_last=address == addresses[-1])
            except NotReached as cause:
                failed = cause
        if failed:
            raise failed
        self.attempts.end(attempt, Verdict.DENIED, denied)
        return None

    async def _connect(self, attempt: Attempt, found: Judgement, address: Address) -> socket.socket | None:
        if not found.is_allowed:
            self.attempts.end(attempt, Verdict.DENIED, found)
            return None
        attempt.rule = found.rule
        if self._outlet.uses_proxy(str(address)):
            return await self._outlet.connect_by_proxy(str(address), attempt.port)
        return await self._outlet.connect(address, attempt.port)

    def _relay(self, attempt: Attempt, inner: socket.socket, outer: socket.socket) -> None:
        relay = Relay(
            self._turnstile, inner, outer, partial(self._look, attempt), on_end=partial(self._on_end, attempt)
        )
        self._open[attempt] = _Open(relay)
        self.attempts.note(attempt)
        if denied := self._judge_again(attempt, None):  # the policy may have changed while it was connected
            self._break(relay, attempt, denied)

    def _look(self, attempt: Attempt, said: bytearray) -> Look:
        """Judge what a client says first."""
        try:
            hello = read_hello(said)
        except BadHello as cause:
            denied: Judgement | None = Judgement(False, NOT_READ, str(cause))
        else:
            if hello is Incomplete.INCOMPLETE:
                if not self._open[attempt].is_timed:
                    self._open[attempt].is_timed = True
                    self._loop.call_later(HELLO_SECONDS, self._end_undecided, attempt)
                return Look.MORE
            if not isinstance(hello, Hello):
                return Look.PASS
            self._open[attempt].server_name = hello.server_name
            denied = self._policy.judge_server_name(attempt.name, hello.server_name, attempt.port)
        if denied:
            self.attempts.end(attempt, Verdict.DENIED, denied)
            return Look.REFUSE
        return Look.PASS

    def _end_undecided(self, attempt: Attempt) -> None:
        opened = self._open.get(attempt)
        if opened and opened.relay.is_undecided:
            late = Judgement(False, NOT_READ, f"its first message took over {HELLO_SECONDS:g} seconds")
            self._break(opened.relay, attempt, late)

    def _on_end(self, attempt: Attempt) -> None:
        relay = self._open.pop(attempt).relay
        attempt.sent, attempt.received = relay.sent, relay.received
        if attempt.ended is None:
            self.attempts.end(attempt)
        else:
            self.attempts.note(attempt)


def reset(peer: socket.socket) -> None:
    with suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    peer.close()


def original_destination(peer: socket.socket) -> tuple[IPv4Address, int]:
    """Where it was meant for before the sandbox's rules led it here."""
    _, port, address = _ORIGINAL.unpack(peer.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, _ORIGINAL.size))
    return IPv4Address(address), port


async def _take_message(loop: asyncio.AbstractEventLoop, peer: socket.socket) -> bytes:
    """A message with its length before it; empty at the end."""
    data = b""
    while len(data) < 2 or len(data) < 2 + int.from_bytes(data[:2]):
        wanted = 2 - len(data) if len(data) < 2 else 2 + int.from_bytes(data[:2]) - len(data)
        more = await loop.sock_recv(peer, wanted)
        if not more:
            return b""
        data += more
    return data[2:]
