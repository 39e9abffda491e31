"""A running nursery, as the engine sees it: one socket, orders out, answers in."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from atoll.agent.commands.process_tree import ProcessStat, parse_stat
from atoll.engine.native import orders
from atoll.engine.native.zygote import PROCESS_NAME as ZYGOTE_NAME
from atoll.protocol.errors import AtollError, ErrorCode, error, too_many_open_files

MAX_ANSWER = 1 << 16
LOG_TAIL = 2_000
ANSWER_SECONDS = 60.0  # a thousand times what it takes; a nursery that needs longer is stopped or lost
CLOSE_SECONDS = 10.0
SEND_PAUSE_SECONDS = 0.002
LOOK_SECONDS = 0.5  # after which an answer is late enough for a look at who should give it

logger = logging.getLogger("atoll.engine")

T = TypeVar("T")


class Delivery(NamedTuple):
    """A new sandbox: who it is, a pidfd of its first process, and the channel on which to say KEEP."""

    born: orders.Born
    pidfd: int
    keeper: int


class NurseryGone(Exception):
    """An order did not reach the nursery: nothing was made."""


class NurseryStopped(NurseryGone):
    """A nursery was stopped by somebody, so it was ended. What it had begun ends by itself: nobody said to keep it."""


class NurseryProcess:
    """A running nursery and the launches it has not answered yet."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._channel = channel
        self._log = log
        self._waiting: dict[int, asyncio.Future[Delivery]] = {}
        self._sockets: dict[int, asyncio.Future[list[socket.socket]]] = {}
        self._last_ticket = 0
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel, self._on_readable)
        self.has_ended = self.was_stopped = False

    @classmethod
    async def start(cls, program: tuple[str, ...], opening: orders.Opening, log: Path) -> NurseryProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        make_private_directory(Path(opening.runtime))
        with theirs, log.open("wb") as stderr:
            fcntl.flock(stderr, fcntl.LOCK_SH)  # the nursery inherits it, and so shows for how long it lives
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
        try:
            await nursery._send(orders.encode(opening), [])
            await nursery._answer(nursery._opened)
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
        with _sealed(orders.encode(env)) as env_fd:
            await self._send(orders.encode(launch), [env_fd])
        # Not before: an order that was given up while it waited to be sent has no answer to wait for.
        answer = self._waiting[launch.ticket] = self._loop.create_future()
        try:
            return await self._answer(answer)
        except asyncio.CancelledError:
            await self._undo(answer)
            raise
        except TimeoutError as cause:
            answer.add_done_callback(_discard)
            self._give_up()
            raise self.failure() from cause

    async def _answer(self, answer: asyncio.Future[T]) -> T:
        """Wait for it; but not for that of a nursery which was stopped."""
        give_up = self._loop.time() + ANSWER_SECONDS
        while not answer.done():
            if (patience := min(LOOK_SECONDS, give_up - self._loop.time())) <= 0:
                raise TimeoutError
            if not (await asyncio.wait([answer], timeout=patience))[0]:
                self._end_if_stopped()
        return answer.result()

    def _end_if_stopped(self) -> None:
        if self.has_ended or not (stopped := stopped_parts(self.pid)):
            return
        self.was_stopped = True
        for process in stopped:
            name = process.name.decode(errors="replace")
            logger.warning("process %d (%s) was stopped, so the nursery is ended and started anew", process.pid, name)
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._give_up()

    async def _undo(self, answer: asyncio.Future[Delivery]) -> None:
        """End a sandbox that nobody wants any more: wait for it, and for its end."""
        try:
            delivery = await self._answer(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(_discard)
            raise
        except TimeoutError:
            answer.add_done_callback(_discard)
            self._give_up()
        except (AtollError, NurseryGone):  # there is none
            pass
        else:
            os.close(delivery.keeper)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(delivery.pidfd, signal.SIGKILL)
            await ended(delivery.pidfd)

    def _give_up(self) -> None:
        """Kill the nursery, which does not answer any more."""
        self._process.kill()
        self._end()

    async def open_socket(self, family: int, pidfd: int) -> socket.socket:
        """A socket in that process's network namespace; ProcessLookupError if it has ended."""
        (made,) = await self._open(orders.OpenSocket(ticket=self.next_ticket(), family=family), pidfd)
        return made

    async def open_gateway(self, pidfd: int) -> tuple[socket.socket, socket.socket]:
        """A gateway's listeners there, for TCP and for DNS; ProcessLookupError if the process has ended."""
        tcp, dns = await self._open(orders.OpenGateway(ticket=self.next_ticket()), pidfd)
        return tcp, dns

    async def _open(self, order: orders.OpenSocket | orders.OpenGateway, pidfd: int) -> list[socket.socket]:
        answer: asyncio.Future[list[socket.socket]] = self._loop.create_future()
        self._sockets[order.ticket] = answer
        try:
            await self._send(orders.encode(order), [pidfd])
            return await self._answer(answer)
        except TimeoutError as cause:
            raise self.failure() from cause
        finally:
            self._sockets.pop(order.ticket, None)

    async def close(self) -> None:
        if self._process.returncode is None:
            self._end_if_stopped()
            pidfd = os.pidfd_open(self._process.pid)
            self._end()
            self._loop.call_later(CLOSE_SECONDS, self._process.kill)
            await ended(pidfd)
            self._process.wait()

    async def _send(self, packet: bytes, fds: list[int]) -> None:
        look_at = self._loop.time() + LOOK_SECONDS
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    try:
                        socket.send_fds(self._channel, [packet], fds)
                        return
                    except BlockingIOError:  # it has its hands full
                        await asyncio.sleep(SEND_PAUSE_SECONDS)
                    if self._loop.time() > look_at:
                        self._end_if_stopped()
                        look_at = self._loop.time() + LOOK_SECONDS
        except OSError as cause:  # also that the time is up
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
                for fd in fds:  # with the channel, which is how the sandbox learns that nobody keeps it
                    os.close(fd)
                self._waiting.pop(answer.ticket).set_exception(_out_of_descriptors())
            case orders.Stillborn():
                self._waiting.pop(answer.ticket).set_exception(start_error(answer))
            case orders.SocketOpened() | orders.SocketRefused():
                self._on_socket(answer, fds)

    def _on_socket(self, answer: orders.SocketOpened | orders.SocketRefused, fds: list[int]) -> None:
        waiting = self._sockets.pop(answer.ticket, None)
        if waiting is None or waiting.done():  # whoever wanted it is gone
            for fd in fds:
                os.close(fd)
        elif isinstance(answer, orders.SocketOpened) and fds:
            made = [socket.socket(fileno=fd) for fd in fds]
            for one in made:
                one.set_inheritable(False)
                one.setblocking(False)
            waiting.set_result(made)
        else:
            number = answer.errno if isinstance(answer, orders.SocketRefused) else errno.EMFILE
            waiting.set_exception(OSError(number, os.strerror(number)))

    def _end(self) -> None:
        """The nursery is gone, or shall be: whoever waits for it learns that."""
        if self.has_ended:
            return
        self.has_ended = True
        self._loop.remove_reader(self._channel)
        self._channel.close()
        waiting: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._sockets.values(), self._opened]
        self._waiting.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(NurseryStopped() if self.was_stopped else self.failure())
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


def stopped_parts(nursery: int) -> list[ProcessStat]:
    """The nursery and its zygote, as far as they were told to stop. Of its other children sandboxes may be."""
    found = []
    with suppress(OSError):
        children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()
        for pid in (str(nursery), *children):
            with suppress(OSError):
                found.append(parse_stat(Path(f"/proc/{pid}/stat").read_bytes()))
    ours = (process for process in found if process.pid == nursery or process.name == ZYGOTE_NAME)
    return [process for process in ours if process.state == b"T"]


def is_in_use(log: Path) -> bool:
    """Whether a nursery that writes to `log` lives, or a child of it that is too young to have a name."""
    with log.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


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
    if answer.step == "set the cpu quota":
        return error(
            ErrorCode.LIMITS_NOT_ENFORCEABLE,
            f"the sandbox cannot have that many cpus ({said})",
            remedy="Give it fewer, or raise the cpu quota of the control groups above it.",
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


async def ended(pidfd: int) -> None:
    """Wait for the process, and close its pidfd."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def make_private_directory(path: Path) -> None:
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


def _discard(answer: asyncio.Future[Delivery]) -> None:
    """Let go of a sandbox that nobody wants any more, and whose end nobody can wait for."""
    if not answer.cancelled() and not answer.exception():
        _, pidfd, keeper = answer.result()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        os.close(keeper)


def _out_of_descriptors() -> AtollError:
    return too_many_open_files(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
