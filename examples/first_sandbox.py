"""Makes a sandbox, runs shell and Python code in it, and says what happened and how long it took."""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
import time
from pathlib import Path

from atoll.protocol.errors import AtollError
from atoll.protocol.messages import Exec
from atoll.supervisor.agent_link import AgentLink
from atoll.supervisor.machine import Machine

FIBONACCI = """
import os, platform
a, b = 0, 1
while a < 100:
    print(a, end=" ")
    a, b = b, a + b
print(f"\\nPython {platform.python_version()} as pid {os.getpid()} on {platform.node()}")
"""
COMMANDS = (
    ["sh", "-c", "echo $(id -un)@$(hostname) in $(pwd), uid $(awk '{print $2}' /proc/self/uid_map) outside"],
    ["python3", "-c", FIBONACCI],
    ["sh", "-c", "rm -f /usr/bin/python3*; python3 -V"],
)


class Stopwatch:
    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __str__(self) -> str:
        return f"{(time.perf_counter() - self._start) * 1e3:8.1f} ms"


async def show(state: Path) -> None:
    async with Machine(state / "state", state / "run") as machine:
        watch = Stopwatch()
        machine.images.resolve("host")
        print(f"{watch}  built the host image: this machine's /usr under a small root of its own")
        watch = Stopwatch()
        await machine.destroy(await machine.create("warm-up"))
        enforced = "enforced" if machine.storage.enforces_limits else "not enforced (no btrfs or loop devices here)"
        print(f"{watch}  started the nursery, made a first sandbox and destroyed it; disk limits are {enforced}")
        await asyncio.sleep(0.1)  # what a real server has between two requests: time to prepare the next

        watch = Stopwatch()
        sandbox = await machine.create("user-123")
        async with AgentLink(sandbox.agent_socket) as link:
            await link.run(Exec(argv=["true"]))
            print(f"{watch}  made sandbox user-123 and ran its first command")
            await run_commands(link)
        watch = Stopwatch()
        await machine.destroy(sandbox)
        is_there = "is still there" if Path("/usr/bin/python3").exists() else "is gone, and should not be"
        print(f"\n{watch}  destroyed it; this machine's own /usr/bin/python3 {is_there}")


async def run_commands(link: AgentLink) -> None:
    for argv in COMMANDS:
        watch = Stopwatch()
        output = await link.run(Exec(argv=argv, timeout=30))
        print(f"\n$ {shlex.join(argv[:2])} {argv[2].strip() if len(argv[2]) < 99 else '…'}")
        print((output.stdout + output.stderr).decode().strip())
        print(f"{watch}  exit code {output.done.exit_code}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="atoll-") as directory:
        try:
            asyncio.run(show(Path(directory)))
        except AtollError as error:
            sys.exit(f"first_sandbox: {error}")


if __name__ == "__main__":
    main()
