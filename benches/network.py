"""What the network costs: a start with it, an idle sandbox, a request and a stream through the gateway.

    .venv/bin/python benches/network.py [--rounds 60] [--alive 60]

Everything against the same without it, in one run. Whom sandboxes reach here is a server on this machine's loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from atoll.engine.base import LiveSandbox
from atoll.engine.native.engine import NativeEngine
from atoll.network import dns
from atoll.network.connection_log import ConnectionLog
from atoll.network.control import Upstream
from atoll.network.gateway_process import Attached, GatewayProcess
from atoll.protocol.commands import Exec
from atoll.protocol.ids import SandboxId
from atoll.protocol.network import NetworkPolicy
from atoll.supervisor.agent_link import link_to
from atoll.supervisor.plans import Plan
from atoll.supervisor.workshop import Workshop

WARM_UP_ROUNDS = 5
SETTLE_SECONDS = 0.1  # namespaces are taken down, and embryos made, behind our back: not the next one's cost
STREAMED = 256 << 20
TRUE = Exec(argv=["true"])
# A nursery whose sandboxes have a loopback interface, and no way to a gateway.
WITHOUT = (
    "-OO",
    "-c",
    "from atoll.engine.native import gateway_rules, nursery; gateway_rules.set_up = lambda: None; nursery.main()",
)
SERVER = """
import asyncio

async def answer(reader, writer):
    try:
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            if head.startswith(b"GET /stream"):
                for _ in range(STREAMED_BYTES >> 16):
                    writer.write(bytes(1 << 16))
                    await writer.drain()
                return writer.close()
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nhello\\n")
    except (asyncio.IncompleteReadError, OSError):
        writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
""".replace("STREAMED_BYTES", str(STREAMED))
CLIENT = """
import http.client, socket, statistics, sys, time

host, port = sys.argv[1], int(sys.argv[2])
peer = http.client.HTTPConnection(host, port)
times = []
for _ in range(300):
    began = time.perf_counter()
    peer.request("GET", "/")
    peer.getresponse().read()
    times.append(time.perf_counter() - began)
peer.close()
new = []
for _ in range(50):
    began = time.perf_counter()
    peer.request("GET", "/")
    peer.getresponse().read()
    new.append(time.perf_counter() - began)
    peer.close()
stream = socket.create_connection((host, port))
stream.sendall(b"GET /stream HTTP/1.1\\r\\n\\r\\n")
began, count, buffer = time.perf_counter(), 0, bytearray(1 << 18)
while read := stream.recv_into(buffer):
    count += read
print(statistics.median(times), statistics.median(new), count / (time.perf_counter() - began))
"""


class Side:
    """A workshop with or without a network."""

    def __init__(self, workshop: Workshop, gateway: GatewayProcess | None) -> None:
        self.workshop, self.gateway = workshop, gateway
        self._count = 0

    async def make(self) -> LiveSandbox:
        self._count += 1
        live = await self.workshop.make(SandboxId(f"bench-{self._count}"), Plan())
        if self.gateway:
            log, engine = ConnectionLog(), self.workshop.engine
            attached = Attached(live.id, NetworkPolicy(), log, lambda: engine.open_gateway(live))
            await self.gateway.attach(live.generation, attached)
        return live

    async def destroy(self, live: LiveSandbox) -> None:
        if self.gateway:
            self.gateway.detach(live.generation)
        await self.workshop.destroy(live)

    async def cold_start(self) -> float:
        start = time.perf_counter()
        live = await self.make()
        async with link_to(self.workshop.engine, live) as link:
            await link.run(TRUE)
            taken = time.perf_counter() - start
        await self.destroy(live)
        return taken

    async def memory_each(self, count: int) -> tuple[float, float]:
        """Of an idle sandbox: bytes of our processes, and of the kernel's own on the whole machine."""
        for live in [await self.make() for _ in range(8)]:
            await self.destroy(live)
        await asyncio.sleep(1)
        ours, kernels = memory(), kernel_memory()
        made = [await self.make() for _ in range(count)]
        await asyncio.sleep(1)
        ours, kernels = memory() - ours, kernel_memory() - kernels
        for live in made:
            await self.destroy(live)
        return ours / count, kernels / count


def memory() -> int:
    return sum(memory_of(pid) for pid in descendants(os.getpid()))


def descendants(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))


def memory_of(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon")) * 1024
    return 0


def kernel_memory() -> int:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    return found["SUnreclaim"] + found["Percpu"] + found["KernelStack"] + found["PageTables"]


@contextmanager
def server() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def compare_starts(without: Side, with_it: Side, rounds: int) -> None:
    times: dict[Side, list[float]] = {without: [], with_it: []}
    for number in range(WARM_UP_ROUNDS + rounds):
        for side in (without, with_it) if number % 2 else (with_it, without):
            await asyncio.sleep(SETTLE_SECONDS)
            taken = await side.cold_start()
            if number >= WARM_UP_ROUNDS:
                times[side].append(taken)
    plain, networked = (statistics.median(times[side]) for side in (without, with_it))
    print(f"cold start, without     {plain * 1e3:6.2f} ms")
    print(f"cold start, with it     {networked * 1e3:6.2f} ms, {networked / plain:.2f} x (target ≤ 1.15)")


async def compare_memory(without: Side, with_it: Side, count: int) -> None:
    (ours, kernels), (ours_with, kernels_with) = await without.memory_each(count), await with_it.memory_each(count)
    print(f"memory, without         {ours / 1e6:6.2f} MB of processes, {kernels / 1e6:5.2f} MB of the kernel")
    print(
        f"memory, with it         {ours_with / 1e6:6.2f} MB of processes, {kernels_with / 1e6:5.2f} MB of the kernel: "
        f"{(ours_with + kernels_with - ours - kernels) / 1e6:+.2f} MB (target ≤ 0.2)"
    )


async def compare_egress(with_it: Side) -> None:
    with server() as port:
        live = await with_it.make()
        async with link_to(with_it.workshop.engine, live) as link:
            through, direct = [], []
            for _ in range(3):
                inside = await link.run(Exec(argv=["python3", "-I", "-c", CLIENT, "bench.example", str(port)]))
                command = ["python3", "-I", "-c", CLIENT, "127.0.0.1", str(port)]
                outside = await asyncio.to_thread(subprocess.check_output, command)
                through.append([float(word) for word in inside.stdout.split()])
                direct.append([float(word) for word in outside.split()])
        await with_it.destroy(live)
    kept, new, rate = (statistics.median(column) for column in zip(*through, strict=True))
    kept_direct, new_direct, rate_direct = (statistics.median(column) for column in zip(*direct, strict=True))
    more = (kept - kept_direct) * 1e3
    print(f"request, kept alive     {kept * 1e3:6.2f} ms, direct {kept_direct * 1e3:.2f}: {more:+.2f} ms (target ≤ +2)")
    print(f"request, new connection {new * 1e3:6.2f} ms, direct {new_direct * 1e3:.2f}")
    print(f"stream                  {rate / 1e6:6.0f} MB/s, direct {rate_direct / 1e6:.0f}: {rate / rate_direct:.2f} x")


class Questions(asyncio.DatagramProtocol):
    """Every name leads to this machine's loopback."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def datagram_received(self, data: bytes, asker: Any) -> None:
        question = dns.read_question(data)
        self.transport.sendto(dns.answer(question, dns.Result.DONE, (IPv4Address("127.0.0.1"),)), asker)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--alive", type=int, default=60)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="atoll-bench-") as state,
        tempfile.TemporaryDirectory(prefix="atoll-bench-", dir="/run") as run,
    ):
        plain = Path(state, "plain"), Path(run, "plain")
        async with (
            Workshop(Path(state, "state"), Path(run, "run")) as workshop,
            Workshop(*plain, engine=NativeEngine(*plain, nursery=WITHOUT)) as other,
        ):
            loop = asyncio.get_running_loop()
            names, _ = await loop.create_datagram_endpoint(Questions, ("127.0.0.1", 0))
            name_server = "127.0.0.1:{}".format(names.get_extra_info("sockname")[1])
            upstream = Upstream(counted=["127.0.0.0/8"], name_servers=[name_server])
            gateway = GatewayProcess(upstream, Path(run, "run"))
            await gateway.until_ready()
            without, with_it = Side(other, None), Side(workshop, gateway)
            await compare_starts(without, with_it, arguments.rounds)
            await compare_memory(without, with_it, arguments.alive)
            await compare_egress(with_it)
            await gateway.close()
            names.close()


if __name__ == "__main__":
    asyncio.run(main())
