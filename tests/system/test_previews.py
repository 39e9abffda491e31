"""Previews as visitors have them: real services in sandboxes, asked over the network by plain clients."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import websockets

from atoll.client.sandbox import AsyncSandbox
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.sandboxes import SandboxState
from tests.system.conftest import serving
from tests.system.serving import RunningServer

SERVICE = (Path(__file__).parent / "preview_service.py").read_text()
MIB = 2**20


@dataclass
class Preview:
    """A service in a sandbox, and its URL."""

    server: RunningServer
    sandbox: AsyncSandbox
    url: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port
        return port

    async def connect(self) -> Visitor:
        return Visitor(*await asyncio.open_connection("127.0.0.1", self.port, limit=4 * MIB), self.host)

    def open_socket(self) -> websockets.connect:
        """By address: not every machine's own resolver knows names below localhost, as browsers do."""
        url = self.url.replace("http", "ws") + "socket"
        place: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        return websockets.connect(url, max_size=20 * MIB, compression=None, proxy=None, **place)

    async def get(self, path: str, *headers: str, method: str = "GET") -> Answer:
        visitor = await self.connect()
        try:
            return await visitor.ask(method, path, *headers, "Connection: close")
        finally:
            visitor.close()


@dataclass
class Answer:
    head: str
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split(" ")[1])

    def header(self, name: str) -> list[str]:
        return re.findall(rf"(?im)^{re.escape(name)}: ([^\r\n]*)", self.head)


@dataclass
class Visitor:
    """A client that speaks the protocol by hand, so that it may also do so badly."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str

    async def send(self, *lines: str, body: bytes = b"") -> None:
        self.writer.write("\r\n".join((*lines, "", "")).encode("latin-1") + body)
        await self.writer.drain()

    async def ask(self, method: str, path: str, *headers: str, body: bytes = b"") -> Answer:
        await self.send(f"{method} {path} HTTP/1.1", f"Host: {self.host}", *headers, body=body)
        return await self.answer(method)

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def answer(self, method: str = "GET") -> Answer:
        answer = Answer(await self.head(), b"")
        while answer.status < 200:
            answer = Answer(await self.head(), b"")
        if method == "HEAD" or answer.status in (204, 304):
            return answer
        if length := answer.header("content-length"):
            return Answer(answer.head, await self.reader.readexactly(int(length[0])))
        if not answer.header("transfer-encoding"):
            return Answer(answer.head, await self.reader.read())
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        while (line := await self.reader.readline()) != b"\r\n":
            body += b"|" + line.strip()
        return Answer(answer.head, body)

    def close(self) -> None:
        self.writer.close()


async def start_service(sandbox: AsyncSandbox, host: str = "127.0.0.1", port: int = 8080) -> None:
    await sandbox.write_file("/workspace/service.py", SERVICE)
    process = await sandbox.start_process(["python3", "-u", "/workspace/service.py", host, str(port)])
    await process.wait_for_log("listening", timeout=60)


@pytest.fixture
async def preview(server: RunningServer) -> AsyncIterator[Preview]:
    sandbox = server.sandbox("shown")
    await start_service(sandbox)
    yield Preview(server, sandbox, (await sandbox.expose_port(8080)).url)
    await sandbox.aclose()


async def test_a_page_arrives_with_all_that_a_service_must_know(preview: Preview) -> None:
    answer = await preview.get("/a%20b?c=d", "Cookie: e=f", "X-Forwarded-Host: evil")
    said = answer.body.decode()
    assert answer.status == 200 and answer.header("referrer-policy") == ["no-referrer"]
    assert said.startswith("GET /a%20b?c=d HTTP/1.1\r\n")
    assert f"Host: {preview.host}\r\n" in said and f"X-Forwarded-Host: {preview.host}\r\n" in said
    assert "X-Forwarded-For: 127.0.0.1\r\n" in said and "X-Forwarded-Proto: http\r\n" in said
    assert "Cookie: e=f\r\n" in said and "evil" not in said and "Connection" not in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
async def test_a_service_may_listen_where_it_likes(server: RunningServer, host: str) -> None:
    sandbox = server.sandbox("anywhere")
    await start_service(sandbox, host, 1024)
    preview = Preview(server, sandbox, (await sandbox.expose_port(1024)).url)
    assert (await preview.get("/page")).body == b"hello"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "REPORT"])
async def test_every_method_goes_through(preview: Preview, method: str) -> None:
    assert (await preview.get("/any", method=method)).body.startswith(f"{method} /any ".encode())


async def test_head_ranges_and_a_redirect_are_as_the_service_says(preview: Preview) -> None:
    visitor = await preview.connect()
    assert (await visitor.ask("HEAD", "/page")).header("content-length") == ["5"]
    assert b"Range: bytes=1-2\r\n" in (await visitor.ask("GET", "/", "Range: bytes=1-2")).body
    moved = await visitor.ask("GET", "/deep/redirect")
    assert (moved.status, moved.header("location")) == (302, ["../elsewhere?a=1"])
    assert (await visitor.ask("GET", "/page")).body == b"hello"  # all on one connection
    visitor.close()


async def test_early_hints_and_trailers_arrive(preview: Preview) -> None:
    visitor = await preview.connect()
    await visitor.send("GET /hints HTTP/1.1", f"Host: {preview.host}")
    assert "103 Early Hints" in (hint := await visitor.head()) and "rel=preload" in hint
    assert (await visitor.answer()).body == b"after"
    assert (await visitor.ask("GET", "/trailer")).body == b"abc|X-Sum: 6"
    visitor.close()


async def test_bodies_go_in_either_way_of_saying_their_length(preview: Preview) -> None:
    visitor = await preview.connect()
    assert (await visitor.ask("POST", "/count", "Content-Length: 5", body=b"hello")).body == b"5 "
    body = b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 1\r\n\r\n"
    assert (await visitor.ask("POST", "/count", "Transfer-Encoding: chunked", body=body)).body == b"5 X-Sum: 1\r\n"
    visitor.close()


async def test_who_asks_whether_to_go_on_is_told_by_the_service(preview: Preview) -> None:
    visitor = await preview.connect()
    await visitor.send("POST /count HTTP/1.1", f"Host: {preview.host}", "Expect: 100-continue", "Content-Length: 2")
    assert "100 Continue" in await visitor.head()
    visitor.writer.write(b"ok")
    assert (await visitor.answer()).body == b"2 "
    visitor.close()


async def test_requests_that_are_sent_ahead_are_answered_in_order(preview: Preview) -> None:
    visitor = await preview.connect()
    for number in range(20):
        await visitor.send(f"GET /{number} HTTP/1.1", f"Host: {preview.host}")
    for number in range(20):
        assert (await visitor.answer()).body.startswith(b"GET /%d " % number)
    visitor.close()


async def test_large_headers_pass_and_too_large_ones_are_refused(preview: Preview) -> None:
    assert b"a" * 40_000 in (await preview.get("/", "X-Large: " + "a" * 40_000)).body
    assert (await preview.get("/", "X-Large: " + "a" * 70_000)).status == 431


async def test_events_come_as_they_happen(preview: Preview) -> None:
    visitor = await preview.connect()
    await visitor.send("GET /ticks HTTP/1.1", f"Host: {preview.host}")
    assert "text/event-stream" in await visitor.head()
    for number in range(3):
        await visitor.reader.readline()
        assert await visitor.reader.readuntil(b"\n\n") == b"data: %d\n\n" % number
        await visitor.reader.readline()
    assert await visitor.reader.readuntil(b"0\r\n\r\n")
    visitor.close()


async def test_a_socket_says_a_thousand_things_and_some_large_ones(preview: Preview) -> None:
    async with preview.open_socket() as socket:
        for number in range(1_000):
            await socket.send(str(number))
            assert await socket.recv() == str(number)
        large = os.urandom(10 * MIB)
        await socket.send(large)
        assert await socket.recv() == large


async def test_a_large_answer_and_a_large_body_take_no_memory(preview: Preview) -> None:
    size = int(os.environ.get("ATOLL_PREVIEW_MIB", "200"))
    visitor = await preview.connect()
    before = preview.server.memory()
    await visitor.send(f"GET /large?{size} HTTP/1.1", f"Host: {preview.host}")
    assert f"Content-Length: {size * MIB}" in await visitor.head()
    left = size * MIB
    while left:
        left -= len(await visitor.reader.read(MIB))
    await visitor.send("POST /count HTTP/1.1", f"Host: {preview.host}", f"Content-Length: {size * MIB}")
    for _ in range(size):
        visitor.writer.write(bytes(MIB))
        await visitor.writer.drain()
    assert (await visitor.answer()).body == b"%d " % (size * MIB)
    assert preview.server.memory() - before < 30 * MIB
    visitor.close()


async def test_a_visitor_that_does_not_read_makes_nobody_keep_what_it_asked_for(preview: Preview) -> None:
    before = preview.server.memory()
    visitors = [await preview.connect() for _ in range(5)]
    for visitor in visitors:
        await visitor.send("GET /large?100 HTTP/1.1", f"Host: {preview.host}")
        await visitor.head()
    assert (await preview.get("/page")).body == b"hello"
    assert preview.server.memory() - before < 30 * MIB
    for visitor in visitors:
        visitor.close()


async def test_two_hundred_at_once_are_all_served(preview: Preview) -> None:
    visitors = await asyncio.gather(*(preview.connect() for _ in range(200)))
    answers = await asyncio.gather(*(visitor.ask("GET", "/page") for visitor in visitors))
    assert {answer.body for answer in answers} == {b"hello"}
    for visitor in visitors:
        visitor.close()


async def test_an_answer_that_was_cut_off_ends_cut_off(preview: Preview) -> None:
    visitor = await preview.connect()
    await visitor.send("GET /dies HTTP/1.1", f"Host: {preview.host}")
    assert "Content-Length: 1000" in await visitor.head()
    assert await visitor.reader.read() == b"first words"
    visitor.close()
    assert (await preview.get("/until-close")).body == b"as long as it lasts"


@pytest.mark.parametrize("path", ["/silent", "/two-lengths", "/endless-head", "/switches"])
async def test_a_service_that_gives_no_answer_is_told_of(preview: Preview, path: str) -> None:
    answer = await preview.get(path)
    assert answer.status == 502 and json.loads(answer.body)["code"] == "AGENT_MISBEHAVED"
    assert (await preview.get("/page")).body == b"hello"


async def test_an_answer_that_nobody_asked_for_reaches_nobody(preview: Preview) -> None:
    visitor = await preview.connect()
    assert (await visitor.ask("GET", "/twice")).body == b"a"
    assert (await visitor.ask("GET", "/page")).body == b"hello"
    visitor.close()


async def test_what_is_between_a_service_and_us_ends_here(preview: Preview) -> None:
    answer = await preview.get("/policy")
    assert answer.header("referrer-policy") == ["no-referrer"]
    assert not answer.header("x-secret") and answer.header("connection") == ["close"]


SMUGGLED = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 4", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 4"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["Transfer-Encoding : chunked"],
        ["Transfer-Encoding:\x0bchunked"],
        ["Content-Length: 4", "Content-Length: 40"],
        ["Content-Length: +4"],
        ["X: a", " Transfer-Encoding: chunked"],
        ["Host: elsewhere"],
    ],
)
async def test_a_request_in_which_another_could_hide_is_refused(preview: Preview, headers: list[str]) -> None:
    visitor = await preview.connect()
    await visitor.send("POST /count HTTP/1.1", f"Host: {preview.host}", *headers, body=b"0\r\n\r\n" + SMUGGLED.encode())
    answer = await visitor.answer()
    assert answer.status == 400
    assert await visitor.reader.read() == b""
    visitor.close()


async def test_a_wrong_token_and_an_unknown_name_say_the_same_and_wake_nobody(preview: Preview) -> None:
    await preview.sandbox.sleep()
    label = preview.host.partition(".")[0]
    port, name, token = label.split("-")
    said = set()
    for wrong in (f"{port}-{name}-{token[:-1]}_", f"8081-{name}-{token}", f"{port}-other-{token}", "a", f"{label}.x"):
        visitor = Visitor(*await asyncio.open_connection("127.0.0.1", preview.port), f"{wrong}.localhost")
        answer = await visitor.ask("GET", "/page")
        assert answer.status == 404
        said.add(answer.body)
        visitor.close()
    assert len(said) == 1
    assert (await preview.sandbox.status()).state is SandboxState.FROZEN
    assert "other" not in {
        found["id"] for found in (await preview.server.ask("GET", "/v1/sandboxes")).json()["sandboxes"]
    }


async def test_a_request_wakes_the_sandbox_and_a_quiet_connection_lets_it_sleep(preview: Preview) -> None:
    await preview.sandbox.sleep()
    visitor = await preview.connect()
    assert (await visitor.ask("GET", "/page")).body == b"hello"
    assert (await preview.sandbox.status()).state is SandboxState.RUNNING
    await preview.sandbox.sleep()
    while (await preview.sandbox.status()).state is not SandboxState.FROZEN:
        await asyncio.sleep(0.02)
    assert (await visitor.ask("GET", "/page")).body == b"hello"  # on the same connection
    visitor.close()


async def test_a_sandbox_that_was_stopped_says_that_nothing_listens_yet(preview: Preview) -> None:
    await preview.sandbox.sleep(stop=True)
    told = await preview.get("/page")
    assert told.status == 502 and json.loads(told.body)["code"] == "PORT_NOT_OPEN"
    failing = await preview.sandbox.start_process("echo '<b>last words</b>'; exit 3")
    await failing.wait_for_exit(timeout=60)
    page = await preview.get("/page", "Accept: text/html")
    assert page.status == 502 and b'http-equiv="refresh"' in page.body
    assert b"&lt;b&gt;last words&lt;/b&gt;" in page.body and b"<b>" not in page.body
    await start_service(preview.sandbox)
    assert (await preview.get("/page")).body == b"hello"


async def test_an_exposed_port_from_its_beginning_to_its_end(server: RunningServer) -> None:
    sandbox = server.sandbox("ports")
    with pytest.raises(LookupError):
        await sandbox.get_exposed_ports()  # asking makes nothing
    first = await sandbox.expose_port(8080)
    assert re.fullmatch(r"http://8080-ports-[a-z2-7]{16}\.localhost:\d+/", first.url)
    assert await sandbox.expose_port(8080) == first
    other = await sandbox.expose_port(9090, name="web", token="my_token", expires="1h")
    assert "9090-ports-my_token." in other.url and other.name == "web" and other.expires_at
    assert await sandbox.get_exposed_ports() == [first, other]
    assert await sandbox.is_port_exposed(9090) and not await sandbox.is_port_exposed(9091)
    await sandbox.unexpose_port(8080)
    with pytest.raises(LookupError) as caught:
        await sandbox.unexpose_port(8080)
    assert isinstance(caught.value, AtollError) and caught.value.code is ErrorCode.PORT_NOT_EXPOSED
    assert (await sandbox.expose_port(8080)).url != first.url
    assert [event.what for event in await sandbox.events()][1:] == ["port_exposed"] * 2 + [
        "port_unexposed",
        "port_exposed",
    ]
    await sandbox.destroy()
    assert (await sandbox.expose_port(9090)).url != other.url  # of another sandbox
    await sandbox.aclose()


async def test_a_long_id_has_an_alias_that_stays(server: RunningServer) -> None:
    sandbox = server.sandbox("a" * 63)
    await start_service(sandbox)
    exposed = await sandbox.expose_port(8080)
    label = urlsplit(exposed.url).netloc.partition(".")[0]
    assert len(label) <= 63 and "_" in label
    assert (await Preview(server, sandbox, exposed.url).get("/page")).body == b"hello"
    assert (await sandbox.expose_port(8081)).url.split("-")[1] == exposed.url.split("-")[1]
    await sandbox.aclose()


async def test_unexposing_ends_what_came_by_the_url(preview: Preview) -> None:
    async with preview.open_socket() as socket:
        await socket.send("here")
        assert await socket.recv() == "here"
        await preview.sandbox.unexpose_port(8080)
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
    assert (await preview.get("/page")).status == 404


async def test_the_url_is_the_same_after_the_server_was_killed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        sandbox = server.sandbox("lasting")
        await start_service(sandbox)
        exposed = await sandbox.expose_port(8080, name="kept")
        preview = Preview(server, sandbox, exposed.url)
        assert (await preview.get("/page")).body == b"hello"
        await server.kill()
        await server.start()
        assert (await preview.get("/page")).body == b"hello"
        assert await server.sandbox("lasting").get_exposed_ports() == [exposed]


async def test_previews_may_be_paths_of_a_domain(tmp_path: Path) -> None:
    async with serving(tmp_path, "--preview-paths", "--preview-listen", "127.0.0.1:0") as server:
        sandbox = server.sandbox("paths")
        await start_service(sandbox)
        url = urlsplit((await sandbox.expose_port(8080)).url)
        assert url.hostname == "localhost" and url.path.startswith("/p/8080-paths-")
        preview = Preview(server, sandbox, url.geturl())
        said = (await preview.get(url.path + "deep?q")).body.decode()
        assert said.startswith("GET /deep?q HTTP/1.1") and f"X-Forwarded-Prefix: {url.path[:-1]}\r\n" in said
        assert (await preview.get("/p/8080-paths-wrong/")).status == 404


async def test_the_digest_of_a_large_answer_is_that_of_what_was_sent(preview: Preview) -> None:
    answer = await preview.get("/large?8")
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(bytes(8 * MIB)).digest()
