"""The gateway with real sandboxes on one side and real servers on the other, in namespaces that lead nowhere."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atoll.network.confinement import FILTER, USER
from atoll.network.connection_log import ENDED_WITH_GATEWAY, ConnectionLog
from atoll.network.control import Upstream
from atoll.network.doorway import MAX_OPEN
from atoll.network.gateway_process import Attached, GatewayProcess
from atoll.protocol.commands import CommandOutput
from atoll.protocol.network import Connection, NetworkPolicy, Verdict, parse_network
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.lab import DOCUMENTED, HOST, INTERNET, METADATA, NAME_SERVER, OTHER, PRIVATE, PUBLIC, SHARED, Lab

REFUSED = (7, 35, 56)  # what curl says of a connection that is reset: as soon as it is made, over TLS, later


@dataclass
class Net:
    """A sandbox with a gateway."""

    box: Box
    process: GatewayProcess
    lab: Lab
    log: ConnectionLog = field(default_factory=ConnectionLog)
    key: str = "key"

    async def curl(self, *arguments: str) -> CommandOutput:
        return await self.box.run("curl", "-sS", "--max-time", "60", *arguments)

    async def python(self, script: str) -> str:
        output = await self.box.run("python3", "-I", "-c", script)
        assert output.done.exit_code == 0, output.stderr.decode()
        return output.stdout.decode().strip()

    def allow(self, *rules: str, deny: tuple[str, ...] = ()) -> None:
        self.process.change(self.key, parse_network({"allow": list(rules), "deny": list(deny)}))

    async def last(self, is_it: Callable[[Connection], bool] = lambda it: it.ended is not None) -> Connection:
        """The latest that is so, once there is one."""
        async for found in self.log.follow():
            if is_it(found):
                return found
        raise AssertionError("a log has no end")


@asynccontextmanager
async def networked(
    workshop: Workshop, box: Box, lab: Lab, directory: Path, upstream: Upstream | None = None, **options: object
) -> AsyncIterator[Net]:
    lab.forget()
    process = GatewayProcess(upstream or Upstream(name_servers=[NAME_SERVER]), directory, lab.gateway)
    try:
        net = Net(box, process, lab)
        await process.attach(net.key, attached(workshop, net))
        await process.until_ready()
        yield net
    finally:
        await process.close()


def attached(workshop: Workshop, net: Net) -> Attached:
    live = net.box.live
    return Attached(live.id, NetworkPolicy(), net.log, lambda: workshop.engine.open_gateway(live))


@pytest.fixture
async def net(workshop: Workshop, host_box: Box, lab: Lab, tmp_path: Path) -> AsyncIterator[Net]:
    async with networked(workshop, host_box, lab, tmp_path) as net:
        yield net


async def test_a_name_is_reached_over_http_and_tls_and_what_speaks_first(net: Net) -> None:
    assert (await net.curl("http://www.example.com/")).stdout == f"this is {PUBLIC}\n".encode()
    assert (await net.curl("-k", "https://api.example.com/")).stdout == f"this is {PUBLIC}\n".encode()
    said = await net.box.sh("echo hello | busybox nc www.example.com 22")
    assert said.stdout == f"SSH-2.0-{PUBLIC}\r\n".encode()
    assert (await net.curl(f"http://{OTHER}/")).stdout == f"this is {OTHER}\n".encode()


async def test_what_was_tried_is_told_with_name_address_rule_and_bytes(net: Net) -> None:
    await net.curl("http://www.example.com/")
    found = await net.last()
    assert (found.name, found.address, found.port) == ("www.example.com", PUBLIC, 80)
    assert (found.verdict, found.rule) == (Verdict.ALLOWED, "public")
    assert found.sent > 50 and found.received > 50 and found.ended and found.ended >= found.time


@pytest.mark.parametrize("address", ["127.0.0.1", PRIVATE, METADATA, SHARED, DOCUMENTED, HOST, INTERNET, "100.64.0.1"])
async def test_no_address_but_public_ones_is_reached(net: Net, address: str) -> None:
    assert (await net.curl(f"http://{address}:8000/")).done.exit_code in REFUSED
    assert not net.lab.internet.met() and not net.lab.host.met()


@pytest.mark.parametrize("name", ["private", "metadata", "loopback", "mapped", "host", "documented"])
async def test_no_name_leads_to_another_address(net: Net, name: str) -> None:
    assert (await net.curl(f"http://{name}.example.org/")).done.exit_code in REFUSED
    found = await net.last()
    assert found.verdict is Verdict.DENIED and found.name == f"{name}.example.org"
    assert not net.lab.internet.met() and not net.lab.host.met()


@pytest.mark.parametrize(
    "form", ["0x7f.1", "017700000001", "2130706433", "[::ffff:127.0.0.1]", "[::1]", "127.1", "0", "0x5db8d70e"]
)
async def test_an_address_in_another_form_is_the_same_address(net: Net, form: str) -> None:
    output = await net.curl(f"http://{form}:8000/")
    if form == "0x5db8d70e":  # a public one
        assert output.stdout == f"this is {PUBLIC}\n".encode()
    else:
        assert output.done.exit_code in REFUSED and not net.lab.internet.met()
    assert not net.lab.host.met()


async def test_a_name_that_leads_elsewhere_the_next_time_gains_nothing(net: Net) -> None:
    lists = [[PUBLIC], ["127.0.0.1"], [HOST], [PRIVATE]]
    net.lab.internet.tell(names={"rebinding.example.org": lists})
    for _ in range(6):
        await net.curl("--max-time", "5", "http://rebinding.example.org/")
    assert {place for place, *_ in net.lab.internet.met()} <= {PUBLIC} and not net.lab.host.met()


async def test_one_of_many_addresses_is_enough_and_long_answers_come_over_tcp(net: Net) -> None:
    for name in ("many", "long"):
        assert (await net.curl(f"http://{name}.example.org/")).stdout == f"this is {PUBLIC}\n".encode()


async def test_nobody_there_and_no_such_name_are_failures_that_are_told(net: Net) -> None:
    assert (await net.curl("http://nobody.example.org/")).done.exit_code in REFUSED
    assert (await net.last()).verdict is Verdict.FAILED
    assert (await net.curl("http://www.example.com:81/")).done.exit_code in REFUSED
    found = await net.last(lambda it: it.port == 81 and it.ended is not None)
    assert found.verdict is Verdict.FAILED and "refused" in found.detail


async def test_a_list_of_names_allows_them_and_no_other_is_ever_asked_for(net: Net) -> None:
    net.allow("www.example.com", "*.example.org:80")
    assert (await net.curl("http://www.example.com/")).stdout
    assert (await net.curl("http://other.example.org/")).stdout
    assert (await net.curl("http://api.example.com/")).done.exit_code == 6  # no such name
    assert (await net.curl("http://other.example.org:8000/")).done.exit_code in REFUSED
    assert (await net.curl(f"http://{PUBLIC}/")).done.exit_code in REFUSED
    for number in range(50):
        await net.box.run("busybox", "nslookup", f"{number}.secret.tunnel.example")
    assert set(net.lab.internet.asked()) == {"www.example.com 1", "other.example.org 1"}
    found = await net.last(lambda it: it.name == "api.example.com")
    assert found.verdict is Verdict.DENIED and found.rule == "no rule allows it"


async def test_deny_takes_names_and_addresses_away(net: Net) -> None:
    net.allow("public", deny=("*.example.com", f"{OTHER}/32"))
    assert (await net.curl("http://www.example.com/")).done.exit_code == 6
    assert (await net.curl(f"http://{OTHER}/")).done.exit_code in REFUSED
    assert (await net.curl("http://other.example.org/")).done.exit_code in REFUSED
    assert (await net.curl("http://long.example.org/")).stdout
    assert (await net.last(lambda it: it.rule == f"{OTHER}/32")).verdict is Verdict.DENIED


async def test_none_reaches_nobody(net: Net) -> None:
    net.process.change(net.key, parse_network("none"))
    assert (await net.curl("http://www.example.com/")).done.exit_code == 6
    assert (await net.curl(f"http://{PUBLIC}/")).done.exit_code in REFUSED
    assert not net.lab.internet.met() and not net.lab.internet.asked()


async def test_a_private_address_is_reached_if_a_rule_names_it(net: Net) -> None:
    net.allow(f"{PRIVATE}/32:8000", "private.example.org", "127.0.0.0/8", f"{HOST}/32", METADATA)
    assert (await net.curl(f"http://{PRIVATE}:8000/")).stdout and (
        await net.curl("http://private.example.org:8000/")
    ).stdout
    assert (await net.curl(f"http://{PRIVATE}/")).done.exit_code in REFUSED
    for address in (HOST, METADATA):
        assert (await net.curl(f"http://{address}:8000/")).done.exit_code in REFUSED
    assert not net.lab.host.met()


async def test_over_tls_another_name_is_refused_and_none_where_names_are_listed(net: Net) -> None:
    other = ("-k", "--connect-to", "other.example.org:443:www.example.com:443", "https://other.example.org/")
    nameless = "import socket, ssl; c = ssl._create_unverified_context(); c.check_hostname = False\n"
    nameless += (
        "s = c.wrap_socket(socket.create_connection(('www.example.com', 443))); s.send(b'GET / HTTP/1.1\\r\\n\\r\\n')\n"
    )
    nameless += "print(s.recv(100).decode())"
    assert (await net.curl(*other)).done.exit_code in REFUSED
    assert "other.example.org" in (await net.last(lambda it: it.verdict is Verdict.DENIED)).detail
    assert "200 OK" in await net.python(nameless)
    net.allow("www.example.com")
    assert (await net.box.run("python3", "-I", "-c", nameless)).done.exit_code == 1
    assert all(said != "GET / HTTP/1.1" or place == PUBLIC for place, _, said in net.lab.internet.met())


async def test_what_is_open_ends_when_it_is_no_longer_allowed(net: Net) -> None:
    reading = asyncio.create_task(net.box.sh("busybox nc www.example.com 19 | wc -c"))
    kept = asyncio.create_task(net.box.sh("(echo one; sleep 1000) | busybox nc other.example.org 7"))
    is_open = {"www.example.com": False, "other.example.org": False}
    async for found in net.log.follow():
        is_open[found.name] = found.ended is None
        if all(is_open.values()):
            break
    net.allow("other.example.org:7")
    await reading
    ended = await net.last(lambda it: it.port == 19 and it.ended is not None)
    assert ended.verdict is Verdict.DENIED and ended.detail == "the policy changed"
    net.process.change(net.key, parse_network("none"))
    await net.last(lambda it: it.port == 7 and it.ended is not None)
    kept.cancel()
    await asyncio.gather(kept, return_exceptions=True)


async def test_the_operators_ranges_count_as_public_or_are_refused(
    workshop: Workshop, host_box: Box, lab: Lab, tmp_path: Path
) -> None:
    upstream = Upstream(name_servers=[NAME_SERVER], counted=[DOCUMENTED, "127.0.0.1"], refused=[f"{OTHER}/32"])
    async with networked(workshop, host_box, lab, tmp_path, upstream) as net:
        assert (await net.curl("http://documented.example.org/")).stdout
        assert (await net.curl("http://loopback.example.org/")).stdout == b"this is 127.0.0.1\n"
        assert (await net.curl("http://other.example.org/")).done.exit_code in REFUSED


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (f"http://me:secret@{INTERNET}:3128", "CONNECT www.example.com:7777"),
        (f"socks5://{INTERNET}:1080", "www.example.com:7777"),
    ],
)
async def test_the_operators_proxy_is_asked_for_names(
    workshop: Workshop, host_box: Box, lab: Lab, tmp_path: Path, proxy: str, said: str
) -> None:
    upstream = Upstream(name_servers=[NAME_SERVER], proxy=proxy, direct=[".example.org"])
    async with networked(workshop, host_box, lab, tmp_path, upstream) as net:
        assert (await net.box.sh("busybox nc www.example.com 7777 </dev/null")).stdout == b"by the proxy\n"
        assert net.lab.internet.met()[-1][2].startswith(said) and not net.lab.internet.asked()
        assert (await net.curl("http://other.example.org/")).stdout == f"this is {OTHER}\n".encode()
        assert (await net.curl(f"http://{PRIVATE}/")).done.exit_code in REFUSED


async def test_much_passes_both_ways_and_a_slow_reader_holds_nobody_up(net: Net) -> None:
    size = 64 << 20
    slow = "(echo 1000000000; sleep 1000) | busybox nc www.example.com 19 | (head -c 1; sleep 1000)"
    slow_one = asyncio.create_task(net.box.sh(slow))
    await net.last(lambda it: it.port == 19)
    assert (await net.box.text(f"head -c {size} /dev/zero | busybox nc www.example.com 9")) == str(size)
    assert (await net.box.text(f"echo {size} | busybox nc www.example.com 19 | wc -c")) == str(size)
    script = """
import socket
peer = socket.create_connection(("www.example.com", 7))
peer.sendall(b"x" * 100_000)
peer.shutdown(socket.SHUT_WR)
count = 0
while data := peer.recv(65536):
    count += len(data)
print(count)
"""
    assert await net.python(script) == "100000"
    status = Path(f"/proc/{net.process.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 64 << 10
    slow_one.cancel()
    await asyncio.gather(slow_one, return_exceptions=True)


async def test_questions_over_tcp_and_of_other_kinds_are_answered(net: Net) -> None:
    script = """
import socket, struct
def ask(name, kind, cls=1, tcp=False):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", kind, cls)
    if tcp:
        peer = socket.create_connection(("9.9.9.9", 53))
        peer.sendall(struct.pack("!H", len(question)) + question)
        return peer.recv(2000)[2:]
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.settimeout(30)
    peer.sendto(question, ("9.9.9.9", 53))
    return peer.recv(2000)
def told(answer):
    return answer[3] & 15, struct.unpack_from("!H", answer, 6)[0]
name = "www.example.com"
print(told(ask(name, 1)), told(ask(name, 1, tcp=True)), told(ask(name, 28)), told(ask(name, 16)), told(ask(name, 255)))
print(told(ask(name, 65)), told(ask(name, 252)), told(ask(name, 1, cls=3)), told(ask("1.2.3.4", 1)))
print(told(ask("localhost", 1)))
"""
    first, second, third = (await net.python(script)).splitlines()
    assert first == "(0, 1) (0, 1) (0, 0) (0, 0) (0, 1)"
    assert (second, third) == ("(0, 0) (0, 0) (3, 0) (3, 0)", "(0, 1)")
    assert not net.lab.internet.asked()


async def test_ten_thousand_names_have_their_bound(net: Net) -> None:
    script = """
import socket, struct
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.settimeout(30)
peer.connect(("100.64.0.1", 53))
answered = set()
for number in range(10_000):
    label = b"n%d" % number
    question = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + bytes([len(label)]) + label + b"\\7example\\0\\0\\1\\0\\1"
    peer.send(question)
    answered.add(peer.recv(2000)[-4:])
print(len(answered))
"""
    assert await net.python(script) == "10000"
    assert (await net.curl("http://www.example.com/")).stdout
    status = Path(f"/proc/{net.process.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 64 << 10


async def test_a_sandbox_has_so_many_connections_at_a_time(net: Net) -> None:
    script = f"""
import socket
address = socket.gethostbyname("www.example.com")
peers = []
for _ in range({MAX_OPEN} + 50):
    peers.append(socket.create_connection((address, 7)))
answered = 0
for peer in peers:
    try:
        peer.sendall(b"x")
        answered += peer.recv(1) == b"x"
    except OSError:
        pass
print(answered)
"""
    assert await net.python(script) == str(MAX_OPEN)
    found = await net.last(lambda it: it.verdict is Verdict.DENIED)
    assert "connections at a time" in found.rule
    assert (await net.curl("http://www.example.com/")).stdout


async def test_a_gateway_that_is_killed_is_started_again_and_the_sandbox_reaches_on(net: Net) -> None:
    net.allow("www.example.com")
    first = net.process.pid
    assert first and (await net.curl("http://www.example.com/")).stdout
    reading = asyncio.create_task(net.box.sh("busybox nc www.example.com 19 | wc -c"))
    await net.last(lambda it: it.port == 19)
    os.kill(first, signal.SIGKILL)
    assert (await reading).done.exit_code == 0
    assert (await net.last(lambda it: it.port == 19 and it.ended is not None)).detail == ENDED_WITH_GATEWAY
    while net.process.pid in (None, first):
        await asyncio.sleep(0.01)
    await net.process.until_ready()
    assert (await net.curl("--retry", "20", "--retry-all-errors", "http://www.example.com/")).stdout
    assert (await net.curl("http://api.example.com/")).done.exit_code == 6  # the policy is as it was


async def test_the_gateway_has_nothing_to_lose(net: Net, tmp_path: Path) -> None:
    place = Path(f"/proc/{net.process.pid}")
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    assert status["Uid"].split() == status["Gid"].split() == [str(USER)] * 4 and not status["Groups"].strip()
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
    assert not list((place / "root").iterdir())
    assert (place / "environ").read_bytes() == b""
    opened = {os.readlink(place / "fd" / name).partition(":")[0] for name in os.listdir(place / "fd")}
    assert opened <= {"socket", "anon_inode", "/dev/null", str(tmp_path / "gateway.log")}


def test_the_filter_of_the_gateway_lets_nothing_be_started_or_opened() -> None:
    names = FILTER.read_bytes()
    assert len(names) % 8 == 0
    script = """
import errno, os, socket
from atoll.network import confinement
confinement._prctl(38, 1)
program = confinement.FILTER.read_bytes()
os.open("/", os.O_RDONLY)
confinement.install(program)
refused = []
for attempt in (lambda: os.open("/", os.O_RDONLY), os.fork, lambda: os.execv("/bin/true", ["true"]),
                lambda: os.kill(os.getpid(), 0), lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(17, 3),
                lambda: os.stat("/"), lambda: socket.socket(16, 3, 0)):
    try:
        attempt()
    except OSError as cause:
        refused.append(cause.errno == errno.ENOSYS)
socket.socket().close()
os.write(1, b"%d %d" % (len(refused), all(refused)))
os._exit(0)
"""
    assert subprocess.check_output([sys.executable, "-c", script]) == b"8 1"


async def test_a_message_of_tls_that_never_ends_is_ended(net: Net) -> None:
    script = """
import socket, time
peer = socket.create_connection(("www.example.com", 443))
began = time.monotonic()
try:
    for byte in b"\\x16\\3\\1\\x10\\0" + b"\\1\\0\\x0f\\xff" + bytes(4000):
        peer.sendall(bytes([byte]))
        time.sleep(0.05)
except OSError as cause:
    print(type(cause).__name__, 5 < time.monotonic() - began)
"""
    assert (await net.python(script)).split()[1] == "True"
    found = await net.last(lambda it: it.verdict is Verdict.DENIED)
    assert found.rule == "TLS must begin as TLS does" and found.sent == 0


async def test_a_kept_connection_answers_without_waiting_for_more_to_send(net: Net) -> None:
    """What is slower than its neighbours by 40 ms waits for an acknowledgement that the other side delays."""
    script = """
import http.client, time
peer = http.client.HTTPConnection("www.example.com")
times = []
for _ in range(50):
    began = time.perf_counter()
    peer.request("GET", "/")
    peer.getresponse().read()
    times.append(time.perf_counter() - began)
print(sorted(times)[25] < 0.03)
"""
    assert await net.python(script) == "True"


@pytest.fixture(autouse=True)
def no_test_leaves_the_laboratory(lab: Lab) -> Iterator[None]:
    """The gateway is in a namespace with no wire but the one to our servers."""
    yield
    assert lab.host.process.poll() is None and lab.internet.process.poll() is None
