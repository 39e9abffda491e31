"""A service for tests of previews, run inside a sandbox with nothing but Python: a path for each thing that HTTP does.

It speaks the protocol by hand, so that it can also do what no library does: stall, die, answer twice, lie.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import struct
import sys

MIB = bytes(2**20)
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n"


class Visit:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self.reader, self.writer, self.head = reader, writer, head
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = lines[0].split(" ")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        self.path, _, self.query = self.target.partition("?")

    async def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))
        await self.writer.drain()

    async def answer(self, body: bytes, *headers: bytes, status: bytes = b"200 OK") -> None:
        lines = (b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers, b"", b"")
        await self.send(b"\r\n".join(lines), b"" if self.method == "HEAD" else body)

    async def body(self) -> tuple[int, bytes]:
        """How many bytes it has, and the trailers."""
        if "transfer-encoding" not in self.headers:
            left = int(self.headers.get("content-length", 0))
            size = left
            while left:
                left -= len(await self.reader.read(min(left, 2**20)))
            return size, b""
        size = 0
        while count := int((await self.reader.readline()).split(b";")[0], 16):
            await self.reader.readexactly(count + 2)
            size += count
        trailers = b""
        while (line := await self.reader.readline()) != b"\r\n":
            trailers += line
        return size, trailers


async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            one = Visit(reader, writer, await reader.readuntil(b"\r\n\r\n"))
            await PATHS.get(one.path, say_head)(one)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def say_head(one: Visit) -> None:
    await one.answer(one.head)


async def page(one: Visit) -> None:
    await one.answer(b"hello", b"Content-Type: text/plain")


async def html(one: Visit) -> None:
    page = (
        b"<title>vite-like</title><h1 id=s>loading</h1><script>"
        b"document.cookie = 'here=1';"
        b"const socket = new WebSocket(location.origin.replace('http', 'ws') + '/socket');"
        b"socket.onopen = () => socket.send('ping');"
        b"socket.onmessage = (said) => { document.getElementById('s').textContent ="
        b" 'heard ' + said.data + ', cookies ' + document.cookie; };"
        b"</script>"
    )
    await one.answer(page, b"Content-Type: text/html", b"Set-Cookie: served=2; Path=/")


async def count(one: Visit) -> None:
    if "100-continue" in one.headers.get("expect", ""):
        await one.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    size, trailers = await one.body()
    await one.answer(b"%d %b" % (size, trailers))


async def large(one: Visit) -> None:
    """As many MiB as the query says."""
    await one.send(OK, b"Content-Length: %d\r\n\r\n" % (int(one.query) * 2**20))
    for _ in range(int(one.query)):
        await one.send(MIB)


async def ticks(one: Visit) -> None:
    await one.send(CHUNKED, b"Content-Type: text/event-stream\r\n\r\n")
    for number in range(3):
        event = b"data: %d\n\n" % number
        await one.send(b"%x\r\n%b\r\n" % (len(event), event))
        await one.reader.read(1) if one.query == "wait" else await asyncio.sleep(0.05)
    await one.send(b"0\r\n\r\n")


async def trailer(one: Visit) -> None:
    await one.send(CHUNKED, b"Trailer: X-Sum\r\n\r\n", b"3\r\nabc\r\n0\r\nX-Sum: 6\r\nTransfer-Encoding: evil\r\n\r\n")


async def hints(one: Visit) -> None:
    await one.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n")
    await one.answer(b"after")


async def redirect(one: Visit) -> None:
    await one.answer(b"", b"Location: ../elsewhere?a=1", status=b"302 Found")


async def until_close(one: Visit) -> None:
    await one.send(b"HTTP/1.0 200 OK\r\n\r\nas long as it lasts")
    raise ConnectionError


async def dies(one: Visit) -> None:
    await one.send(OK, b"Content-Length: 1000\r\n\r\nfirst words")
    raise ConnectionError


async def silent(one: Visit) -> None:
    raise ConnectionError


async def twice(one: Visit) -> None:
    await one.send(OK, b"Content-Length: 1\r\n\r\na", OK, b"Content-Length: 6\r\n\r\nforged")


async def two_lengths(one: Visit) -> None:
    await one.send(CHUNKED, b"Content-Length: 3\r\n\r\n0\r\n\r\n")


async def endless_head(one: Visit) -> None:
    await one.send(OK)
    while True:
        await one.send(b"X-More: " + b"a" * 4096 + b"\r\n")


async def policy(one: Visit) -> None:
    await one.answer(b"", b"Referrer-Policy: unsafe-url", b"Connection: keep-alive, X-Secret", b"X-Secret: 1")


async def switches(one: Visit) -> None:
    await one.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nraw")


async def socket(one: Visit) -> None:
    """A WebSocket that says what it hears."""
    key = base64.b64encode(hashlib.sha1(one.headers["sec-websocket-key"].encode() + GUID).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "
    await one.send(head, key, b"\r\n\r\n")
    while True:
        first, length = await one.reader.readexactly(2)
        length &= 0x7F
        if length > 125:
            size = 2 if length == 126 else 8
            length = int.from_bytes(await one.reader.readexactly(size), "big")
        mask = await one.reader.readexactly(4)
        data = await one.reader.readexactly(length)
        if mask != bytes(4):
            repeated = int.from_bytes((mask * (length // 4 + 1))[:length], "big")
            data = (int.from_bytes(data, "big") ^ repeated).to_bytes(length, "big")
        sizes = struct.pack("!B", length) if length < 126 else struct.pack("!BQ", 127, length)
        await one.send(bytes((first,)), sizes, data)
        if first & 0xF == 8:
            raise ConnectionError


PATHS = {
    "/page": page,
    "/html": html,
    "/count": count,
    "/large": large,
    "/ticks": ticks,
    "/trailer": trailer,
    "/hints": hints,
    "/deep/redirect": redirect,
    "/until-close": until_close,
    "/dies": dies,
    "/silent": silent,
    "/twice": twice,
    "/two-lengths": two_lengths,
    "/endless-head": endless_head,
    "/policy": policy,
    "/switches": switches,
    "/socket": socket,
}


async def main(host: str, port: int) -> None:
    server = await asyncio.start_server(visit, host, port, backlog=512, limit=2**20)
    print("listening", os.getpid(), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
