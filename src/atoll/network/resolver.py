"""The resolver: asks the host's name servers where names lead, without blocking, and remembers it for a moment.

Only DNS is asked. The C library would also take `0x7f000001` and `127.1` for addresses, and needs threads.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import OrderedDict
from contextlib import suppress
from ipaddress import ip_address

from atoll.network import dns
from atoll.network.addresses import Address

DNS_PORT = 53
ANSWER_SECONDS, ATTEMPTS = 2.0, 3
MOST_SECONDS, NEGATIVE_SECONDS = 60, 2
MAX_REMEMBERED = 4_096
MAX_QUESTIONS = 256  # under way at a time
MAX_ADDRESSES = 8

Server = tuple[str, int]


class NoAddress(Exception):
    """A name leads nowhere, or nobody says where."""


class Resolver:
    def __init__(self, servers: list[str]) -> None:
        self._servers = [read_server(server) for server in servers]
        self._known: OrderedDict[str, tuple[float, tuple[Address, ...]]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[tuple[Address, ...]]] = {}
        self._places = asyncio.Semaphore(MAX_QUESTIONS)

    async def addresses_of(self, name: str) -> tuple[Address, ...]:
        """At least one; those of version 4, or if there are none, of 6."""
        found = self._recall(name)
        if found is None:
            task = self._asking.get(name)
            if task is None:
                task = self._asking[name] = asyncio.create_task(self._find(name))
                task.add_done_callback(lambda _: self._asking.pop(name))
            found = await asyncio.shield(task)
        if not found:
            raise NoAddress(f"no name server knows {name}")
        return found

    def _recall(self, name: str) -> tuple[Address, ...] | None:
        until, found = self._known.get(name, (0.0, ()))
        return found if until > asyncio.get_running_loop().time() else None

    async def _find(self, name: str) -> tuple[Address, ...]:
        async with self._places:
            said = await self._ask(name, dns.Type.A)
            if not said.addresses and said.result == dns.Result.DONE:
                said = await self._ask(name, dns.Type.AAAA)
        seconds = min(said.seconds, MOST_SECONDS) if said.addresses else NEGATIVE_SECONDS
        self._known[name] = (asyncio.get_running_loop().time() + seconds, said.addresses[:MAX_ADDRESSES])
        self._known.move_to_end(name)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return self._known[name][1]

    async def _ask(self, name: str, kind: dns.Type) -> dns.Answer:
        """Ask one server after the other, some times; an answer that names a failure is none."""
        if not self._servers:
            raise NoAddress("this host has no name server")
        for _ in range(ATTEMPTS):
            for server in self._servers:
                with suppress(OSError, TimeoutError, dns.BadMessage):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        said = await self._ask_server(server, name, kind)
                    if said.result in (dns.Result.DONE, dns.Result.NO_NAME):
                        return said
        raise NoAddress(f"no name server answers for {name}")

    async def _ask_server(self, server: Server, name: str, kind: dns.Type) -> dns.Answer:
        question = dns.ask(secrets.randbelow(1 << 16), name, kind)
        loop = asyncio.get_running_loop()
        with socket.socket(family_of(server[0]), socket.SOCK_DGRAM) as peer:
            peer.setblocking(False)
            peer.connect(server)  # from a port that nobody can guess, and only that server's answers come in
            peer.send(question)
            while True:
                message = await loop.sock_recv(peer, dns.MAX_MESSAGE)
                with suppress(dns.BadMessage):
                    said = dns.read_answer(message, question)
                    break
        return await self._ask_at_length(server, question) if said.is_truncated else said

    async def _ask_at_length(self, server: Server, question: bytes) -> dns.Answer:
        """Over TCP: the answer did not fit into a datagram."""
        loop = asyncio.get_running_loop()
        with socket.socket(family_of(server[0]), socket.SOCK_STREAM) as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, server)
            await loop.sock_sendall(peer, len(question).to_bytes(2) + question)
            message = b""
            while len(message) < 2 or len(message) < 2 + int.from_bytes(message[:2]):
                if not (data := await loop.sock_recv(peer, dns.MAX_MESSAGE + 2 - len(message))):
                    raise dns.BadMessage("it is cut short")
                message += data
            return dns.read_answer(message[2:], question)


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def read_server(text: str) -> Server:
    """`10.0.0.53`, `10.0.0.53:5353`, `fd00::53` or `[fd00::53]:5353`. ValueError if it is none of these."""
    address, _, port = text.rpartition(":")
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif not address or ":" in address:
        address, port = text, ""
    number = int(port or DNS_PORT)
    if not 0 < number < 65_536:
        raise ValueError(f"{port} is no port")
    return str(ip_address(address)), number
