"""The network of sandboxes as users have it: over the SDK, over HTTP, on the command line, and across restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from atoll.client.sandbox import AsyncSandbox
from atoll.network import dns
from atoll.network.ways_out import ways_out
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.network import NetworkPolicy, Verdict
from atoll.protocol.sandboxes import SandboxOptions
from tests.system.serving import RunningServer

ID = "connected"
HERE = IPv4Address("127.0.0.1")


class Questions(asyncio.DatagramProtocol):
    """Every name leads here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def datagram_received(self, data: bytes, asker: Any) -> None:
        question = dns.read_question(data)
        found = (HERE,) if question.type == dns.Type.A else ()
        self.transport.sendto(dns.answer(question, dns.Result.DONE, found), asker)


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
    except (asyncio.IncompleteReadError, OSError):
        writer.close()


@asynccontextmanager
async def outside() -> AsyncIterator[tuple[int, int]]:
    """A web server and a name server of ours, on this machine's loopback: their ports."""
    loop = asyncio.get_running_loop()
    web = await asyncio.start_server(hello, "127.0.0.1", 0)
    names, _ = await loop.create_datagram_endpoint(Questions, ("127.0.0.1", 0))
    async with web:
        yield web.sockets[0].getsockname()[1], names.get_extra_info("sockname")[1]
    names.close()
    await asyncio.sleep(0)  # in which it is


@pytest.fixture
async def connected(tmp_path: Path) -> AsyncIterator[tuple[RunningServer, str]]:
    """A server whose sandboxes reach what is on this machine's loopback, and a URL there."""
    async with outside() as (web, names):
        options = ("--count-public", "127.0.0.1/32", "--dns-server", f"127.0.0.1:{names}")
        server = RunningServer(tmp_path, options, {"ATOLL_REFUSE_RANGE": "", "ATOLL_DNS_SERVER": ""})
        await server.start()
        yield server, f"http://www.example.com:{web}/"
        await server.close()


async def curl(sandbox: AsyncSandbox, url: str) -> str:
    return (await sandbox.exec(["curl", "-sS", "--max-time", "30", url])).stdout


async def test_a_sandbox_reaches_names_as_soon_as_it_is_there(connected: tuple[RunningServer, str]) -> None:
    server, url = connected
    sandbox = server.sandbox(ID)
    assert await curl(sandbox, url) == "hello\n"
    (found,) = [one for one in await sandbox.connections() if one.verdict is Verdict.ALLOWED]
    assert (found.name, found.address, found.rule) == ("www.example.com", "127.0.0.1", "public")
    assert (await sandbox.status()).network == NetworkPolicy()


async def test_a_policy_is_kept_across_stop_restart_and_kill(connected: tuple[RunningServer, str]) -> None:
    server, url = connected
    other = url.replace("www", "other")
    sandbox = server.sandbox(ID, SandboxOptions(network={"allow": ["www.example.com"]}))
    assert (await curl(sandbox, url), await curl(sandbox, other)) == ("hello\n", "")
    await sandbox.sleep(stop=True)
    assert (await curl(sandbox, url), await curl(sandbox, other)) == ("hello\n", "")
    await server.kill()
    await server.start()
    sandbox = server.sandbox(ID)
    assert (await curl(sandbox, url), await curl(sandbox, other)) == ("hello\n", "")
    await sandbox.set_network("none")
    assert (await curl(sandbox, url), await curl(sandbox, other)) == ("", "")
    await server.end()
    await server.start()
    sandbox = server.sandbox(ID)
    assert await curl(sandbox, url) == ""
    await sandbox.set_network("public")
    assert (await curl(sandbox, url), await curl(sandbox, other)) == ("hello\n", "hello\n")
    changes = [event.cause for event in await sandbox.events() if event.what == "network_changed"]
    assert changes == ["no network was asked for", "allow=public was asked for"]


async def test_what_is_no_policy_is_refused_before_anything_is_made(connected: tuple[RunningServer, str]) -> None:
    server, _ = connected
    for given in ("all", {"allow": ["http://x"]}, {"allow": ["x"], "permit": []}):
        answer = await server.ask("PUT", f"/v1/sandboxes/{ID}", {"network": given})
        assert (answer.status, answer.json()["code"]) == (400, "INVALID_NETWORK_POLICY")
    with pytest.raises(AtollError) as caught:
        await server.sandbox(ID).set_network({"allow": ["a b"]})
    assert caught.value.code is ErrorCode.INVALID_NETWORK_POLICY and "a b" in caught.value.message
    assert not (await server.ask("GET", "/v1/sandboxes")).json()["sandboxes"]
    assert (await server.ask("GET", f"/v1/sandboxes/{ID}/connections")).status == 404


async def test_connections_are_followed(connected: tuple[RunningServer, str]) -> None:
    server, url = connected
    sandbox = server.sandbox(ID, SandboxOptions(network="none"))
    await sandbox.wake()
    async with sandbox.follow_connections() as stream:
        await curl(sandbox, url)
        async for found in stream:
            assert (found.name, found.verdict, found.rule) == ("www.example.com", Verdict.DENIED, "no rule allows it")
            break


async def test_options_that_differ_are_told(connected: tuple[RunningServer, str]) -> None:
    server, _ = connected
    await server.ask("PUT", f"/v1/sandboxes/{ID}", {})
    answer = await server.ask("PUT", f"/v1/sandboxes/{ID}", {"network": "none"})
    assert "network" in answer.json()["ignored"]


async def test_the_command_line_shows_sets_and_suggests(connected: tuple[RunningServer, str]) -> None:
    server, url = connected
    sandbox = server.sandbox(ID)
    await curl(sandbox, url)
    port = url.rpartition(":")[2].strip("/")
    rule = f"www.example.com:{port}"
    assert await atoll(server, "network", "show", ID) == "allow public\n"
    assert await atoll(server, "network", "suggest", ID) == f"allow {rule}\n"
    shown = await atoll(server, "connections", ID)
    assert "allowed" in shown and "www.example.com" in shown and "public" in shown
    assert json.loads((await atoll(server, "connections", ID, "--json")).splitlines()[-1])["name"] == "www.example.com"
    assert (
        await atoll(server, "network", "set", ID, "--allow", rule, "--deny", "*.org") == f"allow {rule}\ndeny *.org\n"
    )
    assert await curl(sandbox, url) == "hello\n"
    assert await atoll(server, "network", "set", ID, "none") == "allow nobody\n"
    assert await curl(sandbox, url) == ""
    assert "denied" in await atoll(server, "connections", ID)


async def test_a_gateway_that_is_killed_is_missed_for_a_moment(connected: tuple[RunningServer, str]) -> None:
    server, url = connected
    sandbox = server.sandbox(ID)
    assert await curl(sandbox, url) == "hello\n"
    os.kill(gateway_of(server), signal.SIGKILL)
    again = ["curl", "-sS", "--retry", "50", "--retry-all-errors", "--retry-delay", "1", url]
    assert (await sandbox.exec(again)).stdout == "hello\n"


def gateway_of(server: RunningServer) -> int:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    (found,) = [pid for pid in children if b"atoll.network" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(found)


async def atoll(server: RunningServer, *words: str) -> str:
    command = [sys.executable, "-m", "atoll.cli", *words]
    environment = os.environ | {"ATOLL_URL": server.unix_url, "COLUMNS": "200"}
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


RESOLV_CONF = "# a comment\nnameserver 10.0.0.53\nnameserver nobody\nnameserver fd00::53\nsearch example.com\n"


@pytest.fixture
def variables() -> Iterator[dict[str, str]]:
    yield {"https_proxy": "http://proxy.example:3128", "no_proxy": "localhost,.example.com"}


def test_the_ways_out_are_those_of_the_machine_unless_its_operator_says_otherwise(variables: dict[str, str]) -> None:
    found = ways_out(RESOLV_CONF, variables)
    assert found.name_servers == ["10.0.0.53", "fd00::53"]
    assert (found.proxy, found.direct) == ("http://proxy.example:3128", ["localhost", ".example.com"])
    given = ways_out(RESOLV_CONF, variables, servers=["127.0.0.1:5353"], proxy="", counted=["203.0.113.0/24"])
    assert (given.name_servers, given.proxy, given.counted) == (["127.0.0.1:5353"], None, ["203.0.113.0/24"])
    assert ways_out("", {"ALL_PROXY": "socks5://p:1080", "NO_PROXY": "*"}).proxy is None


@pytest.mark.parametrize(
    "given",
    [
        {"servers": ["example.com"]},
        {"servers": ["10.0.0.1:0"]},
        {"counted": ["10.0.0.1/8"]},
        {"refused": ["x"]},
        {"proxy": "ftp://me:secret@proxy"},
        {"proxy": "http://me:secret@:x"},
    ],
)
def test_what_is_no_way_out_is_refused_and_no_password_is_told(given: dict[str, Any]) -> None:
    with pytest.raises(AtollError) as caught:
        ways_out("", {}, **given)
    assert caught.value.remedy and "secret" not in str(caught.value)
