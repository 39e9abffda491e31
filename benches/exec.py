"""What a command costs through the SDK and the server, against what the host itself charges for one.

    .venv/bin/python benches/exec.py [--rounds 200]

Everything is measured in one run, in turns. Compare the ratios: absolute times mean little on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import atoll

WARM_UP = 10
CLIENTS = 8
THROUGHPUT_SECONDS = 3.0
STREAMED_MB = 100
FRESH_ROUNDS = 15

Variant = Callable[[], Awaitable[object]]


def host(*argv: str) -> Variant:
    async def run() -> None:
        subprocess.run(argv, check=True)

    return run


def first_byte_on_the_host() -> float:
    start = time.perf_counter()
    with subprocess.Popen(["bash", "-c", "echo x"], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.read(1) == b"x"
        return time.perf_counter() - start


async def first_byte_streamed(sandbox: atoll.AsyncSandbox) -> float:
    start = time.perf_counter()
    async with sandbox.exec_stream("echo x") as events:
        async for event in events:
            if event.type == "stdout":
                taken = time.perf_counter() - start
    return taken


async def measure(variants: dict[str, Variant], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(WARM_UP + rounds):
        for name, variant in variants.items():
            start = time.perf_counter()
            await variant()
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


async def throughput(sessions: list[atoll.AsyncSession]) -> float:
    """Commands per second of as many clients as there are sessions."""
    end = time.perf_counter() + THROUGHPUT_SECONDS

    async def client(session: atoll.AsyncSession) -> int:
        done = 0
        while time.perf_counter() < end:
            await session.exec("/bin/true")
            done += 1
        return done

    return sum(await asyncio.gather(*map(client, sessions))) / THROUGHPUT_SECONDS


def host_throughput() -> float:
    end = time.perf_counter() + THROUGHPUT_SECONDS

    def client(_: int) -> int:
        done = 0
        while time.perf_counter() < end:
            subprocess.run(["bash", "-c", "/bin/true; :"], check=True)
            done += 1
        return done

    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(client, range(CLIENTS))) / THROUGHPUT_SECONDS


async def stream_rate(sandbox: atoll.AsyncSandbox) -> float:
    start, received = time.perf_counter(), 0
    async with sandbox.exec_stream(f"head -c {STREAMED_MB}000000 /dev/zero") as events:
        async for event in events:
            received += len(event.data_bytes or b"")
    assert received == STREAMED_MB * 1_000_000
    return STREAMED_MB / (time.perf_counter() - start)


async def fresh_start() -> float:
    times = []
    for number in range(FRESH_ROUNDS):
        start = time.perf_counter()
        sandbox = atoll.get_async_sandbox(f"fresh-{number}")
        await sandbox.exec("true")
        times.append(time.perf_counter() - start)
        await sandbox.destroy()
        await asyncio.sleep(0.1)
    return statistics.median(times)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    blocking, sandbox = atoll.get_sandbox("bench"), atoll.get_async_sandbox("bench")
    large = f": {'x' * 100_000}"

    async def in_this_thread(command: str) -> None:
        blocking.exec(command)

    medians = await measure(
        {
            "bash -c true": host("bash", "-c", "true"),
            "true": host("true"),
            "async: true": lambda: sandbox.exec("true"),
            "blocking: true": lambda: in_this_thread("true"),
            "async: /bin/true": lambda: sandbox.exec("/bin/true"),
            "async: 100 KB command": lambda: sandbox.exec(large),
        },
        rounds,
    )
    medians |= await measure({"async: python3 -c pass": lambda: sandbox.exec("python3 -c pass")}, rounds // 10)
    bare = medians["bash -c true"]
    for name, median in medians.items():
        print(f"{name:24}{median * 1e3:8.2f} ms{median / bare:8.2f} × bash -c true")
    print(f"\nsession exec of true: async {medians['async: true'] / bare:.2f} ×, ", end="")
    print(f"blocking {medians['blocking: true'] / bare:.2f} × (targets ≤ 1.5)")
    print(f"session exec of /bin/true: {medians['async: /bin/true'] / bare:.2f} × (target ≤ 2.5)")

    sessions = [await sandbox.create_session(f"client-{number}") for number in range(CLIENTS)]
    ours, theirs = await throughput(sessions), host_throughput()
    print(f"{CLIENTS} clients: {ours:.0f} commands per second, {ours / theirs:.2f} of the host's (target ≥ 0.4)")
    on_host = statistics.median(first_byte_on_the_host() for _ in range(50))
    streamed = statistics.median([await first_byte_streamed(sandbox) for _ in range(50)])
    print(f"first streamed byte: {streamed / on_host:.2f} × Popen (target ≤ 3)")
    print(f"streaming: {max([await stream_rate(sandbox) for _ in range(3)]):.0f} MB/s (target ≥ 150)")
    await sandbox.destroy()
    fresh = await fresh_start()
    print(f"fresh id to first result: {fresh * 1e3:.1f} ms, {fresh / medians['true']:.1f} × true (target ≤ 20)")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as state, tempfile.TemporaryDirectory(dir="/run") as run:
        os.environ |= {"ATOLL_STATE_DIR": f"{state}/state", "ATOLL_RUNTIME_DIR": f"{run}/atoll"}
        try:
            asyncio.run(main())  # the first call starts the server
        finally:
            server = os.pidfd_open(int(Path(state, "state/lock").read_text()))
            signal.pidfd_send_signal(server, signal.SIGTERM)
            select.select([server], [], [])
