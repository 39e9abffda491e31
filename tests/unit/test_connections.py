"""Connections of clients that nobody knows: what they may make the server keep, and for how long."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from atoll.server import connections
from atoll.server.connections import MAX_HEAD, ClientConnection, ClientWebSocket
from atoll.server.run import listen_on_port

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
HANG_SECONDS = 30.0

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen_on_port("127.0.0.1", 0) as listener:
        yield listener


@pytest.fixture
async def state(listener: socket.socket) -> AsyncIterator[ServerState]:
    """Of a server that is all connections, and answers whoever comes with `hello`."""
    config, state = (
        uvicorn.Config(PlainTextResponse("hello"), ws=ClientWebSocket, log_config=None, timeout_keep_alive=3600),
        ServerState(),
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(config, state, {}), sock=listener)
    yield state
    server.close()
    await server.wait_closed()


@pytest.fixture
async def client(listener: socket.socket, state: ServerState) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    yield reader, writer
    writer.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """To the end, which may be a reset."""
    data = b""
    async with asyncio.timeout(HANG_SECONDS):
        try:
            while chunk := await reader.read(65_536):
                data += chunk
        except ConnectionResetError:
            pass
    return data


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\nx: ", id="one header without an end"),
        pytest.param(b"GET /", id="a path without an end"),
        pytest.param(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", id="what follows a body"),
    ],
)
async def test_a_head_without_an_end_is_refused(client: Client, head: bytes) -> None:
    reader, writer = client
    writer.write(head + b"a" * 10 * MAX_HEAD)
    assert b"HEAD_TOO_LARGE" in await read_all(reader)


async def test_many_short_headers_are_refused_as_well(client: Client) -> None:
    reader, writer = client
    writer.write(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * MAX_HEAD)
    assert b" 431 " in await read_all(reader)


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_whole_head_that_is_too_large_is_refused(client: Client, pieces: int) -> None:
    reader, writer = client
    request = b"GET / HTTP/1.1\r\nx: %b\r\n\r\n" % (b"a" * MAX_HEAD)
    size = len(request) // pieces + 1
    for start in range(0, len(request), size):
        writer.write(request[start : start + size])
        await writer.drain()
        await asyncio.sleep(0.05)  # for the server to have it in as many pieces; it must hold in one as well
    said = await read_all(reader)
    assert b"HEAD_TOO_LARGE" in said
    assert b"hello" not in said


@pytest.mark.parametrize("sent", [b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
async def test_what_is_no_http_is_told_so_as_any_other_error(client: Client, sent: bytes) -> None:
    reader, writer = client
    writer.write(sent)
    head, _, body = (await read_all(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    problem = json.loads(body)
    assert problem["code"] == "INVALID_REQUEST"
    assert problem["remedy"]


async def test_what_is_within_bounds_is_answered_again_and_again(client: Client) -> None:
    reader, writer = client
    large = b"POST / HTTP/1.1\r\nx: %b\r\ncontent-length: %d\r\n\r\n" % (b"a" * (MAX_HEAD - 100), 10 * MAX_HEAD)
    for request in (REQUEST, large + bytes(10 * MAX_HEAD), REQUEST):
        writer.write(request)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n", b"\r\n"])
async def test_who_sends_no_whole_request_is_cut_off(
    listener: socket.socket, state: ServerState, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(sent)
    assert await read_all(reader) == b""
    writer.close()


async def test_who_sends_half_a_request_after_a_whole_one_is_cut_off(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = client
    writer.write(REQUEST)
    await reader.readuntil(b"hello")
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    writer.write(b"GET")
    assert await read_all(reader) == b""


async def test_one_connection_too_many_is_told_so(
    client: Client, listener: socket.socket, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    client[1].write(REQUEST)
    await client[0].readuntil(b"hello")  # so it is there
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    assert b"TOO_MANY_CONNECTIONS" in await read_all(reader)
    writer.close()
    client[1].write(REQUEST)
    await client[0].readuntil(b"hello")


async def test_requests_that_wait_for_no_answer_are_few(client: Client) -> None:
    reader, writer = client
    writer.write(REQUEST * 10_000)
    assert (await read_all(reader)).count(b"hello") < 100


async def test_a_connection_that_becomes_a_websocket_leaves_no_watch_behind(client: Client) -> None:
    reader, writer = client
    before = count_watches()
    size = 10 * 2**20
    writer.write(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))
    await reader.readuntil(b"hello")
    assert count_watches() == before + 1
    key = b"sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n" + key + b"\r\n")
    assert b"hello" in await read_all(reader)
    assert count_watches() == before


def count_watches() -> int:
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return targets.count("anon_inode:[eventpoll]")


async def test_a_client_whose_machine_is_gone_is_given_up(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def open_halves(listener: socket.socket, number: int) -> list[Client]:
    """Clients that send half a head, which the server has read."""
    halves = [await asyncio.open_connection(*listener.getsockname()) for _ in range(number)]
    for _, writer in halves:
        writer.write(b"GET / HTTP/1.1\r\nhost: ")
    return halves


async def test_half_sent_heads_keep_nobody_out(
    listener: socket.socket, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one address, and more than there may be connections."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 200)
    halves = await open_halves(listener, 250)
    for _ in range(10):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(REQUEST)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.close()
    assert await read_all(halves[0][0]) == b""  # the oldest gave way
    assert len(state.connections) <= 200
    for _, writer in halves:
        writer.close()


async def test_connections_that_were_let_in_do_not_give_way(
    listener: socket.socket, state: ServerState, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client[1].write(REQUEST)
    await client[0].readuntil(b"hello")
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    halves = await open_halves(listener, 50)
    client[1].write(REQUEST)
    assert (await client[0].readuntil(b"hello")).startswith(b"HTTP/1.1 200")
    for _, writer in halves:
        writer.close()


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/", b"localhost", b"200"),
        (b"HTTP://LocalHost:1/?a=http://b", b"localhost:1", b"200"),
        (b"/?a=http://evil.example", b"localhost", b"200"),
        (b"http://evil.example/", b"localhost", b"400"),
        (b"http://localhost/", b"evil.example", b"400"),
        (b"http://evil.example@localhost/", b"localhost", b"400"),
        (b"http://localhost:2/", b"localhost:1", b"400"),
    ],
)
async def test_a_target_that_names_another_host_is_refused(
    client: Client, target: bytes, host: bytes, status: bytes
) -> None:
    reader, writer = client
    writer.write(b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (target, host))
    assert (await read_all(reader)).startswith(b"HTTP/1.1 %b " % status)
