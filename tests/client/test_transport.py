"""HTTP against servers that misbehave: each ends in the right error, or the right answer, and none in a hang."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import socket
import ssl
import subprocess
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.client.plumbing import transport
from atoll.protocol.errors import AtollError, ErrorCode
from tests.client.halves import AsyncHalf, Half
from tests.client.peers import JSON_OK, RawServer, answering, read_request, reset, wait_for_hang_up

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


def transport_to(half: Half, url: str, **options: Any) -> Any:
    address, _ = half.server.parse_url(url)
    return half.transport.Transport(address, **options)


async def ask(half: Half, transport: Any, **options: Any) -> bytes:
    response = await half.run(transport.request, "GET", "/v1/server", **options)
    body: bytes = await half.run(response.read)
    return body


BROKEN_ANSWERS = {
    "nothing": [],
    "half a status line": [b"HTTP/1.1 2"],
    "half a head": [OK + b"content-le"],
    "a head and no body": [OK + b"content-length: 10\r\n\r\n"],
    "less than the length it gave": [OK + b"content-length: 10\r\n\r\n12345"],
    "a length that is none": [OK + b"content-length: -1\r\n\r\n{}"],
    "two lengths": [OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}"],
    "a length and chunks": [OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"],
    "chunks without an end": [CHUNKED + b"2\r\n{}\r\n"],
    "half a chunk": [CHUNKED + b"5\r\n{}"],
    "a chunk size that is none": [CHUNKED + b"zz\r\n{}\r\n"],
    "another protocol": [b"SSH-2.0-OpenSSH_9.2\r\n"],
    "bytes": [bytes(range(256)) * 4],
    "a switch of protocols": [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"],
    "a line without end": [OK + b"x: " + b"y" * 2**20],
    "headers without end": [OK + b"".join(b"x-%d: y\r\n" % number for number in range(100_000))],
    "early hints without end": [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 10_000],
}


@pytest.mark.parametrize("pieces", BROKEN_ANSWERS.values(), ids=BROKEN_ANSWERS.keys())
async def test_a_broken_answer_is_a_lost_server(half: Half, pieces: list[bytes]) -> None:
    with RawServer(answering(*pieces)) as server:
        with pytest.raises(ConnectionError) as caught:
            await ask(half, transport_to(half, server.url))
        assert isinstance(caught.value, AtollError)
        assert caught.value.code is ErrorCode.SERVER_LOST
        assert server.url in caught.value.message
        assert server.accepted == 1  # what was sent is never sent again


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([OK, CHUNKED, JSON_OK, b"\r\n", b"0\r\n\r\n", b"2\r\n{}\r\n"]))
)
def test_no_bytes_get_past_the_parser_but_as_an_answer_or_an_error(pieces: list[bytes]) -> None:
    answer = transport.Answer()
    try:
        for piece in pieces:
            answer.feed(piece)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade, transport.HeadTooLargeError):
        return
    assert not answer.is_complete or answer.status >= 200


@pytest.mark.parametrize("excess", [b"x", b"HTTP/1.1 200 OK\r\n", JSON_OK, JSON_OK * 2])
async def test_what_follows_an_answer_spoils_only_the_connection(half: Half, excess: bytes) -> None:
    def behave(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(JSON_OK + excess)
        wait_for_hang_up(peer)

    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        for number in range(1, 4):
            assert await ask(half, transport) == b"{}"
            assert server.accepted == number


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_an_answer_may_come_in_any_pieces(half: Half, size: int) -> None:
    whole = (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        + CHUNKED
        + b"1\r\n{\r\n0000a;extension=1\r\n          \r\n1\r\n}\r\n0\r\ntrailer: x\r\n\r\n"
    )
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    with RawServer(answering(*pieces)) as server:
        assert await ask(half, transport_to(half, server.url)) == b"{          }"


def test_a_request_that_breaks_off_in_its_body_is_noticed() -> None:
    """By the servers of these tests: one that read on for ever could not be stopped."""
    ours, theirs = socket.socketpair()
    noticed = threading.Event()

    def serve() -> None:
        with pytest.raises(ConnectionResetError):
            read_request(ours)
        noticed.set()

    with ours:
        with theirs:
            theirs.sendall(b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\nhalf")
        threading.Thread(target=serve, daemon=True).start()
        assert noticed.wait(60)


async def test_a_reset_is_a_lost_server(half: Half) -> None:
    def behave(peer: socket.socket) -> None:
        read_request(peer)
        reset(peer)

    with RawServer(behave) as server:
        with pytest.raises(ConnectionError) as caught:
            await ask(half, transport_to(half, server.url))
        assert "SERVER_LOST" in str(caught.value)


async def test_a_server_that_never_answers_is_asked_whether_it_is_there(half: Half) -> None:
    with RawServer(wait_for_hang_up) as server:
        transport = transport_to(half, server.url)
        transport.quiet_seconds = transport.probe_seconds = 0.1
        with pytest.raises(ConnectionError, match="no longer answers"):
            await ask(half, transport)
        while server.accepted < 2:  # its thread counts, when it comes to that
            await asyncio.sleep(0.01)
        assert server.accepted == 2


async def test_a_server_that_is_there_may_take_its_time(half: Half) -> None:
    asked = threading.Semaphore(0)

    def behave(peer: socket.socket) -> None:
        if b"connection: close" in read_request(peer):
            asked.release()
        else:
            for _ in range(3):
                assert asked.acquire(timeout=60)
        peer.sendall(JSON_OK)

    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        transport.quiet_seconds = 0.05
        assert await ask(half, transport) == b"{}"


async def test_a_server_that_stops_reading_does_not_hang_a_long_request(half: Half) -> None:
    def pieces() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    def behave(peer: socket.socket) -> None:
        peer.recv(10)
        released.wait()

    released = threading.Event()
    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        transport.quiet_seconds = transport.probe_seconds = 0.1
        with pytest.raises(ConnectionError, match="no longer answers"):
            await half.run(transport.request, "POST", "/", body=pieces())
        released.set()


async def test_an_answer_that_comes_before_the_request_was_read_counts(half: Half) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(1000):
            yield b"x" * 65536

    def behave(peer: socket.socket) -> None:
        peer.recv(10)
        peer.sendall(JSON_OK)
        wait_for_hang_up(peer)

    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        response = await half.run(transport.request, "POST", "/", body=pieces())
        assert await half.run(response.read) == b"{}"
        assert not transport._idle  # the rest of the request would be the next one's beginning


async def test_nobody_listening_is_said_within_seconds(half: Half, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for url in (f"http://127.0.0.1:{closed.getsockname()[1]}", f"unix://{tmp_path}/none.sock"):
            with pytest.raises(ConnectionError) as caught:
                await ask(half, transport_to(half, url))
            assert "SERVER_NOT_REACHABLE" in str(caught.value)
            assert url in str(caught.value)


async def test_a_server_that_comes_up_late_is_waited_for_a_moment(
    half: Half, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = threading.Event()

    def pauses() -> Iterator[float]:
        yield 0.0
        has_failed.set()  # twice, since another is asked for
        while True:
            yield 0.01

    monkeypatch.setattr(half.transport, "CONNECT_PAUSES", pauses())
    transport = transport_to(half, f"unix://{tmp_path}/late.sock")
    request = asyncio.create_task(ask(half, transport))
    assert await asyncio.to_thread(has_failed.wait, 60)
    with RawServer(answering(JSON_OK), tmp_path / "late.sock"):
        assert await request == b"{}"


def keep_answering(peer: socket.socket) -> None:
    while True:
        read_request(peer)
        peer.sendall(JSON_OK)


async def test_one_connection_serves_many_requests(half: Half) -> None:
    with RawServer(keep_answering) as server:
        transport = transport_to(half, server.url)
        for _ in range(20):
            assert await ask(half, transport) == b"{}"
        assert server.accepted == 1
        transport.close_idle()


async def test_an_idle_connection_that_was_closed_is_not_used(half: Half) -> None:
    with RawServer(answering(JSON_OK)) as server:  # keeps no connection, and does not say so
        transport = transport_to(half, server.url)
        for number in range(1, 4):
            assert await ask(half, transport) == b"{}"
            server._threads[number].join()
        assert server.accepted == 3


async def test_a_request_that_a_server_left_unread_is_made_again(half: Half, tmp_path: Path) -> None:
    """On a new connection and on a kept one; and nothing that may have been heard."""
    heard: list[bytes] = []

    def behave(peer: socket.socket) -> None:
        if server.accepted == 1:
            heard.append(read_request(peer))
            peer.sendall(JSON_OK)
        if server.accepted <= 2:
            select.select([peer], [], [])
            return
        heard.append(read_request(peer))
        if server.accepted == 3:
            peer.sendall(JSON_OK)

    with RawServer(behave, tmp_path / "server.sock") as server:
        transport = transport_to(half, server.url)
        await ask(half, transport)
        await ask(half, transport)
        assert server.accepted == 3
        with pytest.raises(ConnectionError, match="hung up"):
            await ask(half, transport)
        assert (server.accepted, len(heard)) == (4, 3)


async def test_a_request_that_is_never_read_is_not_repeated_for_ever(half: Half, tmp_path: Path) -> None:
    def behave(peer: socket.socket) -> None:
        select.select([peer], [], [])

    with RawServer(behave, tmp_path / "server.sock") as server:
        with pytest.raises(ConnectionError) as caught:
            await ask(half, transport_to(half, server.url))
        assert isinstance(caught.value, AtollError)
        assert caught.value.code is ErrorCode.SERVER_LOST
        assert server.accepted == 3


async def test_a_request_that_was_streamed_is_not_repeated(half: Half, tmp_path: Path) -> None:
    def behave(peer: socket.socket) -> None:
        peer.recv(10)

    with RawServer(behave, tmp_path / "server.sock") as server:
        with pytest.raises(ConnectionError):
            await ask(half, transport_to(half, server.url), body=iter([b"x" * 1000]))
        assert server.accepted == 1


async def test_an_idle_connection_with_something_unasked_on_it_is_not_used(half: Half) -> None:
    answered, said = threading.Event(), threading.Event()

    def behave(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(JSON_OK)
        answered.wait()
        peer.sendall(JSON_OK.replace(b"{}", b"[]"))
        said.set()
        wait_for_hang_up(peer)

    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        assert await ask(half, transport) == b"{}"
        answered.set()
        assert await asyncio.to_thread(said.wait, 60)
        assert await ask(half, transport) == b"{}"
        assert server.accepted == 2
        transport.close_idle()


async def test_a_server_gone_between_two_requests_is_not_reachable(half: Half, tmp_path: Path) -> None:
    with RawServer(keep_answering, tmp_path / "s.sock") as server:
        transport = transport_to(half, server.url)
        assert await ask(half, transport) == b"{}"
    with pytest.raises(ConnectionError, match="SERVER_NOT_REACHABLE"):
        await ask(half, transport)


async def test_connection_close_is_heeded(half: Half) -> None:
    def behave(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(OK + b"connection: close\r\ncontent-length: 2\r\n\r\n{}")
        wait_for_hang_up(peer)

    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        assert await ask(half, transport) == b"{}"
        assert not transport._idle


async def test_idle_connections_have_a_bound(half: Half) -> None:
    everybody = threading.Barrier(40)

    def behave(peer: socket.socket) -> None:
        read_request(peer)
        everybody.wait(60)
        peer.sendall(JSON_OK)
        wait_for_hang_up(peer)

    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        if isinstance(half, AsyncHalf):
            await asyncio.gather(*(ask(half, transport) for _ in range(40)))
        else:
            threads = [threading.Thread(target=lambda: transport.request("GET", "/").read()) for _ in range(40)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                await asyncio.sleep(0.01)
        assert 0 < len(transport._idle) <= half.transport.IDLE_CONNECTIONS
        transport.close_idle()


async def test_a_long_answer_streams_in_constant_memory_and_waits_for_its_reader(half: Half) -> None:
    size, sent = 100 * 2**20, 0
    is_full, may_go_on = threading.Event(), threading.Event()

    def behave(peer: socket.socket) -> None:
        nonlocal sent
        read_request(peer)
        peer.sendall(CHUNKED)
        piece = memoryview(b"%x\r\n%b\r\n" % (2**20, b"x" * 2**20))
        peer.settimeout(0.5)
        while sent < size:
            left = piece
            while left:
                try:
                    left = left[peer.send(left) :]
                except TimeoutError:  # for half a second nothing was taken
                    is_full.set()
                    assert may_go_on.wait(60)
            sent += 2**20
        peer.settimeout(None)
        peer.sendall(b"0\r\n\r\n")

    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        response = await half.run(transport.request, "GET", "/")
        received = len(await half.run(response.next_chunk))
        tracemalloc.start()
        try:
            assert await asyncio.to_thread(is_full.wait, 60)
            assert sent < size / 2  # nobody reads, so nothing comes
            may_go_on.set()
            while chunk := await half.run(response.next_chunk):
                received += len(chunk)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert received == size
        assert peak < 16 * 2**20, peak
        transport.close_idle()


async def test_an_answer_that_is_kept_whole_has_a_bound(half: Half) -> None:
    def behave(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(CHUNKED)
        while True:
            peer.sendall(b"%x\r\n%b\r\n" % (2**16, b"x" * 2**16))

    with RawServer(behave) as server:
        response = await half.run(transport_to(half, server.url).request, "GET", "/")
        with pytest.raises(ConnectionError, match="more than 1048576 bytes"):
            await half.run(response.read, 2**20)


async def test_dropping_an_answer_hangs_up(half: Half) -> None:
    gone = threading.Event()

    def behave(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(CHUNKED + b"2\r\n{}\r\n")
        wait_for_hang_up(peer)
        gone.set()

    with RawServer(behave) as server:
        transport = transport_to(half, server.url)
        response = await half.run(transport.request, "GET", "/")
        assert await half.run(response.next_chunk) == b"{}"
        del response
        gc.collect()
        assert await asyncio.to_thread(gone.wait, 60)


async def test_hanging_up_works_although_a_forked_process_has_a_copy(half: Half) -> None:
    gone = threading.Event()

    def behave(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(CHUNKED)
        wait_for_hang_up(peer)
        gone.set()

    with RawServer(behave) as server:
        response = await half.run(transport_to(half, server.url).request, "GET", "/")
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.read(reader, 1)
            os._exit(0)
        response.close()
        assert await asyncio.to_thread(gone.wait, 60)
        os.write(writer, b"x")
        await asyncio.to_thread(os.waitpid, child, 0)
        os.close(reader)
        os.close(writer)


def test_a_forked_process_leaves_its_parents_connections_alone() -> None:
    from tests.client.halves import BlockingHalf

    half = BlockingHalf()
    with RawServer(keep_answering) as server:
        transport = transport_to(half, server.url)
        transport.request("GET", "/").read()
        if (child := os.fork()) == 0:
            try:
                transport.request("GET", "/").read()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        transport.request("GET", "/").read()
        assert server.accepted == 2  # one each
        transport.close_idle()


def test_one_event_loop_after_another_shares_the_connections() -> None:
    half = AsyncHalf()
    with RawServer(keep_answering) as server:
        transport = transport_to(half, server.url)
        loops = [asyncio.new_event_loop() for _ in range(3)]
        for loop in loops:
            assert loop.run_until_complete(ask(half, transport)) == b"{}"
            loop.close()
        assert server.accepted == 1
        transport.close_idle()


async def test_cancelling_a_request_hangs_up() -> None:
    half = AsyncHalf()
    asked, gone = threading.Event(), threading.Event()

    def behave(peer: socket.socket) -> None:
        read_request(peer)
        asked.set()
        wait_for_hang_up(peer)
        gone.set()

    with RawServer(behave) as server:
        request = asyncio.create_task(ask(half, transport_to(half, server.url)))
        await asyncio.to_thread(asked.wait)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await asyncio.to_thread(gone.wait, 60)


async def test_the_api_key_and_the_host_are_sent(half: Half) -> None:
    seen = []

    def behave(peer: socket.socket) -> None:
        seen.append(read_request(peer))
        peer.sendall(JSON_OK)

    with RawServer(behave) as server:
        await ask(half, transport_to(half, server.url, api_key="key-1"))
        assert b"authorization: Bearer key-1\r\n" in seen[0]
        assert f"host: {server.url.removeprefix('http://')}\r\n".encode() in seen[0]


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://a", "a"), ("https://a:443/x", "a"), ("https://a:80", "a:80"), ("http://[::1]:8080", "[::1]:8080"),
     ("unix:///a", "localhost")],
)  # fmt: skip
def test_the_host_is_the_one_of_the_url(half: Half, url: str, host: str) -> None:
    assert f"\r\nhost: {host}\r\n" in transport_to(half, url)._head


async def test_a_path_longer_than_a_socket_address_is_fine(half: Half, tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120)
    directory.mkdir()
    with RawServer(answering(JSON_OK), tmp_path / "s.sock"):
        (tmp_path / "s.sock").rename(directory / "s.sock")
        assert await ask(half, transport_to(half, f"unix://{directory}/s.sock")) == b"{}"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("tls")
    key, chain = directory / "key.pem", directory / "cert.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(["openssl", *options.split(), *names], check=True, capture_output=True)
    return key, chain


async def test_tls_carries_long_requests_and_answers(
    half: Half, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, chain = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    size = 5 * 2**20

    def behave(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_side=True) as peer:
            body = read_request(peer).partition(b"\r\n\r\n")[2]
            while len(body) < size:
                body += peer.recv(65536)
            peer.sendall(OK + b"content-length: %d\r\n\r\n" % size)
            peer.sendall(body[:size])
            wait_for_hang_up(peer)

    with RawServer(behave) as server:
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(ConnectionError, match="certificate"):
            await ask(half, transport_to(half, url))
        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
        transport = transport_to(half, url)
        body = os.urandom(size)
        response = await half.run(transport.request, "POST", "/", body=body)
        assert await half.run(response.read) == body
        transport.close_idle()
