"""A nursery that stands still: what it was not told yet can be given up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.engine.native import nursery_process
from atoll.engine.native.group_limits import Resources
from atoll.engine.native.nursery_process import NurseryGone, NurseryProcess
from atoll.engine.native.orders import Launch

LAUNCH = Launch(ticket=1, sandbox_id="one", overlays=(), disk="/", resources=Resources(cpus=1, memory=2**28, pids=10))


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[NurseryProcess]:
    """One that reads nothing, and whose channel is full."""
    log = tmp_path / "log"
    log.touch()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    process = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # noqa: ASYNC222 (until then it may still read)
    with theirs:
        with suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 1000)
        nursery = NurseryProcess(process, ours, log)
        yield nursery
        process.kill()
        await nursery.close()


async def test_a_launch_that_waits_to_be_sent_can_be_cancelled(crowded: NurseryProcess) -> None:
    launch = asyncio.create_task(crowded.launch(LAUNCH, {}))
    await asyncio.sleep(0)
    launch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launch


async def test_a_launch_that_cannot_be_sent_is_for_the_next_nursery(
    crowded: NurseryProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery_process, "ANSWER_SECONDS", 0.01)
    with pytest.raises(NurseryGone):
        await crowded.launch(LAUNCH, {})
    assert crowded.has_ended
