"""A small world in a network namespace of its own, for tests of the gateway. Only tests/lab.py starts it, as

    python -I tests/lab_world.py CERTIFICATE

It serves on every address it has, tells of each connection, and answers questions of DNS by a table. Orders come as
lines of JSON on standard input, answers go to standard output.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
import sys
from ipaddress import ip_address
from typing import Any

HTTP, TLS, BANNER, ECHO, SINK, SOURCE, DNS, PROXY, SOCKS = 80, 443, 22, 7, 9, 19, 53, 3128, 1080
CHUNK = b"x" * 65_536


class World:
    def __init__(self) -> None:
        self.names: dict[str, list[list[str]]] = {}  # each question gets the next list, the last one again and again
        self.asked: list[str] = []
        self.met: list[list[Any]] = []  # address, port, what was said first

    async def serve(self, certificate: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        for port, answer in (
            (HTTP, self.http),
            (8_000, self.http),
            (BANNER, self.banner),
            (ECHO, self.echo),
            (SINK, self.sink),
            (SOURCE, self.source),
            (PROXY, self.proxy),
            (SOCKS, self.socks),
            (DNS, self.dns_at_length),
        ):
            await asyncio.start_server(answer, "0.0.0.0", port, backlog=1_024)
        await asyncio.start_server(self.http, "0.0.0.0", TLS, ssl=context)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: Questions(self), ("0.0.0.0", DNS))

    def meet(self, writer: asyncio.StreamWriter, said: str = "") -> str:
        address, port = writer.get_extra_info("sockname")[:2]
        self.met.append([address, port, said])
        return str(address)

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = self.meet(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.met[-1][2] = head.split(b"\r\n")[0].decode(errors="replace")
                body = f"this is {address}\n".encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        writer.close()

    async def banner(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"SSH-2.0-{self.meet(writer)}\r\n".encode())
        await reader.read()
        writer.close()

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.meet(writer)
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            pass
        writer.close()

    async def sink(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.meet(writer)
        count = 0
        while data := await reader.read(1 << 20):
            count += len(data)
        writer.write(str(count).encode())
        writer.close()

    async def source(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As many bytes as the first line says; without one, for ever."""
        self.meet(writer)
        try:
            left = int(await reader.readline() or 1 << 60)
            while left > 0:
                writer.write(CHUNK[:left])
                left -= len(CHUNK)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Says what it was asked for, as if it were there."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.meet(writer, head)
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\nby the proxy\n")
        await reader.read()
        writer.close()

    async def socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, count = await reader.readexactly(2)
        await reader.readexactly(count)
        writer.write(b"\5\0")
        _, _, _, kind = await reader.readexactly(4)
        name = await reader.readexactly((await reader.readexactly(1))[0] if kind == 3 else 4)
        (port,) = struct.unpack("!H", await reader.readexactly(2))
        self.meet(writer, f"{name.decode('latin-1')}:{port}")
        writer.write(b"\5\0\0\1\0\0\0\0\0\0by the proxy\n")
        await reader.read()
        writer.close()

    async def dns_at_length(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        answer = self.answer(message, may_be_long=True)
        writer.write(len(answer).to_bytes(2) + answer)
        writer.close()

    def answer(self, message: bytes, *, may_be_long: bool = False) -> bytes:
        labels, at = [], 12
        while size := message[at]:
            labels.append(message[at + 1 : at + 1 + size].decode("latin-1"))
            at += 1 + size
        name, (kind,) = ".".join(labels).lower(), struct.unpack_from("!H", message, at + 1)
        self.asked.append(f"{name} {kind}")
        question = message[12 : at + 5]
        lists = self.names.get(name)
        if lists is None:
            return message[:2] + struct.pack("!HHHHH", 0x8183, 1, 0, 0, 0) + question
        version = 4 if kind == 1 else 6
        found = [address for text in lists[0] if (address := ip_address(text)).version == version]
        if len(lists) > 1:
            lists.pop(0)
        if len(found) > 20 and not may_be_long:
            return message[:2] + struct.pack("!HHHHH", 0x8380, 1, 0, 0, 0) + question
        records = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(address.packed)) + address.packed for address in found
        )
        return message[:2] + struct.pack("!HHHHH", 0x8180, 1, len(found), 0, 0) + question + records


class Questions(asyncio.DatagramProtocol):
    def __init__(self, world: World) -> None:
        self.world = world

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, asker: Any) -> None:
        self.transport.sendto(self.world.answer(data), asker)  # type: ignore[attr-defined]


async def main() -> None:
    world = World()
    await world.serve(sys.argv[1])
    print(json.dumps("ready"), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        world.names.update(order.get("names", {}))
        print(json.dumps({"met": world.met, "asked": world.asked}), flush=True)
        if order.get("forget"):
            world.met, world.asked = [], []


if __name__ == "__main__":
    asyncio.run(main())
