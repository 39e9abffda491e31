"""The rehearsal: an agent's first moments, played in the nursery before any sandbox exists.

Python specialises bytecode as it runs and loads some modules at first use. Done here once, both are shared by all
sandboxes; done after the fork, each would pay for its own copy of the pages, and the loading would fail.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from atoll.agent import main
from atoll.agent.commands.vfork import ending_with_us
from atoll.agent.files.files import perform
from atoll.agent.files.progress import Progress
from atoll.agent.files.worker import Job, WorkerProcess, encode_job, receive_packet, send_packet
from atoll.agent.server import pid_of
from atoll.protocol.agents import Ping
from atoll.protocol.commands import Exec, ExecShell
from atoll.protocol.files import ListFiles, ReadFile, StatFile, WriteFile
from atoll.protocol.frames import FrameDecoder, FrameKind, encode_frame
from atoll.protocol.messages import AnyCall, encode_message
from atoll.protocol.processes import CleanUpProcesses, StartProcess, StreamProcessLog, WaitForExit
from atoll.protocol.sessions import DEFAULT_SESSION, DeleteSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE_SECONDS = 30.0  # a hundred times what it takes; less than whoever waits for the nursery has
ROUNDS = 10  # Python 3.11 specialises a function at its eighth call
COMMON = (
    Ping(),
    Exec(argv=["true"]),
    Exec(argv=["echo", "x"], timeout=60, max_output=9, env={"A": "b"}),
    ExecShell(command="echo x"),
    ExecShell(command="true", timeout=60, max_output=9, env={"A": "b"}, cwd="/"),
)
# Not every sandbox needs these, so once is enough: then what is loaded at first use is there.
RARE = (
    StartProcess(command="echo x", process_id="x", timeout=60),
    WaitForExit(process_id="x"),
    StreamProcessLog(process_id="x"),
    CleanUpProcesses(),
)
LAST = (
    DeleteSession(session_id=DEFAULT_SESSION),
    StatFile(path=b"/"),
    Ping(),  # for which the worker gives the connection back
)


def rehearse(make_scratch: Callable[[], int]) -> None:
    """`make_scratch` gives what an agent is opened with: a directory that nobody else can reach.

    The agent's socket is in there too. It runs whatever it is told to as root of the machine, so it must be out of
    everybody's reach, and admits nobody but us.
    """
    for number in range(ROUNDS):
        calls = (*COMMON, *(RARE if number == 0 else ()), *LAST)
        scratch = make_scratch()
        address = f"/proc/self/fd/{scratch}/agent"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            agent = main.Agent(admits=_is_ours)
            agent.open(listener, scratch)
            directory, meters = _play_figures(make_scratch())
            agent.figures.open(directory)
            agent.figures.start(meters, limit=2**30)
            agent.figures.refresh()
            with ending_with_us():  # nobody else would end its shell, if we are killed
                agent.loop.run_until_complete(_play(agent, address, calls))
            agent.close()
            agent.figures.close()
        _play_worker(make_scratch())


def _play_figures(directory: int) -> tuple[int, tuple[int, int, int]]:
    """A directory for figures, and meters such as those of a control group."""
    for name in ("uptime", "loadavg", "stat", "meminfo"):
        os.mknod(name, dir_fd=directory)
    meters = []
    contents = {"memory": b"total_rss 4096\ntotal_cache 4096\n", "cpu": b"user 1\nsystem 1\n", "limit": b"1073741824\n"}
    for name, content in contents.items():
        meters.append(os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, dir_fd=directory))
        os.write(meters[-1], content)
    return directory, (meters[0], meters[1], meters[2])


def _is_ours(peer: socket.socket) -> bool:
    return pid_of(peer) == os.getpid()


async def _play(agent: main.Agent, address: str, calls: Sequence[AnyCall]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await _play_calls(agent, address, calls)


async def _play_calls(agent: main.Agent, address: str, calls: Sequence[AnyCall]) -> None:
    with socket.socket(socket.AF_UNIX) as host:
        host.setblocking(False)
        await agent.loop.sock_connect(host, address)
        for call in calls:
            await _ask(agent.loop, host, call)
        agent.workers.close()
        while agent.reaper.is_watching:  # noqa: ASYNC110 (the killed shell; every agent would have an event for this)
            await asyncio.sleep(0.001)
    await asyncio.sleep(0)  # the agent's side of the connection notices that the host is gone


def _play_worker(directory: int) -> None:
    """A worker's work, done here: its own copy of us would take to its grave what it has learnt."""
    ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host, connection = socket.socketpair()
    worker = WorkerProcess(control.detach(), Progress(bytearray(Progress.SIZE)), perform, keep_seconds=0)
    path = b"/proc/self/fd/%d/file" % directory
    with ours, host, connection:
        connection.setblocking(False)
        content = encode_frame(FrameKind.INPUT, b"x") + encode_frame(FrameKind.INPUT)
        for call, more in (
            (WriteFile(path=path), content),
            (ReadFile(path=path), b""),
            (StatFile(path=path), b""),
            (ListFiles(path=b"/proc/self/fd"), b""),
        ):
            message = encode_message(call)
            host.send(encode_frame(FrameKind.CALL, message) + more)  # to be done after the same as a job
            send_packet(ours, encode_job(Job(message, b"/", more)), [connection.fileno()])
            worker.serve_connection()
            receive_packet(ours)
            host.recv(65_536)
    worker.close()
    os.close(directory)


async def _ask(loop: asyncio.AbstractEventLoop, host: socket.socket, call: AnyCall) -> None:
    decoder = FrameDecoder()
    await loop.sock_sendall(host, encode_frame(FrameKind.CALL, encode_message(call)))
    while data := await loop.sock_recv(host, 65_536):
        for frame in decoder.feed(data):
            if frame.kind is FrameKind.DONE:
                return
            if frame.kind is FrameKind.FAILED:
                raise RuntimeError(f"the agent cannot do {call}: {frame.payload!r}")
    raise RuntimeError(f"the agent does not answer {call}")
