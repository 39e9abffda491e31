"""Plays an agent's first moments in the nursery, before any sandbox exists.

Python specialises bytecode as it runs and loads some modules at first use. Done here once, both are shared by all
sandboxes; done after the fork, each would pay for its own copy of the pages, and the loading would fail.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from atoll.agent import main
from atoll.protocol.frames import FrameDecoder, FrameKind, encode_frame
from atoll.protocol.messages import Call, Exec, Ping, encode_message

ROUNDS = 10  # Python 3.11 specialises a function at its eighth call
ENV = {"PATH": "/usr/bin:/bin"}


def rehearse() -> None:
    oom_score = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    for _ in range(ROUNDS):
        loop = main.new_loop()
        loop.run_until_complete(_play(loop, oom_score))
        loop.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(oom_score)


async def _play(loop: asyncio.AbstractEventLoop, oom_score: int) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as host:
        listener.bind("")  # the kernel picks an abstract name; it is gone with the socket
        listener.listen()
        server = await main.listen(loop, listener, ENV, oom_score, admits=lambda peer: True)
        host.setblocking(False)
        await loop.sock_connect(host, listener.getsockname())
        for call in (Ping(), Exec(argv=["true"]), Exec(argv=["echo", "x"], timeout=60, max_output=9, env={"A": "b"})):
            await _ask(loop, host, call)
        server.close()
        host.close()
        await server.wait_closed()
        await asyncio.sleep(0)  # the agent's side of the connection notices that the host is gone


async def _ask(loop: asyncio.AbstractEventLoop, host: socket.socket, call: Call) -> None:
    decoder = FrameDecoder()
    await loop.sock_sendall(host, encode_frame(FrameKind.CALL, encode_message(call)))
    while data := await loop.sock_recv(host, 65_536):
        if any(frame.kind is FrameKind.DONE for frame in decoder.feed(data)):
            return
    raise RuntimeError(f"the agent does not answer {call}")
