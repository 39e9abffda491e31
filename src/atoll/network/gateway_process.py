"""The gateway as its server sees it: a process that is started when it is first needed and again when it has died.

Whatever becomes of it, sandboxes run on. The next one is told of each what the last one knew, and is given listeners
that are made anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from atoll.network import control
from atoll.network.connection_log import ConnectionLog
from atoll.protocol.errors import AtollError
from atoll.protocol.network import NetworkPolicy

PROGRAM = ("-m", "atoll.network")
CLOSE_SECONDS, CATCH_UP_SECONDS = 5.0, 1.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 5.0
STABLE_SECONDS = 10.0  # one that lived so long is started again at once
SEND_PAUSE_SECONDS = 0.002

Listeners = tuple[socket.socket, socket.socket]
OpenListeners = Callable[[], Awaitable[Listeners]]

logger = logging.getLogger("atoll.network")


@dataclass
class Attached:
    """A sandbox that the gateway serves, and how to get listeners in it."""

    hostname: str
    policy: NetworkPolicy
    log: ConnectionLog
    open_listeners: OpenListeners


class GatewayProcess:
    """`runtime` is where it has its empty directory and its log. `program` is what Python is told to run as one."""

    def __init__(self, upstream: control.Upstream, runtime: Path, program: tuple[str, ...] = PROGRAM) -> None:
        self._upstream, self._program = upstream, program
        self._root, self._log = runtime / "gateway", runtime / "gateway.log"
        self._attached: dict[str, Attached] = {}
        self._listeners: dict[str, Listeners] = {}  # that wait for a gateway
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._catching_up: dict[int, asyncio.Event] = {}
        self._last_ticket = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def until_ready(self) -> None:
        self._start_keeping()
        await self._ready.wait()

    async def attach(self, key: str, attached: Attached) -> None:
        """From now on the sandbox reaches what its policy allows. What it sends before a gateway is there waits."""
        listeners = await attached.open_listeners()
        self._attached[key] = attached
        self._forget_listeners(key)
        self._listeners[key] = listeners
        self._start_keeping()
        self._send_waiting()

    def change(self, key: str, policy: NetworkPolicy) -> None:
        """Nothing if it is not attached, as one that does not run."""
        if attached := self._attached.get(key):
            attached.policy = policy
            if key not in self._listeners:
                self._send(control.Change(key=key, policy=policy))

    def detach(self, key: str) -> None:
        """Let a sandbox reach nobody any more, such as one that has ended. Twice is fine."""
        if self._attached.pop(key, None):
            self._forget_listeners(key)
            self._send(control.Detach(key=key))

    async def catch_up(self) -> None:
        """Return when the logs have what has happened until now; or after a moment, if the gateway is busy or away."""
        self._last_ticket += 1
        ticket, caught_up = self._last_ticket, asyncio.Event()
        self._catching_up[ticket] = caught_up
        try:
            if self._send(control.CatchUp(ticket=ticket)):
                async with asyncio.timeout(CATCH_UP_SECONDS):
                    await caught_up.wait()
        except TimeoutError:
            pass
        finally:
            del self._catching_up[ticket]

    async def close(self) -> None:
        """End it. Sandboxes run on, and reach nobody until there is another."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for key in list(self._listeners):
            self._forget_listeners(key)
        self._attached.clear()

    # The process.

    def _start_keeping(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="keep the gateway running")

    async def _keep(self) -> None:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_SECONDS
        while True:
            began = loop.time()
            try:
                await self._run()
            except OSError as cause:
                logger.error("the gateway cannot be started, so sandboxes reach nobody: %s", cause)
            else:
                logger.warning("the gateway ended, and is started again: %s", self._last_words())
            pause = (
                FIRST_PAUSE_SECONDS if loop.time() - began > STABLE_SECONDS else min(2 * pause, LONGEST_PAUSE_SECONDS)
            )
            await asyncio.sleep(pause)
            await self._open_anew()

    async def _run(self) -> None:
        """From its start to its end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                process = self._process = self._start(theirs)
            ours.setblocking(False)
            self._channel = ours
            try:
                opening = control.Opening(root=str(self._root), upstream=self._upstream)
                with suppress(BrokenPipeError, ConnectionResetError):
                    ours.send(control.encode(opening))
                    await self._listen(ours)
            finally:
                self._channel = None
                self._ready.clear()
                for attached in self._attached.values():
                    attached.log.note_end_of_gateway()
                await _ended(process, ours)
                self._process = None

    def _start(self, channel: socket.socket) -> subprocess.Popen[bytes]:
        self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._log.open("wb") as stderr:
            return subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", *self._program, str(channel.fileno())],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[channel.fileno()],
                start_new_session=True,
            )

    async def _listen(self, channel: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while packet := await loop.sock_recv(channel, control.MAX_PACKET):
            try:
                self._take(control.decode_to_server(packet))
            except (msgspec.MsgspecError, ValueError, OverflowError, OSError) as cause:
                logger.error("the gateway says what nobody understands, and is ended: %s", cause)
                return

    def _take(self, message: control.ToServer) -> None:
        match message:
            case control.Ready():
                self._ready.set()
                self._send_waiting()
            case control.CaughtUp():
                if caught_up := self._catching_up.get(message.ticket):
                    caught_up.set()
            case control.Seen():
                if attached := self._attached.get(message.key):
                    attached.log.take(message.reports, message.dropped)

    async def _open_anew(self) -> None:
        """Listeners for all that are attached and have none that wait: the others went with the last gateway."""
        for key, attached in list(self._attached.items()):
            if key in self._listeners:
                continue
            try:
                listeners = await attached.open_listeners()
            except (AtollError, OSError) as problem:  # it has just ended, or something inside took the port meanwhile
                logger.warning("sandbox %s has no network: %s", attached.hostname, problem)
                continue
            if self._attached.get(key) is attached:
                self._listeners[key] = listeners
            else:
                _close(listeners)

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self._log.read_text(errors="replace")[-2_000:].strip().splitlines()
            return lines[-1] if lines else "it left no message"
        return "its log cannot be read"

    # What it is told.

    def _send_waiting(self) -> None:
        if not self._ready.is_set():
            return
        for key in list(self._listeners):
            attached = self._attached[key]
            order = control.Attach(key=key, hostname=attached.hostname, policy=attached.policy)
            if not self._send(order, self._listeners[key]):
                asyncio.get_running_loop().call_later(SEND_PAUSE_SECONDS, self._send_waiting)
                return
            self._forget_listeners(key)

    def _send(self, order: control.ToGateway, listeners: Listeners | None = None) -> bool:
        """Whether it went out. What is not an Attach and does not fit waits for nobody: the gateway is then ended, and
        the next one is told of everything.
        """
        if self._channel is None or not self._ready.is_set():
            return False
        fds = [listener.fileno() for listener in listeners or ()]
        try:
            socket.send_fds(self._channel, [control.encode(order)], fds)
        except BlockingIOError:
            if listeners is None and self._process:
                logger.error("the gateway does not listen, and is ended")
                self._process.kill()
            return False
        except OSError:  # it is gone, which is noticed elsewhere
            return False
        return True

    def _forget_listeners(self, key: str) -> None:
        if listeners := self._listeners.pop(key, None):
            _close(listeners)


def _close(listeners: Listeners) -> None:
    for listener in listeners:
        listener.close()


async def _ended(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    """End it by hanging up, or by force; and wait for it."""
    channel.close()
    pidfd = os.pidfd_open(process.pid)
    loop, has_ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, has_ended.set)
    killer = loop.call_later(CLOSE_SECONDS, process.kill)
    try:
        await has_ended.wait()
    finally:
        killer.cancel()
        loop.remove_reader(pidfd)
        os.close(pidfd)
        process.kill()
        process.wait()
