"""Terminals over a real server: as a page's WebSocket uses them, as JSON, and through both halves of the SDK."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import struct
from collections.abc import Iterator
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from atoll.protocol.errors import ServerLostError
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import HANG_SECONDS, RunningServer
from tests.system.test_server import FULL_SECONDS

PROTOCOL = "atoll.terminal"
ATTEMPTS = 3  # at reading without a stall: a machine that stands still for two seconds makes a page lose something


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
def half(request: pytest.FixtureRequest) -> Iterator[Half]:
    half: Half = request.param()
    yield half
    half.server.shared_server.cache_clear()  # and with it the connections


def dial(
    server: RunningServer, terminal_id: str, sandbox: str = "box", name: str = "127.0.0.1", **options: Any
) -> connect:
    """As a page does: the key is a subprotocol. `name` is what it takes the server for."""
    options.setdefault("subprotocols", [PROTOCOL, f"atoll.key.{server.key}"])
    options |= {"open_timeout": HANG_SECONDS, "ping_interval": None}  # a page that does not read answers no ping
    url = f"ws://{name}:{server.port}/v1/sandboxes/{sandbox}/terminals/{terminal_id}"
    return connect(url, host="127.0.0.1", port=server.port, compression=None, **options)


async def make(server: RunningServer, **body: object) -> dict[str, Any]:
    answer = await server.ask("POST", "/v1/sandboxes/box/terminals", body)
    assert answer.status == 201, answer.body
    made: dict[str, Any] = answer.json()
    return made


class Page:
    """What a page with a terminal in it has got so far."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen = bytearray()
        self.told: list[dict[str, Any]] = []

    async def step(self) -> None:
        message = await self.socket.recv()
        if isinstance(message, bytes):
            self.seen += message
        else:
            self.told.append(json.loads(message))

    @property
    def bytes_lost(self) -> int:
        return sum(message["bytes"] for message in self.told if message["type"] == "lost")

    async def until(self, text: bytes) -> None:
        while text not in self.seen:
            await self.step()

    async def until_told(self, kind: str) -> dict[str, Any]:
        while not self.told or self.told[-1]["type"] != kind:
            await self.step()
        return self.told[-1]

    async def until_closed(self) -> int:
        try:
            while True:
                await self.step()
        except ConnectionClosed as closed:
            assert closed.rcvd
            return closed.rcvd.code


async def test_a_page_types_resizes_and_learns_the_exit_code(server: RunningServer) -> None:
    terminal = await make(server, cols=100, rows=30, env={"WHO": "page"})
    async with dial(server, terminal["id"]) as socket:
        assert socket.subprotocol == PROTOCOL
        page = Page(socket)
        ready = await page.until_told("ready")
        assert ready["terminal"]["id"] == terminal["id"] and ready["terminal"]["viewers"] == 1
        await socket.send(b"stty size; echo for $WHO; cat\n")
        await page.until(b"30 100\r\nfor page\r\n")
        await socket.send(json.dumps({"type": "resize", "cols": 120, "rows": 40}))
        assert await page.until_told("resized") == {"type": "resized", "cols": 120, "rows": 40}
        await socket.send(b"\x04")
        await socket.send(b"stty size; exit 9\n")
        await page.until(b"40 120\r\n")
        assert await page.until_closed() == 1000
        assert page.told[-1] == {"type": "exit", "exit_code": 9}


async def test_a_sandbox_is_awake_for_as_long_as_somebody_looks_at_its_terminal(server: RunningServer) -> None:
    terminal = await make(server, shell="cat")
    async with dial(server, terminal["id"]) as socket:
        page = Page(socket)
        await page.until_told("ready")
        assert (await server.ask("POST", "/v1/sandboxes/box/sleep")).json()["state"] == "running"
        await socket.send(b"one\n")
        await page.until(b"one\r\none\r\n")
    async with asyncio.timeout(HANG_SECONDS):
        while (await server.ask("GET", "/v1/sandboxes/box")).json()["state"] != "frozen":
            await asyncio.sleep(0.05)


async def test_a_second_page_sees_the_replay_and_both_see_the_rest(server: RunningServer) -> None:
    wanted = b"early\r\n" + b"".join(b"%d\r\n" % number for number in range(1, 200_001))
    for _ in range(ATTEMPTS):
        pages = await look_together(server)
        for page in pages:
            assert len(page.seen) + page.bytes_lost == len(wanted)
            assert page.told[-1] == {"type": "exit", "exit_code": 4}
        if not any(page.bytes_lost for page in pages):
            break
    for page in pages:
        assert hashlib.sha256(page.seen).digest() == hashlib.sha256(wanted).digest()


async def look_together(server: RunningServer) -> tuple[Page, Page]:
    """Two pages that have seen a terminal to its end, and what it showed before the second came."""
    terminal = await make(server, shell=["sh", "-c", "stty -echo; echo early; read a; seq 200000; exit 4"])
    async with dial(server, terminal["id"]) as first:
        one = Page(first)
        await one.until(b"early\r\n")
        async with dial(server, terminal["id"]) as second:
            other = Page(second)
            await other.until_told("ready")
            assert other.seen == b"early\r\n"
            await second.send(b"\n")
            assert await asyncio.gather(one.until_closed(), other.until_closed()) == [1000, 1000]  # type: ignore[comparison-overlap]
    return one, other


async def test_a_page_that_reads_nothing_does_not_stop_the_other_nor_fill_the_server(server: RunningServer) -> None:
    for _ in range(ATTEMPTS):
        page = await look_beside_a_deaf_page(server)
        if not page.bytes_lost:
            break
    assert len(page.seen) == len("R") + 30_000_000


async def look_beside_a_deaf_page(server: RunningServer) -> Page:
    """One that has seen a terminal to its end, while the other did not read."""
    program = "stty -opost -echo; printf R; read go; head -c 30000000 /dev/zero; exit 6"
    terminal = await make(server, shell=["sh", "-c", program])
    async with dial(server, terminal["id"], max_queue=1) as deaf, dial(server, terminal["id"]) as reader:
        page = Page(reader)
        await page.until(b"R")  # from here on nothing that is typed is echoed
        before = server.memory()
        await reader.send(b"\n")
        assert await page.until_closed() == 1000
        assert len(page.seen) + page.bytes_lost == len("R") + 30_000_000
        assert server.memory() - before < 16 * 2**20
        late = Page(deaf)
        assert await late.until_closed() == 1000
        assert late.bytes_lost > 0 and len(late.seen) + late.bytes_lost == len("R") + 30_000_000
        assert late.told[-1] == {"type": "exit", "exit_code": 6}
        return page


async def test_a_page_that_leaves_while_its_input_is_backed_up_is_no_viewer_any_more(server: RunningServer) -> None:
    terminal = await make(server, shell=["sh", "-c", "stty raw -echo; echo deaf; sleep 1000"])
    async with dial(server, terminal["id"]) as socket:
        await Page(socket).until(b"deaf")
        with pytest.raises(TimeoutError):
            while True:
                await asyncio.wait_for(socket.send(bytes(65_536)), FULL_SECONDS)
        # What is on the way keeps its end from coming through; a reset is what a dead host's peer learns.
        reset = struct.pack("ii", 1, 0)
        socket.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, reset)
        socket.transport.abort()
    async with asyncio.timeout(HANG_SECONDS):
        while (await server.ask("GET", f"/v1/sandboxes/box/terminals/{terminal['id']}")).json()["viewers"]:
            await asyncio.sleep(0.05)


async def test_a_page_closes_its_terminal(server: RunningServer) -> None:
    terminal = await make(server, shell="cat")
    async with dial(server, terminal["id"]) as socket:
        page = Page(socket)
        await socket.send('{"type":"close"}')
        assert await page.until_closed() == 1000
        assert page.told[-1] == {"type": "exit", "exit_code": 129}


@pytest.mark.parametrize(
    "noise",
    [
        "",
        "{",
        "null",
        '{"type":"explode"}',
        '{"type":"resize"}',
        '{"type":"resize","cols":"80","rows":24}',
        '{"type":"resize","cols":0,"rows":24}',
        '{"type":"close","now":true}',
        "[" * 100_000,
        "\u2028\U0001f600",
    ],
    ids=lambda noise: repr(noise[:30]),
)
async def test_a_control_message_that_makes_no_sense_is_answered_and_ends_the_view(
    server: RunningServer, noise: str
) -> None:
    terminal = await make(server, shell="cat")
    async with dial(server, terminal["id"]) as socket:
        page = Page(socket)
        await socket.send(noise)
        assert await page.until_closed() == 4400
        assert page.told[-1]["type"] == "error"
        assert page.told[-1]["code"] == "INVALID_REQUEST" and page.told[-1]["remedy"]
    async with dial(server, terminal["id"]) as socket:  # the terminal has not suffered
        page = Page(socket)
        await socket.send(b"still here\n")
        await page.until(b"still here\r\nstill here\r\n")


async def test_a_terminal_that_is_not_there_is_a_message_that_a_page_can_read(server: RunningServer) -> None:
    await make(server, shell="cat")  # in a sandbox that is there
    async with dial(server, "terminal-none") as socket:
        page = Page(socket)
        assert await page.until_closed() == 4404
        assert page.told[-1]["code"] == "TERMINAL_NOT_FOUND"
        assert page.told[-1]["context"] == {"terminal_id": "terminal-none"}


async def test_a_message_that_is_too_large_ends_the_view_and_not_the_server(server: RunningServer) -> None:
    terminal = await make(server, shell="cat")
    async with dial(server, terminal["id"]) as socket:
        page = Page(socket)
        await page.until_told("ready")
        await socket.send(b"x" * (2**20 + 1))
        assert await page.until_closed() == 1009
    assert (await server.ask("GET", f"/v1/sandboxes/box/terminals/{terminal['id']}")).json()["exit_code"] is None
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    "options",
    [
        {"subprotocols": None},
        {"subprotocols": [PROTOCOL]},
        {"subprotocols": [PROTOCOL, "atoll.key.atoll_" + "0" * 64]},
        {"subprotocols": [PROTOCOL, "atoll.key."]},
        {"subprotocols": None, "additional_headers": {"Authorization": "Bearer nonsense"}},
    ],
    ids=["nothing", "no key", "wrong key", "empty key", "wrong header"],
)
async def test_a_socket_without_a_key_is_refused(server: RunningServer, options: dict[str, Any]) -> None:
    terminal = await make(server, shell="cat")
    with pytest.raises(InvalidStatus) as refused:
        async with dial(server, terminal["id"], **options):
            pass
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["code"] == "INVALID_API_KEY"
    assert "ERROR" not in server.log.read_text()


async def test_a_key_in_a_header_is_fine_and_in_the_url_is_none(server: RunningServer) -> None:
    terminal = await make(server, shell="cat")
    async with dial(server, terminal["id"], subprotocols=None, additional_headers=bearer(server)) as socket:
        await Page(socket).until_told("ready")
    with pytest.raises(InvalidStatus):
        async with dial(server, f"{terminal['id']}?key={server.key}", subprotocols=[PROTOCOL]):
            pass


def bearer(server: RunningServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}"}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"name": "evil.example"}, 403),
    ],
)
async def test_another_sites_page_is_refused_even_with_a_key(
    server: RunningServer, options: dict[str, Any], status: int
) -> None:
    terminal = await make(server, shell="cat")
    with pytest.raises(InvalidHandshake) as refused:
        async with dial(server, terminal["id"], **options):
            pass
    assert isinstance(refused.value, InvalidStatus)
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["code"] == "FORBIDDEN_ORIGIN"


async def test_a_page_of_the_servers_own_address_is_let_in(server: RunningServer) -> None:
    terminal = await make(server, shell="cat")
    async with dial(server, terminal["id"], origin=f"http://127.0.0.1:{server.port}") as socket:
        await Page(socket).until_told("ready")


async def test_there_is_no_websocket_elsewhere(server: RunningServer) -> None:
    url = f"ws://127.0.0.1:{server.port}/v1/server"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, additional_headers=bearer(server)):
            pass
    assert refused.value.response.status_code in (403, 404)


async def test_terminals_as_json(server: RunningServer) -> None:
    terminal = await make(server, shell=["cat"], cols=90, rows=20)
    path = f"/v1/sandboxes/box/terminals/{terminal['id']}"
    assert (await server.ask("GET", path)).json() == terminal
    resized = await server.ask("PATCH", path, {"cols": 91, "rows": 21})
    assert resized.json() == terminal | {"cols": 91, "rows": 21}
    assert (await server.ask("PATCH", path, {"cols": 0, "rows": 21})).status == 400
    assert (await server.ask("DELETE", path)).status == 204
    listed = (await server.ask("GET", "/v1/sandboxes/box/terminals")).json()["terminals"]
    assert [(one["id"], one["exit_code"]) for one in listed] == [(terminal["id"], 129)]
    refused: list[dict[str, Any]] = [{"shell": 3}, {"shell": []}, {"shell": ""}, {"cols": 0}, {"x": 1}]
    for body in (*refused, {"env": {"a=b": "c"}}):
        assert (await server.ask("POST", "/v1/sandboxes/box/terminals", body)).status == 400, body
    assert (await server.ask("GET", "/v1/sandboxes/box/terminals/none")).status == 404
    assert (await server.ask("DELETE", "/v1/sandboxes/box/terminals/none")).status == 404


async def test_a_terminal_survives_a_kill_of_the_server(own_server: RunningServer) -> None:
    terminal = await make(own_server, shell=["sh", "-c", "stty -echo; echo before; read line; echo got $line; exit 8"])
    async with dial(own_server, terminal["id"]) as socket:
        page = Page(socket)
        await page.until(b"before\r\n")
        await own_server.kill()
        with pytest.raises(ConnectionClosed):
            await page.until(b"nothing more")
    await own_server.start()
    async with dial(own_server, terminal["id"]) as socket:
        page = Page(socket)
        await page.until(b"before\r\n")
        await socket.send(b"it\n")
        assert await page.until_closed() == 1000
        assert bytes(page.seen) == b"before\r\ngot it\r\n"
        assert page.told[-1] == {"type": "exit", "exit_code": 8}


async def test_a_server_that_ends_closes_its_sockets_and_no_terminal(own_server: RunningServer) -> None:
    terminal = await make(own_server, shell="cat")
    async with dial(own_server, terminal["id"]) as socket:
        page = Page(socket)
        await page.until_told("ready")
        ending = asyncio.create_task(own_server.end())
        assert await page.until_closed() == 1012
        await ending
    await own_server.start()
    assert (await own_server.ask("GET", f"/v1/sandboxes/box/terminals/{terminal['id']}")).json()["exit_code"] is None
    assert "Traceback" not in own_server.log.read_text()


async def test_a_destroyed_sandbox_ends_the_view_with_an_error(server: RunningServer) -> None:
    terminal = await make(server, shell="cat")
    async with dial(server, terminal["id"]) as socket:
        page = Page(socket)
        await page.until_told("ready")
        assert (await server.ask("DELETE", "/v1/sandboxes/box")).status == 204
        assert await page.until_closed() > 4000
        assert page.told[-1]["type"] == "error"


async def test_the_sdk_makes_reads_writes_and_waits(server: RunningServer, half: Half) -> None:
    sandbox = half.get_sandbox("box", url=server.unix_url)
    terminal = await half.run(sandbox.create_terminal, 100, 30, env={"PS1": "$ "})
    view = terminal.attach()
    await half.run(view.write, "stty size; echo héllo\n")
    assert "héllo\r\n".encode() in await read_until(half, view, b"30 100\r\n")
    await half.run(view.resize, 110, 35)
    await half.run(terminal.write, b"stty size\n")
    await read_until(half, view, b"35 110\r\n")
    assert [one.id for one in await half.run(sandbox.list_terminals)] == [terminal.id]
    again = await half.run(sandbox.get_terminal, terminal.id)
    await half.run(again.write, "exit 3\n")
    for nonsense in (5, None, ["x"], "\ud800"):
        with pytest.raises(ValueError):
            await half.run(terminal.write, nonsense)
    assert await half.run(view.wait) == 3
    assert view.exit_code == 3 and view.bytes_lost == 0
    assert await half.run(terminal.wait) == 3
    assert await half.run(terminal.close) == 3
    assert (await half.run(terminal.info)).exit_code == 3
    with pytest.raises(LookupError):
        await half.run(sandbox.get_terminal, "terminal-none")


async def read_until(half: Half, view: Any, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        data = await half.run(view.read)
        assert data, seen
        seen += data
    return seen


async def test_the_sdk_iterates_to_the_end_of_the_program(server: RunningServer, half: Half) -> None:
    sandbox = half.get_sandbox("box", url=server.tcp_url, api_key=server.key)
    terminal = await half.run(sandbox.create_terminal, shell=["seq", "30000"])
    view = terminal.attach()
    seen = b"".join([data async for data in half.iterate(view)])
    assert seen == b"".join(b"%d\r\n" % number for number in range(1, 30_001))
    assert view.exit_code == 0


async def test_the_sdk_passes_a_pipe_on_as_it_comes(server: RunningServer, half: Half) -> None:
    sandbox = half.get_sandbox("box", url=server.unix_url)
    terminal = await half.run(sandbox.create_terminal, shell="cat")
    readable, writable = os.pipe()
    with io.FileIO(readable, "rb") as keys, io.FileIO(writable, "wb") as typist:
        view = terminal.attach(stdin=keys)
        reading = asyncio.create_task(read_until(half, view, b"one\r\none\r\n"))
        typist.write(b"one\n")
        await reading
        reading = asyncio.create_task(read_until(half, view, b"two\r\ntwo\r\n"))
        typist.write(b"two\n")
        await reading
        await half.close(view)
    assert await half.run(terminal.close) == 129


async def test_leaving_a_view_ends_nothing_and_a_closed_view_reads_the_end(server: RunningServer, half: Half) -> None:
    sandbox = half.get_sandbox("box", url=server.unix_url)
    terminal = await half.run(sandbox.create_terminal, shell="cat")
    view = terminal.attach()
    prefix = "Async" if half.name == "async" else ""
    assert repr(view) == f"<{prefix}TerminalView of {terminal.id!r} of sandbox 'box'>"
    await half.run(terminal.write, "x\n")
    await read_until(half, view, b"x\r\nx\r\n")
    reading = asyncio.create_task(half.run(view.read))
    while not (await half.run(terminal.info)).viewers:
        await asyncio.sleep(0.01)
    await half.close(view)
    assert await reading == b""
    while (await half.run(terminal.info)).viewers:
        await asyncio.sleep(0.01)
    assert (await half.run(terminal.info)).exit_code is None
    await half.run(terminal.close)


async def test_a_session_has_terminals_in_its_own_directory(server: RunningServer, half: Half) -> None:
    sandbox = half.get_sandbox("box", url=server.unix_url)
    session = await half.run(sandbox.create_session, "elsewhere", cwd="/usr")
    for where, wanted in ((session, b"/usr\r\n"), (sandbox, b"/workspace\r\n")):
        view = (await half.run(where.create_terminal, shell="pwd")).attach()
        assert b"".join([data async for data in half.iterate(view)]) == wanted


@pytest.mark.parametrize(
    "options",
    [{"cols": 0}, {"rows": "24"}, {"cols": True}, {"shell": []}, {"shell": ""}, {"shell": 3}, {"env": {"": "x"}}],
)
async def test_the_sdk_refuses_what_makes_no_sense(server: RunningServer, half: Half, options: dict[str, Any]) -> None:
    sandbox = half.get_sandbox("box", url=server.unix_url)
    with pytest.raises(ValueError):
        await half.run(sandbox.create_terminal, **options)


async def test_a_lost_server_is_a_typed_error_for_a_view(own_server: RunningServer, half: Half) -> None:
    sandbox = half.get_sandbox("box", url=own_server.unix_url)
    terminal = await half.run(sandbox.create_terminal, shell="cat")
    view = terminal.attach()
    await half.run(terminal.write, "x\n")
    await read_until(half, view, b"x\r\nx\r\n")
    reading = asyncio.create_task(half.run(view.read))
    await own_server.kill()
    with pytest.raises(ServerLostError):
        await reading


async def test_an_idle_agent_is_no_larger_for_knowing_terminals(server: RunningServer) -> None:
    """What a terminal keeps is given back when it is forgotten."""
    sandbox = server.sandbox("box")
    await sandbox.exec("true")
    before = await agent_memory(sandbox)
    for _ in range(40):
        terminal = await sandbox.create_terminal(shell=["sh", "-c", "head -c 1000000 /dev/zero"])
        await terminal.wait()
    assert await agent_memory(sandbox) - before < 12 * 2**20


async def agent_memory(sandbox: Any) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", (await sandbox.exec("cat /proc/1/status")).stdout)
    assert found
    return int(found[1]) * 1024
