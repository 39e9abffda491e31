"""The engine's host side: starts the nursery, gives it orders, holds a pidfd of each sandbox."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from atoll.agent.process_tree import parse_stat
from atoll.engine.base import LiveSandbox, ProcessIdentity, SandboxSpec, Usage
from atoll.engine.native import orders
from atoll.engine.native.cgroups import Cgroups, Resources, group_name, open_cgroups
from atoll.engine.native.orders import KEEP
from atoll.engine.native.preflight import check_machine
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.rootfs import Overlay

MAX_ANSWER = 1 << 16
LOG_TAIL = 2_000
EMBRYOS = 2
NURSERY = ("-m", "atoll.engine.native.nursery")
ANSWER_SECONDS = 60.0  # a thousand times what it takes; a nursery that needs longer is stopped or lost
CLOSE_SECONDS = 10.0
LAUNCH_ATTEMPTS = 3
SEND_PAUSE_SECONDS = 0.002


class NativeEngine:
    """Makes sandboxes with a nursery, which is started when first needed and again when it died.

    `state` holds images and disks, `runtime` the agents' sockets; other directories that images refer to, such as
    the host's /usr, are named in `exposed`. `embryos` half-made sandboxes are kept ready, 3 MB each. `nursery` is what
    Python is told to run as one.
    """

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
        self._embryos = embryos
        self._nursery_program = nursery
        self._state = state
        self._runtime = runtime
        self._sockets = runtime / "agents"
        self._names = {state: "state", self._sockets: "agents"}
        self._names |= {path: f"exposed-{index}" for index, path in enumerate(exposed)}
        for directory in (state, runtime, self._sockets):
            _make_private_directory(directory)
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._nursery: NurseryProcess | None = None
        self._starting = asyncio.Lock()

    @property
    def nursery_pid(self) -> int | None:
        return self._nursery.pid if self._nursery else None

    async def start(self, spec: SandboxSpec) -> LiveSandbox:
        born, pidfd, keeper = await self._launch(spec)
        return LiveSandbox(
            id=spec.id,
            process=ProcessIdentity(pid=born.pid, start_time=born.start_time, boot_id=self._boot_id),
            uid_base=born.uid_base,
            agent_socket=self._sockets / born.socket_name,
            pidfd=pidfd,
            keeper=keeper,
        )

    async def keep(self, sandbox: LiveSandbox) -> None:
        if sandbox.keeper is None:
            return
        with socket.socket(fileno=sandbox.keeper) as channel:
            sandbox.keeper = None
            try:
                channel.send(KEEP)
            except OSError as cause:
                raise error(
                    ErrorCode.SANDBOX_NOT_RUNNING,
                    f"sandbox {sandbox.id!r} ended as soon as it was made",
                    remedy="Make it again; if that happens again, look at the kernel's log.",
                ) from cause

    async def adopt(self, left: LiveSandbox) -> LiveSandbox | None:
        if left.process.boot_id != self._boot_id:
            return None
        try:
            pidfd = os.pidfd_open(left.process.pid)
            # Only now: what the pidfd holds cannot change any more, and this tells whether it is the one we mean.
            stat = Path(f"/proc/{left.process.pid}/stat").read_bytes()
        except (ProcessLookupError, FileNotFoundError):
            return None
        found = parse_stat(stat)
        if found.start_time != left.process.start_time or found.is_zombie:
            os.close(pidfd)
            return None
        return replace(left, pidfd=pidfd, keeper=None)

    async def _launch(self, spec: SandboxSpec) -> Delivery:
        """Ask the nursery; and the next one, if it was gone before it could hear us."""
        for _ in range(LAUNCH_ATTEMPTS):
            nursery = await self._running_nursery()
            launch = orders.Launch(
                ticket=nursery.next_ticket(),
                sandbox_id=spec.id,
                overlays=tuple(self._translate(overlay) for overlay in spec.rootfs.overlays),
                disk=self._in_nursery(spec.disk),
                resources=Resources(cpus=spec.limits.cpus, memory=spec.limits.memory, pids=spec.limits.pids),
            )
            with suppress(NurseryGone):
                return await nursery.launch(launch, spec.env)
        raise nursery.failure()

    async def stop(self, sandbox: LiveSandbox) -> None:
        if sandbox.pidfd is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(sandbox.pidfd, signal.SIGKILL)
        await self.thaw(sandbox)  # on version 1 the frozen do not even die
        await self.wait(sandbox)
        for fd in (sandbox.pidfd, sandbox.keeper):
            if fd is not None:
                os.close(fd)
        sandbox.pidfd = sandbox.keeper = None
        # The nursery does this as well; unless it died.
        sandbox.agent_socket.unlink(missing_ok=True)
        self._cgroups.remove(group_name(sandbox.uid_base))

    async def wait(self, sandbox: LiveSandbox) -> None:
        if sandbox.pidfd is None:
            return
        # A copy, so that stop() may close its own while others still wait.
        await _ended(os.dup(sandbox.pidfd))

    async def freeze(self, sandbox: LiveSandbox) -> None:
        try:
            await asyncio.to_thread(self._cgroups.freeze, group_name(sandbox.uid_base))
        except TimeoutError as cause:
            raise error(
                ErrorCode.SANDBOX_NOT_FROZEN,
                f"sandbox {sandbox.id!r} did not stand still",
                remedy="A process in it waits for the kernel, perhaps for a disk; try again, or stop the sandbox.",
            ) from cause

    async def thaw(self, sandbox: LiveSandbox) -> None:
        with suppress(FileNotFoundError):
            self._cgroups.thaw(group_name(sandbox.uid_base))

    async def usage(self, sandbox: LiveSandbox) -> Usage:
        return self._cgroups.usage(group_name(sandbox.uid_base))

    async def close(self) -> None:
        if self._nursery:
            await self._nursery.close()
            self._nursery = None

    async def _running_nursery(self) -> NurseryProcess:
        async with self._starting:
            if self._nursery and self._nursery.has_ended:
                await self._nursery.close()
                self._nursery = None
            if self._nursery is None:
                exposures = tuple(orders.Exposure(name, str(path)) for path, name in self._names.items())
                self._nursery = await NurseryProcess.start(
                    self._nursery_program, self._runtime, exposures, self._embryos
                )
            return self._nursery

    def _translate(self, overlay: Overlay) -> Overlay:
        layers = tuple(self._in_nursery(Path(layer)) for layer in overlay.layers)
        return Overlay(name=overlay.name, target=overlay.target, layers=layers)

    def _in_nursery(self, path: Path) -> str:
        """Where the nursery sees a host path."""
        for exposed, name in self._names.items():
            if path.is_relative_to(exposed):
                return f"/{name}/{path.relative_to(exposed)}"
        raise error(ErrorCode.INTERNAL_ERROR, f"{path} is not exposed to the nursery")


class Delivery(NamedTuple):
    """A new sandbox: who it is, a pidfd of its first process, and the channel on which to say KEEP."""

    born: orders.Born
    pidfd: int
    keeper: int


class NurseryGone(Exception):
    """An order did not reach the nursery: nothing was made."""


class NurseryProcess:
    """A running nursery and the launches it has not answered yet."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._channel = channel
        self._log = log
        self._waiting: dict[int, asyncio.Future[Delivery]] = {}
        self._last_ticket = 0
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel, self._on_readable)
        self.has_ended = False

    @classmethod
    async def start(
        cls, program: tuple[str, ...], runtime: Path, exposures: tuple[orders.Exposure, ...], embryos: int
    ) -> NurseryProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        root = runtime / "nursery"
        _make_private_directory(root)
        log = runtime / "nursery.log"
        with theirs, log.open("wb") as stderr:
            command = [sys.executable, "-I", "-X", "utf8", *program, str(theirs.fileno())]
            try:
                process = subprocess.Popen(
                    command,
                    env={},  # every sandbox's PID 1 inherits it
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as cause:
                ours.close()
                raise error(
                    ErrorCode.NURSERY_FAILED,
                    f"the process that makes sandboxes cannot be started: {cause}",
                    remedy=f"Check that {sys.executable} is a Python that runs.",
                ) from cause
        nursery = cls(process, ours, log)
        opening = orders.Opening(runtime=str(root), exposures=exposures, embryos=embryos)
        try:
            await nursery._send(orders.encode(opening), [])
            async with asyncio.timeout(ANSWER_SECONDS):
                await nursery._opened
        except BaseException as cause:
            process.kill()
            await nursery.close()
            if isinstance(cause, TimeoutError | NurseryGone):
                raise nursery.failure() from cause
            raise
        return nursery

    def next_ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

    async def launch(self, launch: orders.Launch, env: dict[str, str]) -> Delivery:
        answer = self._waiting[launch.ticket] = self._loop.create_future()
        try:
            with _sealed(orders.encode(env)) as env_fd:
                await self._send(orders.encode(launch), [env_fd])
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await _undo(answer)
            raise
        except TimeoutError as cause:
            answer.add_done_callback(_discard)
            self._process.kill()
            self._end()
            raise self.failure() from cause

    async def close(self) -> None:
        if self._process.returncode is None:
            pidfd = os.pidfd_open(self._process.pid)
            self._end()
            self._loop.call_later(CLOSE_SECONDS, self._process.kill)
            await _ended(pidfd)
            self._process.wait()

    async def _send(self, packet: bytes, fds: list[int]) -> None:
        try:
            while True:
                try:
                    socket.send_fds(self._channel, [packet], fds)
                    return
                except BlockingIOError:  # it has its hands full
                    await asyncio.sleep(SEND_PAUSE_SECONDS)
        except OSError as cause:
            self._end()
            raise NurseryGone from cause

    def _on_readable(self) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(self._channel, MAX_ANSWER, 2)
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        if packet:
            self._on_answer(orders.decode_answer(packet), fds)
        else:
            self._end()

    def _on_answer(self, answer: orders.Answer, fds: list[int]) -> None:
        match answer:
            case orders.Opened():
                self._opened.set_result(None)
            case orders.Born() if len(fds) == 2:
                for fd in fds:
                    os.set_inheritable(fd, False)
                self._waiting.pop(answer.ticket).set_result(Delivery(answer, *fds))
            case orders.Born():
                for fd in fds:
                    os.close(fd)
                os.kill(answer.pid, signal.SIGKILL)
                self._waiting.pop(answer.ticket).set_exception(_out_of_descriptors())
            case orders.Stillborn():
                self._waiting.pop(answer.ticket).set_exception(start_error(answer))

    def _end(self) -> None:
        """The nursery is gone, or shall be: whoever waits for it learns that."""
        if self.has_ended:
            return
        self.has_ended = True
        self._loop.remove_reader(self._channel)
        self._channel.close()
        waiting: list[asyncio.Future[Any]] = [*self._waiting.values(), self._opened]
        self._waiting.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(self.failure())
                future.exception()  # seen, also where nobody waits any more
        self._process.poll()

    def failure(self) -> AtollError:
        log = self._log.read_text(errors="replace")[-LOG_TAIL:].strip()
        last = log.splitlines()[-1] if log else "it left no message"
        return error(
            ErrorCode.NURSERY_FAILED,
            f"the process that makes sandboxes ended: {last}",
            remedy=f"Try again; it is started anew. Its log is {self._log}.",
            log=log,
        )


def required_cgroups() -> Cgroups:
    cgroups = open_cgroups()
    if cgroups is None:
        raise error(
            ErrorCode.LIMITS_NOT_ENFORCEABLE,
            "this machine has no control groups that limit memory, processes and cpu",
            remedy="Mount cgroup2 on /sys/fs/cgroup with the memory, pids and cpu controllers, as systemd does.",
        )
    return cgroups


def start_error(answer: orders.Stillborn) -> AtollError:
    """Why a sandbox did not start, and what to do."""
    said = f"{answer.step}: {answer.detail}"
    if answer.step == "idmap the layers" and answer.errno == errno.EINVAL:
        return error(
            ErrorCode.LAYER_NOT_IDMAPPABLE,
            f"the file system of the image, or of the state directory, cannot be idmapped ({said})",
            remedy="Keep /usr and the state directory on ext4, xfs, btrfs or tmpfs; overlay and network file systems "
            "(as inside a container) will not do.",
        )
    if answer.step == "take a uid range" and not answer.errno:
        return error(ErrorCode.UID_RANGES_EXHAUSTED, answer.detail, remedy="Stop or destroy some sandboxes.")
    return error(
        ErrorCode.SANDBOX_START_FAILED,
        f"the sandbox could not be made ({said})",
        remedy="Check that this machine allows user namespaces and overlay mounts.",
        step=answer.step,
        errno=answer.errno,
    )


async def _ended(pidfd: int) -> None:
    """Wait for the process, and close its pidfd."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _make_private_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as cause:
        raise error(
            ErrorCode.STATE_DIRECTORY_UNUSABLE,
            f"{path} cannot be made: {cause.strerror}",
            remedy="Choose another directory, or remove what is in the way.",
            path=str(path),
        ) from cause


@contextmanager
def _sealed(content: bytes) -> Iterator[int]:
    """A descriptor of a file in memory."""
    fd = os.memfd_create("environment", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


async def _undo(answer: asyncio.Future[Delivery]) -> None:
    """Nobody wants this sandbox any more: wait for it, and for its end."""
    try:
        await asyncio.wait([answer])
    except asyncio.CancelledError:
        answer.add_done_callback(_discard)
        raise
    if not answer.exception():
        _, pidfd, keeper = answer.result()
        os.close(keeper)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await _ended(pidfd)


def _discard(answer: asyncio.Future[Delivery]) -> None:
    """The same, without anyone who could wait."""
    if not answer.cancelled() and not answer.exception():
        _, pidfd, keeper = answer.result()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        os.close(keeper)


def _out_of_descriptors() -> AtollError:
    return error(
        ErrorCode.SANDBOX_START_FAILED,
        "this process has no descriptor left to hold a sandbox by",
        remedy="Raise its limit of open files (ulimit -n), or stop some sandboxes.",
    )
