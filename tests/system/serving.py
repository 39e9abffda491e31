"""Real servers for tests: `atoll serve` as a process, and ways to talk to it that are not the SDK."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.client.plumbing.remote_sandbox import RemoteSandbox
from atoll.client.plumbing.server import Server
from atoll.client.sandbox import AsyncSandbox
from atoll.protocol.sandboxes import SandboxOptions
from tests import kept

HANG_SECONDS = 60.0  # no answer takes a tenth of it


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RunningServer:
    """`atoll serve` on its own directories, on a Unix socket and a TCP port."""

    directory: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    open_files: str | None = None  # that it may have, as prlimit takes it
    program: tuple[str, ...] = ("-m", "atoll.cli")
    process: subprocess.Popen[bytes] = field(init=False)
    port: int = field(init=False)
    key: str = field(init=False, default="")

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def socket(self) -> Path:
        return self.directory / "run/server.sock"

    @property
    def log(self) -> Path:
        return self.directory / "serve.log"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Returns when it takes requests."""
        limit = ["prlimit", f"--nofile={self.open_files}"] if self.open_files else []
        command = [*limit, sys.executable, *self.program, "serve", "--port", "0", *self.options]
        directories = ["--state-dir", str(self.state), "--runtime-dir", str(self.directory / "run")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *directories],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )
        while not (ready := re.search(r'ready on [^"\n]*:(\d+)["\n]', self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            await asyncio.sleep(0.01)
        self.port = int(ready[1])
        self.key = self.key or self.make_key()

    def make_key(self) -> str:
        return kept.make_key(self.state)

    async def kill(self) -> None:
        await self.end(signal.SIGKILL)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, HANG_SECONDS)

    async def close(self) -> None:
        """Destroy what there is, and end it. One that was killed is started for that."""
        if self.process.poll() is not None:
            await self.start()
        await self.destroy_all()
        await self.end()

    async def destroy_all(self) -> None:
        while found := (await self.ask("GET", "/v1/sandboxes?limit=1000")).json()["sandboxes"]:
            for sandbox in found:
                assert (await self.ask("DELETE", f"/v1/sandboxes/{sandbox['id']}")).status == 204

    async def ask(
        self, method: str, path: str, body: object = None, *, tcp: bool = False, headers: dict[str, str] | None = None
    ) -> Answer:
        """A request by a plain HTTP client; what is no bytes goes as JSON."""
        return await asyncio.to_thread(self._ask, method, path, body, tcp, headers or {})

    def _ask(self, method: str, path: str, body: object, tcp: bool, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        with closing(connection):
            if not tcp:
                connection.sock = connect_unix(self.socket)
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            is_endless = "/files/watch" in path and answer.status == 200
            return Answer(answer.status, found, b"" if is_endless else answer.read())

    def sandbox(self, id: str, options: SandboxOptions | None = None, *, tcp: bool = False) -> AsyncSandbox:
        """Of a client of its own, which shares no connection with others."""
        server = Server(self.tcp_url, self.key) if tcp else Server(self.unix_url, None)
        return AsyncSandbox(RemoteSandbox(server, id, options))

    def memory(self) -> int:
        """What it holds, in bytes."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found
        return int(found[1]) * 1024


def connect_unix(path: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(HANG_SECONDS)
    peer.connect(str(path))
    return peer


async def wait_for_end(pid: int) -> None:
    """Of a process that need not be a child of ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], HANG_SECONDS)
        assert ready, f"process {pid} does not end"
    finally:
        os.close(descriptor)
