#!/usr/bin/env python3
"""The files of src/atoll whose code runs in one exec of a session that is warm: in client, server and agent.

    .venv/bin/python scripts/trace_exec.py [TREE]

Another TREE is one of another version, unpacked. The agent is a program of its own here, since nothing is loaded into a
sandbox's. Needs root, for its pid namespace and the sandbox that the client and the server are traced with.
"""

import asyncio
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOOK_SECONDS = 0.02


class Trace:
    """Files of the tree that code of this thread comes from."""

    def __init__(self, tree: Path) -> None:
        self._source = f"{tree}/src/atoll/"
        self.files: set[str] = set()

    def __call__(self, frame: object, event: str, _: object) -> None:
        if event == "call" and (name := frame.f_code.co_filename).startswith(self._source):
            self.files.add(name.removeprefix(self._source))


def trace_program(tree: Path, orders: Path, arguments: list[str]) -> None:
    """Be the server or the agent, and do what files called `clear` and `tell` say."""
    trace = Trace(tree)

    def obey() -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            if (clear := orders / "clear").exists():
                trace.files.clear()
                clear.unlink()
            if (tell := orders / "tell").exists():
                (orders / "told").write_text(json.dumps(sorted(trace.files)))
                tell.unlink()

    threading.Thread(target=obey, daemon=True).start()
    sys.setprofile(trace)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__")


def order(orders: Path, what: str) -> None:
    (orders / what).touch()
    while (orders / what).exists():
        time.sleep(LOOK_SECONDS)


def start(
    tree: Path, orders: Path, *arguments: str, under: tuple[str, ...] = (), **options: object
) -> subprocess.Popen:
    orders.mkdir()
    program = [sys.executable, __file__, str(tree), str(orders), *arguments]
    return subprocess.Popen([*under, *program], env=os.environ | {"PYTHONPATH": f"{tree}/src"}, **options)


def trace_client_and_server(tree: Path, work: Path) -> tuple[set[str], set[str]]:
    places = {"ATOLL_STATE_DIR": f"{work}/state", "ATOLL_RUNTIME_DIR": f"{work}/run"}
    os.environ |= places
    with (work / "log").open("wb") as log:
        server = start(tree, work / "server", "atoll.cli", "serve", stderr=log)
    try:
        while not (work / "run/server.sock").exists():
            time.sleep(LOOK_SECONDS)
        from atoll import temporary_sandbox

        with temporary_sandbox("traced") as sandbox:
            for _ in range(3):
                sandbox.exec("true")
            order(work / "server", "clear")
            client = Trace(tree)
            sys.setprofile(client)
            sandbox.exec("true")
            sys.setprofile(None)
            order(work / "server", "tell")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return client.files, set(json.loads((work / "server/told").read_text()))


def scratches() -> set[Path]:
    """What agents that are programs keep for their shells, and leave."""
    return {path for place in ("/dev/shm", "/run", "/tmp", "/var/tmp") for path in Path(place).glob(".atoll-*")}


async def connect(path: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, str(path))
    return peer


def trace_agent(tree: Path, work: Path) -> set[str]:
    path, before = work / "agent.sock", scratches()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        number = listener.fileno()
        unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        arguments = ("atoll.agent", "--listener", str(number))
        agent = start(tree, work / "agent", *arguments, under=unshare, pass_fds=[number])

    async def run() -> None:
        from atoll.protocol.commands import ExecShell
        from atoll.supervisor.agent_link import AgentLink

        async with AgentLink(partial(connect, path)) as link:
            for _ in range(3):
                await link.run(ExecShell(command="true"))
            await asyncio.to_thread(order, work / "agent", "clear")
            await link.run(ExecShell(command="true"))
            await asyncio.to_thread(order, work / "agent", "tell")

    try:
        asyncio.run(run())
    finally:
        agent.kill()
        agent.wait()
        for left in scratches() - before:
            shutil.rmtree(left)
    return set(json.loads((work / "agent/told").read_text()))


def main() -> None:
    tree = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    if len(sys.argv) > 2:
        trace_program(tree, Path(sys.argv[2]), sys.argv[3:])
        return
    sys.path.insert(0, f"{tree}/src")
    with tempfile.TemporaryDirectory() as directory:
        client, server = trace_client_and_server(tree, Path(directory))
        agent = trace_agent(tree, Path(directory))
    for name, files in (("client", client), ("server", server), ("agent", agent)):
        print(f"{name}: {len(files)}", *sorted(files), sep="\n    ")
    print("different files:", len({name.replace("client_sync/", "client/") for name in client | server | agent}))


if __name__ == "__main__":
    main()
