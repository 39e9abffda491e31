"""An engine without isolation: each sandbox is `python -m atoll.agent` as a process of the host, reached over TCP with
a secret. What stands above engines works with it as with any other, or it knows what it should not.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from atoll.agent.commands.process_tree import ProcessStat, parse_stat
from atoll.agent.secret import BYTES
from atoll.engine.base import (
    Capability,
    Event,
    EventKind,
    GatewayListeners,
    LiveSandbox,
    SandboxSpec,
    Usage,
    out_of_reach,
    require,
)
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.limits import Limits
from atoll.protocol.versions import PROTOCOL_VERSION
from atoll.supervisor.agent_link import AgentLink
from tests.contract import plain_holder

HOLDER = str(Path(plain_holder.__file__))
PAUSE_SECONDS = 0.005
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    start_time: int
    port: int
    secret: str


@dataclass
class Held:
    pidfd: int
    keeper: int | None = None

    def release(self) -> None:
        os.close(self.pidfd)
        if self.keeper is not None:
            os.close(self.keeper)


class PlainEngine:
    name = "plain"
    isolation = "none: processes of the host"
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, runtime: Path) -> None:
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = runtime / "plain.lock"
        self._held: dict[str, Held] = {}

    async def start(self, spec: SandboxSpec) -> LiveSandbox:
        secret = secrets.token_bytes(BYTES)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            keeper, pid = await asyncio.to_thread(self._hold, spec, listener.fileno(), secret)
        found = stat_of(pid)
        assert found
        handle = Handle(pid=pid, start_time=found.start_time, port=port, secret=secret.hex())
        text = msgspec.json.encode(handle).decode()
        sandbox = LiveSandbox(
            id=spec.id, engine=self.name, handle=text, generation=spec.generation, protocol=PROTOCOL_VERSION
        )
        self._held[text] = Held(os.pidfd_open(pid), keeper)
        try:
            async with AgentLink(partial(self.connect, sandbox)) as link:
                await link.ping()
        except BaseException:
            await self.stop(sandbox)
            raise
        return sandbox

    def _hold(self, spec: SandboxSpec, listener: int, secret: bytes) -> tuple[int, int]:
        from_us, keeper = os.pipe()
        told, report = os.pipe()
        said, saying = os.pipe()
        os.write(saying, secret)
        os.close(saying)
        with self._lock.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            given = (listener, said, from_us, report, lock.fileno())
            subprocess.run(  # in a session of its own, and nobody's child
                ["setsid", "--fork", sys.executable, HOLDER, str(spec.disk), *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=spec.env,
                check=True,
            )
        for fd in (from_us, report, said):
            os.close(fd)
        with os.fdopen(told) as report_of_holder:
            return keeper, int(report_of_holder.read())

    def why_out_of_reach(self, left: LiveSandbox) -> AtollError | None:
        is_ours = left.engine == self.name and decode(left) is not None
        return out_of_reach(left, self.name) if left.handle and not is_ours else None

    def _read(self, left: LiveSandbox) -> Handle | None:
        if problem := self.why_out_of_reach(left):
            raise problem
        return decode(left)

    async def keep(self, sandbox: LiveSandbox) -> None:
        held = self._held.get(sandbox.handle)
        if held and held.keeper is not None:
            os.write(held.keeper, b"k")

    async def adopt(self, left: LiveSandbox) -> LiveSandbox | None:
        handle = self._read(left)
        if handle is None or left.handle in self._held:
            return left if handle and is_running(handle) else None
        try:
            pidfd = os.pidfd_open(handle.pid)
        except ProcessLookupError:
            return None
        if not is_running(handle):
            os.close(pidfd)
            return None
        self._held[left.handle] = Held(pidfd)
        return left

    async def is_running(self, left: LiveSandbox) -> bool:
        handle = self._read(left)
        return handle is not None and is_running(handle)

    async def release(self, sandbox: LiveSandbox) -> None:
        if held := self._held.pop(sandbox.handle, None):
            held.release()

    async def settle(self, known: Iterable[LiveSandbox], *, are_all: bool) -> None:
        with self._lock.open("wb") as lock:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                await asyncio.sleep(PAUSE_SECONDS)

    async def stop(self, sandbox: LiveSandbox) -> None:
        held = self._held.get(sandbox.handle)
        if held is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(held.pidfd, signal.SIGKILL)
        await self.wait(sandbox)
        await self.release(sandbox)

    async def wait(self, sandbox: LiveSandbox) -> None:
        handle = decode(sandbox)
        while handle and sandbox.handle in self._held and is_running(handle):
            await asyncio.sleep(PAUSE_SECONDS)

    async def connect(self, sandbox: LiveSandbox) -> socket.socket:
        handle, loop = decode(sandbox), asyncio.get_running_loop()
        if handle is None or not is_running(handle):  # who listens there now may be another
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        peer = socket.socket()
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(peer, ("127.0.0.1", handle.port))
            await loop.sock_sendall(peer, bytes.fromhex(handle.secret))
        except BaseException:
            peer.close()
            raise
        return peer

    async def open_port(self, sandbox: LiveSandbox, port: int) -> socket.socket:
        if not 0 < port < 65_536:
            raise error(ErrorCode.INVALID_PORT, f"{port} is not a port", remedy="Give 1 to 65535.")
        if not await self.is_running(sandbox):
            raise error(ErrorCode.SANDBOX_NOT_RUNNING, f"sandbox {sandbox.id!r} is not running", remedy="Start it.")
        peer = socket.socket()
        peer.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
        except OSError as cause:
            peer.close()
            raise error(ErrorCode.PORT_NOT_OPEN, f"nothing listens on port {port}", remedy="Wait.") from cause
        except BaseException:
            peer.close()
            raise
        return peer

    async def open_gateway(self, sandbox: LiveSandbox) -> GatewayListeners:
        require(self, Capability.NETWORK)
        raise AssertionError("it says that it cannot")

    async def freeze(self, sandbox: LiveSandbox) -> None:
        require(self, Capability.FREEZE)

    async def thaw(self, sandbox: LiveSandbox) -> None:
        """It never stands still."""

    def is_frozen(self, sandbox: LiveSandbox) -> bool:
        return False

    async def set_limits(self, sandbox: LiveSandbox, limits: Limits) -> None:
        require(self, Capability.SET_LIMITS)

    async def usage(self, sandbox: LiveSandbox) -> Usage:
        handle = decode(sandbox)
        assert handle
        inside = processes_beside(handle.pid)
        return Usage(
            cpu_seconds=sum(ticks for ticks, _ in inside) / TICKS,
            memory=sum(pages for _, pages in inside) * PAGE,
            processes=len(inside),
            oom_kills=0,
        )

    async def memory_used(self) -> int:
        running = [handle for text in self._held if (handle := msgspec.json.decode(text, type=Handle))]
        return sum(pages for handle in running for _, pages in processes_beside(handle.pid)) * PAGE

    async def events(self, sandbox: LiveSandbox) -> AsyncIterator[Event]:
        if sandbox.handle in self._held:
            await self.wait(sandbox)
            yield Event(kind=EventKind.ENDED, oom_kills=0)

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """It has no processes but its sandboxes'."""
        yield

    async def close(self) -> None:
        for held in self._held.values():
            held.release()
        self._held.clear()


def decode(sandbox: LiveSandbox) -> Handle | None:
    try:
        return msgspec.json.decode(sandbox.handle, type=Handle)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None


def stat_of(pid: int) -> ProcessStat | None:
    with suppress(OSError):
        return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    return None


def is_running(handle: Handle) -> bool:
    found = stat_of(handle.pid)
    return found is not None and found.start_time == handle.start_time and not found.is_zombie


def processes_beside(pid: int) -> list[tuple[int, int]]:
    """Ticks of cpu and pages of memory of each process in the same namespace."""
    namespace = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "ns/pid") == namespace:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                found.append((int(words[11]) + int(words[12]), int(words[21])))
    return found
