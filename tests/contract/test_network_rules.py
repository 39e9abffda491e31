"""The network of a sandbox as the native engine sets it up: all that leaves it arrives at a gateway, or is refused."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncIterator

import pytest

from atoll.engine.base import GatewayListeners
from atoll.engine.native.gateway_rules import GATEWAY, NEW_AT_ONCE, OWN, TCP_PORT
from atoll.engine.native.netlink import attribute, errors, message, nested, number
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box

NET_ADMIN = 12
SO_ORIGINAL_DST = 80
TRY = """
import errno, json, socket

def attempt(family, kind, address, say=b""):
    with socket.socket(family, kind) as peer:
        peer.settimeout(20)
        try:
            peer.connect(address)
            if say:
                peer.send(say)
                peer.recv(100)
            result = "connected"
        except OSError as cause:
            result = errno.errorcode.get(cause.errno, str(cause))
    return result

"""


@pytest.fixture
async def listeners(host_box: Box, workshop: Workshop) -> AsyncIterator[GatewayListeners]:
    made = await workshop.engine.open_gateway(host_box.live)
    with made.tcp, made.dns:
        yield made


async def python(box: Box, script: str) -> str:
    output = await box.run("python3", "-I", "-c", TRY + script)
    assert output.done.exit_code == 0, output.stderr
    return output.stdout.decode().strip()


def meant_for(peer: socket.socket) -> tuple[str, int]:
    raw = peer.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    return socket.inet_ntoa(raw[4:8]), int.from_bytes(raw[2:4])


@pytest.mark.parametrize(
    "address", ["192.0.2.1", "10.0.0.1", "169.254.169.254", "100.64.0.3", "255.255.255.254", GATEWAY]
)
async def test_every_connection_arrives_with_where_it_was_meant_for(
    host_box: Box, listeners: GatewayListeners, address: str
) -> None:
    script = f"print(attempt(socket.AF_INET, socket.SOCK_STREAM, ({address!r}, 4321), b'?'))"
    asked = asyncio.create_task(python(host_box, script))
    loop = asyncio.get_running_loop()
    peer, _ = await loop.sock_accept(listeners.tcp)
    with peer:
        assert meant_for(peer) == (address, 4321)
        await loop.sock_sendall(peer, b"!")
        assert await asked == "connected"


async def test_a_question_of_dns_arrives_whoever_is_asked(host_box: Box, listeners: GatewayListeners) -> None:
    loop = asyncio.get_running_loop()
    for server in (GATEWAY, "192.0.2.53"):
        script = f"print(attempt(socket.AF_INET, socket.SOCK_DGRAM, ({server!r}, 53), b'?'))"
        asked = asyncio.create_task(python(host_box, script))
        question, asker = await loop.sock_recvfrom(listeners.dns, 100)
        assert question == b"?"
        await loop.sock_sendto(listeners.dns, b"!", asker)
        assert await asked == "connected"


async def test_what_no_gateway_takes_is_refused_at_once(host_box: Box, listeners: GatewayListeners) -> None:
    script = """
STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
print(json.dumps([
    attempt(socket.AF_INET, DATAGRAM, ("192.0.2.1", 443), b"?"),
    attempt(socket.AF_INET, DATAGRAM, ("192.0.2.1", 123), b"?"),
    attempt(socket.AF_INET, DATAGRAM, ("255.255.255.255", 67), b"?"),
    attempt(socket.AF_INET6, STREAM, ("2001:db8::1", 443)),
    attempt(socket.AF_INET6, DATAGRAM, ("2001:db8::1", 53), b"?"),
    attempt(socket.AF_INET, STREAM, ("100.64.0.2", 80)),
    attempt(socket.AF_INET, STREAM, ("127.0.0.1", 80)),
    attempt(socket.AF_INET6, STREAM, ("::1", 80)),
]))
"""
    answers = json.loads(await python(host_box, script))
    assert answers[:2] == ["EPERM", "EPERM"] and answers[2] in ("EACCES", "EPERM")
    assert answers[3:5] == ["ENETUNREACH", "ENETUNREACH"]
    assert answers[5:] == ["ECONNREFUSED"] * 3


async def test_without_a_gateway_it_reaches_nobody_and_is_told_at_once(host_box: Box) -> None:
    script = """
print(attempt(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)))
print(attempt(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53), b"?"))
"""
    assert (await python(host_box, script)).split() == ["ECONNREFUSED", "ECONNREFUSED"]


async def test_its_own_services_are_reached_on_loopback_and_by_its_own_address(host_box: Box) -> None:
    script = f"""
listener = socket.create_server(("0.0.0.0", 8080))
print(attempt(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 8080)))
print(attempt(socket.AF_INET, socket.SOCK_STREAM, ({OWN!r}, 8080)))
print(attempt(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 8080)))
"""
    assert (await python(host_box, script)).split() == ["connected", "connected", "ECONNREFUSED"]


async def test_more_new_connections_than_fit_a_second_are_refused_by_the_kernel(
    host_box: Box, listeners: GatewayListeners
) -> None:
    script = f"""
answers = [attempt(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 1)) for _ in range({2 * NEW_AT_ONCE})]
print("loopback", set(answers))
refused = 0
for number in range(30 * {NEW_AT_ONCE}):
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.connect(("192.0.2.1", 53))
    try:
        peer.send(b"?")
    except PermissionError:
        refused += 1
        break
print("refused", refused)
"""
    assert (await python(host_box, script)).split("\n") == ["loopback {'ECONNREFUSED'}", "refused 1"]


async def test_nobody_inside_may_change_the_rules(host_box: Box) -> None:
    status = await host_box.text("cat /proc/1/status /proc/self/status")
    for line in status.splitlines():
        if line.startswith(("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")):
            assert not int(line.split()[1], 16) >> NET_ADMIN & 1, line


async def test_the_next_gateway_takes_over_the_address_of_one_that_is_gone(host_box: Box, workshop: Workshop) -> None:
    for _ in range(3):
        made = await workshop.engine.open_gateway(host_box.live)
        made.tcp.close()
        made.dns.close()


async def test_who_takes_the_gateways_port_inside_harms_nobody_but_himself(host_box: Box, workshop: Workshop) -> None:
    taker = f"import socket; s = socket.create_server(('0.0.0.0', {TCP_PORT})); print('taken', flush=True); input()"
    await host_box.shell(
        f'python3 -c "{taker}" < <(sleep 1000) > /tmp/taken & until grep -q taken /tmp/taken; do :; done'
    )
    with pytest.raises(AtollError) as caught:
        await workshop.engine.open_gateway(host_box.live)
    assert caught.value.code is ErrorCode.NETWORK_NOT_AVAILABLE
    assert str(TCP_PORT) in caught.value.remedy


async def test_its_own_names_and_its_name_server_are_known_inside(host_box: Box) -> None:
    name = host_box.live.id
    assert await host_box.text("cat /etc/resolv.conf") == f"nameserver {GATEWAY}"
    for known in (name, f"{name}.local", "$(hostname)"):
        assert (await host_box.text(f"getent hosts {known}")).split()[0] == "127.0.1.1"
    assert (await host_box.text("getent ahostsv4 localhost")).split()[0] == "127.0.0.1"


def test_messages_are_laid_out_as_the_kernel_reads_them() -> None:
    assert attribute(3, b"abc") == b"\x07\0\x03\0abc\0"
    assert nested(1, number(2, 1)) == b"\x0c\0\x01\x80" + b"\x08\0\x02\0\0\0\0\1"
    assert message(24, 4, b"1234")[:8] == b"\x14\0\0\0\x18\0\x05\0"
    assert list(errors(message(2, 0, (-errno.EPERM).to_bytes(4, "little", signed=True)))) == [errno.EPERM]
    assert list(errors(message(2, 0, bytes(4)) * 2)) == [0, 0]
    assert list(errors(b"\0" * 40)) == []
