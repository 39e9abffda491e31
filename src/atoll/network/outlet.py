"""The outlet: connections from this machine to whom a sandbox may reach, straight or by the operator's proxy."""

from __future__ import annotations

import asyncio
import os
import socket
from base64 import b64encode
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, unquote, urlsplit

from atoll.network.addresses import Address, Network
from atoll.network.control import Upstream
from atoll.network.resolver import Resolver, family_of

CONNECT_SECONDS, ONE_OF_MANY_SECONDS = 30.0, 3.0
MAX_HEAD = 8_192  # of a proxy's answer
_ANY_PORT = 9  # nothing is sent
_SOCKS, _NO_LOGIN, _PASSWORD, _CONNECT, _NAME, _V4, _V6 = 5, 0, 2, 1, 3, 1, 4


class NotReached(Exception):
    """The reason in words why nobody was reached."""


class Outlet:
    def __init__(self, upstream: Upstream) -> None:
        self.resolver = Resolver(upstream.name_servers)
        self.counted = tuple(map(ip_network, upstream.counted))
        self.refused = tuple(map(ip_network, upstream.refused))
        self._proxy = urlsplit(upstream.proxy) if upstream.proxy else None
        self._direct = [text.lower().lstrip("*.") for text in upstream.direct]

    def uses_proxy(self, host: str) -> bool:
        return self._proxy is not None and not any(_is_covered(host, rule) for rule in self._direct)

    @staticmethod
    def is_own(address: Address) -> bool:
        """Whether it is one of this host's: what is sent there would come from there. Nothing is sent."""
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as peer:
            try:
                peer.connect((str(address), _ANY_PORT))
            except OSError:  # no way there
                return False
            return ip_address(peer.getsockname()[0].partition("%")[0]) == address

    async def connect(self, address: Address, port: int, *, is_last: bool = True) -> socket.socket:
        """If it is not the last that may be tried, it has less time to answer."""
        return await _connected((str(address), port), CONNECT_SECONDS if is_last else ONE_OF_MANY_SECONDS)

    async def connect_by_proxy(self, host: str, port: int) -> socket.socket:
        """To a name, which the proxy looks up; or to an address."""
        assert self._proxy
        peer = await _connected(await self._place_of(self._proxy))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self._proxy.scheme.startswith("socks"):
                    await _ask_socks(peer, self._proxy, host, port)
                else:
                    await _ask_http(peer, self._proxy, host, port)
        except (OSError, NotReached, TimeoutError) as cause:
            peer.close()
            raise NotReached(f"the proxy did not connect: {cause}") from cause
        except BaseException:
            peer.close()
            raise
        return peer

    async def _place_of(self, proxy: SplitResult) -> tuple[str, int]:
        host = proxy.hostname or ""
        port = proxy.port or (1080 if proxy.scheme.startswith("socks") else 80)
        try:
            return str(ip_address(host)), port
        except ValueError:
            return str((await self.resolver.addresses_of(host))[0]), port


async def _connected(place: tuple[str, int], seconds: float = CONNECT_SECONDS) -> socket.socket:
    peer = socket.socket(family_of(place[0]), socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(peer, place)
    except (OSError, TimeoutError) as cause:
        peer.close()
        raise NotReached(os.strerror(cause.errno) if cause.errno else "nobody answered in time") from cause
    except BaseException:
        peer.close()
        raise
    return peer


async def _ask_http(peer: socket.socket, proxy: SplitResult, host: str, port: int) -> None:
    """RFC 9110, CONNECT. Nothing of the sandbox's is in it but a name that was checked, and a port."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    head = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n"
    if proxy.username:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        head += f"Proxy-Authorization: Basic {b64encode(login).decode()}\r\n"
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(peer, f"{head}\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):  # a byte at a time: what follows is not ours
        data = await loop.sock_recv(peer, 1)
        if not data or len(answer) == MAX_HEAD:
            raise NotReached("it ended in the middle of its answer")
        answer += data
    words = answer.split(b"\r\n", 1)[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or words[1] != b"200":
        raise NotReached(answer.split(b"\r\n", 1)[0].decode(errors="replace")[:200])


async def _ask_socks(peer: socket.socket, proxy: SplitResult, host: str, port: int) -> None:
    """RFC 1928 and 1929."""
    loop = asyncio.get_running_loop()
    methods = [_PASSWORD] if proxy.username else [_NO_LOGIN]
    await loop.sock_sendall(peer, bytes([_SOCKS, len(methods), *methods]))
    version, method = await _take(peer, 2)
    if version != _SOCKS or method not in methods:
        raise NotReached("it takes no such login")
    if proxy.username:
        login = [unquote(text).encode()[:255] for text in (proxy.username, proxy.password or "")]
        await loop.sock_sendall(peer, b"\1" + b"".join(bytes([len(text)]) + text for text in login))
        if (await _take(peer, 2))[1]:
            raise NotReached("it refuses the login")
    try:
        address = ip_address(host)
        target = bytes([_V4 if address.version == 4 else _V6]) + address.packed
    except ValueError:
        target = bytes([_NAME, len(host)]) + host.encode()
    await loop.sock_sendall(peer, bytes([_SOCKS, _CONNECT, 0]) + target + port.to_bytes(2))
    _, result, _, kind = await _take(peer, 4)
    if result:
        raise NotReached(f"it says {result}")
    length = {_V4: 4, _V6: 16}.get(kind) or (await _take(peer, 1))[0]
    await _take(peer, length + 2)


async def _take(peer: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        data = await asyncio.get_running_loop().sock_recv(peer, count - len(taken))
        if not data:
            raise NotReached("it ended in the middle of its answer")
        taken += data
    return taken


def _is_covered(host: str, rule: str) -> bool:
    """As programs read no_proxy: a name with all below it, an address, or a range of them."""
    try:
        network: Network = ip_network(rule)
        return ip_address(host) in network
    except ValueError:
        return bool(rule) and (host == rule or host.endswith(f".{rule}"))
