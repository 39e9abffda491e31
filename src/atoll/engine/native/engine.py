"""The engine's host side: starts the nursery, gives it orders, holds a pidfd of each sandbox, by its handle."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from atoll.agent.commands.process_tree import Identity, ProcessStat
from atoll.engine.base import (
    Capability,
    Event,
    EventKind,
    GatewayListeners,
    LiveSandbox,
    SandboxSpec,
    Usage,
    out_of_reach,
)
from atoll.engine.native import orders
from atoll.engine.native.agent_socket import AgentSocket
from atoll.engine.native.cgroups import Cgroups, open_cgroups
from atoll.engine.native.gateway_rules import DNS_PORT, TCP_PORT
from atoll.engine.native.group_limits import MemoryInUse, Resources
from atoll.engine.native.handles import Held, NativeHandle, ProcessIdentity, is_running
from atoll.engine.native.hoards import HoardWatch
from atoll.engine.native.host_share import limit_all, most_in_sockets
from atoll.engine.native.leftovers import end_leftovers
from atoll.engine.native.nursery_process import (
    ANSWER_SECONDS,
    Delivery,
    NurseryGone,
    NurseryProcess,
    is_in_use,
    make_private_directory,
)
from atoll.engine.native.orders import KEEP
from atoll.engine.native.preflight import check_machine
from atoll.engine.native.strays import end_strays
from atoll.engine.native.watch import Ends, MemoryNews, Watch
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.limits import Limits, limit_in_use
from atoll.protocol.rootfs import Overlay
from atoll.protocol.versions import PROTOCOL_VERSION
from atoll.telemetry.preparations import preparing

EMBRYOS = 2
NURSERY = ("-OO", "-m", "atoll.engine.native")  # without docstrings, which every fork would map
LAUNCH_ATTEMPTS = 3
NO_PAUSE = (0.0,)
OOM_PAUSES_AT_END = (0.002,) * 10  # seconds
LEAVE_SECONDS = 10.0  # as long as a server waits for its own nursery to leave before it kills it
SETTLE_SECONDS, SETTLE_PAUSE_SECONDS = 2.0, 0.005

logger = logging.getLogger("atoll.engine")

Visited = TypeVar("Visited")


class NativeEngine:
    """Makes sandboxes with a nursery, which is started when first needed and again when it died.

    `state` holds images and disks, `runtime` the agents' sockets; other directories that images refer to, such as
    the host's /usr, are named in `exposed`. `embryos` half-made sandboxes are kept ready, 3 MB each. `nursery` is what
    Python is told to run as one.
    """

    name = "native"
    isolation = "native: namespaces, user ids of its own, seccomp, control groups"
    capabilities = frozenset({Capability.FREEZE, Capability.SET_LIMITS, Capability.TELLS_UNREAD, Capability.NETWORK})

    def __init__(
        self,
        state: Path,
        runtime: Path,
        *,
        exposed: tuple[Path, ...] = (Path("/usr"),),
        embryos: int = EMBRYOS,
        nursery: tuple[str, ...] = NURSERY,
    ) -> None:
        check_machine()
        self._cgroups = required_cgroups()
        limit_all(self._cgroups)
        self._ends, self._memory = Ends(), MemoryNews(self._cgroups)
        self._hoards = HoardWatch(self._cgroups, most_in_sockets(), self._memory.tell)
        self._embryos = embryos
        # As they are now: whoever uses this may raise its own, and sandboxes are not to inherit that.
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._nursery_program = nursery
        self._state = state
        self._runtime = runtime
        self._sockets = runtime / "agents"
        self._log = runtime / "nursery.log"
        self._names = {state: "state", self._sockets: "agents"}
        self._names |= {path: f"exposed-{index}" for index, path in enumerate(exposed)}
        for directory in (state, runtime, self._sockets):
            make_private_directory(directory)
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._held: dict[str, Held] = {}
        self._nursery: NurseryProcess | None = None
        self._starting = asyncio.Lock()

    @property
    def nursery_pid(self) -> int | None:
        return self._nursery.pid if self._nursery else None

    async def start(self, spec: SandboxSpec) -> LiveSandbox:
        born, pidfd, keeper = await self._launch(spec)
        handle = NativeHandle(
            process=ProcessIdentity(pid=born.pid, start_time=born.start_time, boot_id=self._boot_id),
            uid_base=born.uid_base,
            agent_socket=str(self._sockets / born.socket_name),
        )
        held = Held.by(handle, pidfd, keeper)
        self._hoards.add(held.group, born.pid)
        sandbox = LiveSandbox(
            id=spec.id,
            engine=self.name,
            handle=handle.encode(),
            generation=spec.generation,
            protocol=PROTOCOL_VERSION,
        )
        self._held[sandbox.handle] = held
        return sandbox

    def why_out_of_reach(self, left: LiveSandbox) -> AtollError | None:
        is_ours = left.engine == self.name and NativeHandle.decode(left.handle) is not None
        return out_of_reach(left, self.name) if left.handle and not is_ours else None

    async def keep(self, sandbox: LiveSandbox) -> None:
        held = self._held.get(sandbox.handle)
        if held is None or held.keeper is None:
            return
        with socket.socket(fileno=held.keeper) as channel:
            held.keeper = None
            try:
                channel.send(KEEP)
            except OSError as cause:
                raise error(
                    ErrorCode.SANDBOX_NOT_RUNNING,
                    f"sandbox {sandbox.id!r} ended as soon as it was made",
                    remedy="Make it again; if that happens again, look at the kernel's log.",
                ) from cause

    async def adopt(self, left: LiveSandbox) -> LiveSandbox | None:
        handle = self._read(left)
        if handle is None or handle.process.boot_id != self._boot_id:
            return None
        if left.handle in self._held:
            return left if is_running(handle.process) else None
        try:
            pidfd = os.pidfd_open(handle.process.pid)
        except ProcessLookupError:
            return None
        # Only now: what the pidfd holds cannot change any more, and this tells whether it is the one we mean.
        if not is_running(handle.process):
            os.close(pidfd)
            return None
        self._held[left.handle] = held = Held.by(handle, pidfd)
        self._hoards.add(held.group, handle.process.pid)
        return left

    async def is_running(self, left: LiveSandbox) -> bool:
        handle = self._read(left)
        return handle is not None and handle.process.boot_id == self._boot_id and is_running(handle.process)

    async def release(self, sandbox: LiveSandbox) -> None:
        if held := self._held.pop(sandbox.handle, None):
            held.release()

    async def settle(self, known: Iterable[LiveSandbox], *, are_all: bool) -> None:
        known = list(known)
        unknown = await self._settle(held for sandbox in known if (held := self._find(sandbox)))
        if unknown:
            if not are_all or any(self._is_unreadable(sandbox) for sandbox in known):
                return
            for pid in await asyncio.to_thread(end_strays, unknown):
                logger.warning("a sandbox that nobody knows any more was still running (process %d), and is ended", pid)
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._until_gone(unknown)

    async def _settle(self, known: Iterable[Held]) -> set[Path]:
        """Wait for the end of what was half-made. Of others than those known, the sockets that answer all the same."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await _until_not(is_in_use, self._log)
        except TimeoutError:
            await self._end_leftovers()
        unknown = set(self._sockets.iterdir()) - {held.agent.path for held in known}
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._until_gone(unknown)
        except TimeoutError:  # one that still answers was told to live on
            return unknown
        return set()

    async def _until_gone(self, sockets: Iterable[Path]) -> None:
        for path in sockets:
            await _until_not(answers, path)
            path.unlink(missing_ok=True)

    async def _end_leftovers(self) -> None:
        """Of an earlier nursery, which should have ended with its server. Again until none is there."""
        told: set[Identity] = set()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while is_in_use(self._log):
                    ended = await asyncio.to_thread(end_leftovers, self._log, self._nursery_program)
                    tell([process for process in ended if process.identity not in told])
                    told |= {process.identity for process in ended}
                    await asyncio.sleep(SETTLE_PAUSE_SECONDS)
        except TimeoutError as cause:
            raise error(
                ErrorCode.NURSERY_FAILED,
                f"an earlier nursery in {self._runtime} does not end",
                remedy=f"Look with `fuser {self._log}` who has it. A process that not even SIGKILL ends waits for the "
                "kernel; one whose server runs is of another state directory, which needs its own runtime directory.",
            ) from cause

    async def _launch(self, spec: SandboxSpec) -> Delivery:
        """Ask the nursery; and the next one, if it was gone before it could hear us."""
        for _ in range(LAUNCH_ATTEMPTS):
            nursery = await self._running_nursery()
            launch = orders.Launch(
                ticket=nursery.next_ticket(),
                sandbox_id=spec.id,
                overlays=tuple(self._translate(overlay) for overlay in spec.rootfs.overlays),
                disk=self._in_nursery(str(spec.disk)),
                resources=Resources(cpus=spec.limits.cpus, memory=spec.limits.memory, pids=spec.limits.pids),
            )
            with suppress(NurseryGone):
                return await nursery.launch(launch, spec.env)
        raise nursery.failure()

    async def stop(self, sandbox: LiveSandbox) -> None:
        held = self._held.get(sandbox.handle)
        if held is None or held.pidfd is None:
            return
        self._hoards.discard(held.group)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(held.pidfd, signal.SIGKILL)
        await self.thaw(sandbox)  # on version 1 the frozen do not even die
        await self.wait(sandbox)
        await self.release(sandbox)
        # The nursery does this as well; unless it died.
        held.agent.path.unlink(missing_ok=True)
        self._cgroups.remove(held.group)

    async def wait(self, sandbox: LiveSandbox) -> None:
        held = self._held.get(sandbox.handle)
        if held and held.pidfd is not None:
            await self._ends.wait(held.pidfd)

    async def connect(self, sandbox: LiveSandbox) -> socket.socket:
        return await self._known(sandbox).agent.connect()

    async def freeze(self, sandbox: LiveSandbox) -> None:
        try:
            await asyncio.to_thread(self._cgroups.freeze, self._known(sandbox).group)
        except TimeoutError as cause:
            raise error(
                ErrorCode.SANDBOX_NOT_FROZEN,
                f"sandbox {sandbox.id!r} did not stand still",
                remedy="A process in it waits for the kernel, perhaps for a disk; try again, or stop the sandbox.",
            ) from cause

    async def thaw(self, sandbox: LiveSandbox) -> None:
        with suppress(FileNotFoundError):
            self._cgroups.thaw(self._known(sandbox).group)

    def is_frozen(self, sandbox: LiveSandbox) -> bool:
        return self._cgroups.is_frozen(self._known(sandbox).group)

    async def set_limits(self, sandbox: LiveSandbox, limits: Limits) -> None:
        """In a thread: the kernel may have to take memory back for it."""
        resources = Resources(cpus=limits.cpus, memory=limits.memory, pids=limits.pids)
        try:
            await asyncio.to_thread(self._cgroups.change_limits, self._known(sandbox).group, resources)
        except FileNotFoundError as cause:  # it ends just now
            raise _not_running(sandbox) from cause
        except MemoryInUse as cause:
            raise limit_in_use("memory", limits.memory, cause.used, sandbox.id) from cause

    async def usage(self, sandbox: LiveSandbox) -> Usage:
        """Read in a thread: the kernel takes its time to add up what many cpus counted."""
        return await asyncio.to_thread(self._cgroups.usage, self._known(sandbox).group)

    async def memory_used(self) -> int:
        return await asyncio.to_thread(self._cgroups.memory_used)

    async def open_port(self, sandbox: LiveSandbox, port: int) -> socket.socket:
        if not 0 < port < 65_536:
            raise error(ErrorCode.INVALID_PORT, f"{port} is not a port", remedy="Give 1 to 65535.", port=port)
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            peer = await self._socket_inside(sandbox, family)
            try:
                await asyncio.get_running_loop().sock_connect(peer, (address, port))
                return peer
            except OSError:
                peer.close()
            except BaseException:
                peer.close()
                raise
        raise error(
            ErrorCode.PORT_NOT_OPEN,
            f"nothing listens on port {port} of sandbox {sandbox.id!r}",
            remedy="Start the service first, and wait for its port.",
            port=port,
        )

    async def _socket_inside(self, sandbox: LiveSandbox, family: socket.AddressFamily) -> socket.socket:
        return await self._visit(sandbox, lambda nursery, pidfd: nursery.open_socket(family, pidfd))

    async def open_gateway(self, sandbox: LiveSandbox) -> GatewayListeners:
        try:
            return GatewayListeners(*await self._visit(sandbox, NurseryProcess.open_gateway))
        except OSError as cause:
            if isinstance(cause, AtollError):
                raise
            raise no_gateway(sandbox, cause) from cause

    async def _visit(self, sandbox: LiveSandbox, visit: Callable[[NurseryProcess, int], Awaitable[Visited]]) -> Visited:
        """Have the nursery make something in the sandbox's network namespace."""
        held = self._held.get(sandbox.handle)
        if held is None or held.pidfd is None:
            raise _not_running(sandbox)
        for _ in range(LAUNCH_ATTEMPTS):
            nursery = await self._running_nursery()
            try:
                return await visit(nursery, held.pidfd)
            except NurseryGone:
                continue
            except ProcessLookupError as cause:
                raise _not_running(sandbox) from cause
        raise nursery.failure()

    async def events(self, sandbox: LiveSandbox) -> AsyncIterator[Event]:
        held = self._held.get(sandbox.handle)
        if held is None or held.pidfd is None:
            return
        name, stack = held.group, ExitStack()
        try:
            known, hoards_known = self._cgroups.oom_kills(name), self._hoards.kills(name)
            watch = stack.enter_context(Watch(self._ends, held.pidfd, self._memory, name))
        except FileNotFoundError:  # the group is gone with the sandbox
            yield Event(kind=EventKind.ENDED, oom_kills=0)
            return
        with stack:
            while not watch.has_ended:
                await watch.news()
                if (hoards := self._hoards.kills(name)) > hoards_known:
                    hoards_known = hoards
                    yield Event(kind=EventKind.HOARD_KILLED, oom_kills=known)
                pauses = OOM_PAUSES_AT_END if watch.has_ended else NO_PAUSE
                if (kills := await self._oom_kills(name, known, pauses)) > known:
                    known = kills
                    yield Event(kind=EventKind.OOM_KILLED, oom_kills=known)
        yield Event(kind=EventKind.ENDED, oom_kills=known)

    async def _oom_kills(self, name: str, known: int, pauses: Iterable[float]) -> int:
        """Version 1 announces a kill before it does it, and counts it after; so we look a few times."""
        with suppress(FileNotFoundError):  # the group is gone with the sandbox
            for pause in pauses:
                if (kills := self._cgroups.oom_kills(name)) > known:
                    return kills
                await asyncio.sleep(pause)
        return known

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """The nursery and its children see every mount that was there when it was started."""
        async with self._starting:
            await self._end_nursery()
            yield

    async def close(self) -> None:
        await self._end_nursery()
        await asyncio.to_thread(self._hoards.close)
        for held in self._held.values():
            held.release()
        self._held.clear()
        self._cgroups.close()

    async def _end_nursery(self) -> None:
        if self._nursery:
            await self._nursery.close()
            self._nursery = None

    async def _running_nursery(self) -> NurseryProcess:
        async with self._starting:
            if self._nursery and self._nursery.has_ended:
                was_stopped = self._nursery.was_stopped
                await self._end_nursery()
                if was_stopped:  # before the same is begun once more, on the same disks
                    await self._settle(self._held.values())
            if self._nursery is None:
                exposures = tuple(
                    orders.Exposure(name, str(path), is_written=path == self._state)
                    for path, name in self._names.items()
                )
                root = self._runtime / "nursery"
                opening = orders.Opening(
                    runtime=str(root), exposures=exposures, embryos=self._embryos, open_files=self._open_files
                )
                with preparing("the process that makes sandboxes"):
                    self._nursery = await NurseryProcess.start(self._nursery_program, opening, self._log)
            return self._nursery

    def _find(self, sandbox: LiveSandbox) -> Held | None:
        """The sandbox as it is held; or else as its handle says."""
        if held := self._held.get(sandbox.handle):
            return held
        handle = NativeHandle.decode(sandbox.handle) if sandbox.engine == self.name else None
        return Held.by(handle) if handle else None

    def _read(self, left: LiveSandbox) -> NativeHandle | None:
        """None if it never was started."""
        if problem := self.why_out_of_reach(left):
            raise problem
        return NativeHandle.decode(left.handle)

    def _is_unreadable(self, left: LiveSandbox) -> bool:
        """Of ours, but for what became of its handle."""
        return left.engine == self.name and NativeHandle.decode(left.handle) is None

    def _known(self, sandbox: LiveSandbox) -> Held:
        if held := self._find(sandbox):
            return held
        raise _not_running(sandbox)

    def _translate(self, overlay: Overlay) -> Overlay:
        layers = tuple(self._in_nursery(layer) for layer in overlay.layers)
        return Overlay(name=overlay.name, target=overlay.target, layers=layers)

    def _in_nursery(self, path: str) -> str:
        """Where the nursery sees a host path. As text: each layer of each sandbox comes by, and pathlib is slow."""
        for exposed, name in self._names.items():
            if f"{path}/".startswith(f"{exposed}/"):
                return f"/{name}{path.removeprefix(str(exposed))}"
        raise error(ErrorCode.INTERNAL_ERROR, f"{path} is not exposed to the nursery")


def tell(ended: Iterable[ProcessStat]) -> None:
    for process in ended:
        name = process.name.decode(errors="replace")
        logger.warning("process %d (%s) of an earlier nursery did not end by itself, and is killed", process.pid, name)


def _not_running(sandbox: LiveSandbox) -> AtollError:
    return error(
        ErrorCode.SANDBOX_NOT_RUNNING,
        f"sandbox {sandbox.id!r} is not running",
        remedy="Start it again; its files are kept.",
        sandbox=sandbox.id,
    )


def no_gateway(sandbox: LiveSandbox, cause: OSError) -> AtollError:
    """Why nobody can listen in there for what leaves the sandbox."""
    if cause.errno == errno.EADDRNOTAVAIL:
        reason = "this kernel has no packet filter with nat (nf_tables, nf_nat)"
        remedy = "Boot a kernel with them, or load the modules nft_chain_nat, nft_ct, nft_limit and nft_reject_ipv4."
    elif cause.errno == errno.EADDRINUSE:
        reason = "a program inside has taken the gateway's port"
        remedy = f"End what listens there on port {TCP_PORT} or {DNS_PORT}, then stop and start the sandbox."
    else:
        reason, remedy = os.strerror(cause.errno or 0), "Stop and start the sandbox."
    return error(
        ErrorCode.NETWORK_NOT_AVAILABLE,
        f"sandbox {sandbox.id!r} has no network: {reason}",
        remedy=remedy,
        sandbox=sandbox.id,
    )


def answers(agent_socket: Path) -> bool:
    return AgentSocket(agent_socket).answers()


async def _until_not(holds: Callable[[Path], bool], path: Path) -> None:
    while holds(path):  # noqa: ASYNC110 (other processes change that, and tell nobody)
        await asyncio.sleep(SETTLE_PAUSE_SECONDS)


def required_cgroups() -> Cgroups:
    cgroups = open_cgroups()
    if cgroups is None:
        raise error(
            ErrorCode.LIMITS_NOT_ENFORCEABLE,
            "this machine has no control groups that limit memory, processes and cpu",
            remedy="Mount cgroup2 on /sys/fs/cgroup with the memory, pids and cpu controllers, as systemd does.",
        )
    return cgroups
