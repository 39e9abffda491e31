"""The rehearsal serves an agent as root of the machine: nobody else may reach it, and what goes wrong is told."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from atoll.agent.commands.process_tree import read_stat
from atoll.protocol.commands import Exec
from atoll.protocol.frames import FrameKind, encode_frame
from atoll.protocol.messages import encode_message

REHEARSAL = """
from atoll.agent.rehearsal import rehearse
from atoll.engine.native.mounts import make_scratch
rehearse(make_scratch)
"""

# As nobody: knock at every Unix socket that appears, and ask whoever answers to run something.
INTRUDER = """
import os, socket, sys
call, known = bytes.fromhex(sys.argv[1]), None
def names():
    with open("/proc/net/unix") as file:
        rows = [line.rstrip("\\n").split(" ", 7) for line in file.readlines()[1:]]
    return {row[7].strip() for row in rows if len(row) == 8}
known = names()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print("ready", flush=True)
seen, guests = set(), []
while os.getppid() != 1:
    for name in names() - known:
        if name not in seen:
            seen.add(name)
            print(name, flush=True)
        guest = socket.socket(socket.AF_UNIX)
        try:
            guest.connect("\\0" + name[1:] if name.startswith("@") else name)
            guest.send(call)
            guests.append(guest)
        except OSError:
            guest.close()
"""


def test_nobody_else_on_the_machine_can_tell_a_rehearsed_agent_what_to_run(tmp_path: Path) -> None:
    trace = tmp_path / "was-here"
    call = encode_frame(FrameKind.CALL, encode_message(Exec(argv=["touch", str(trace)])))
    command = [sys.executable, "-c", INTRUDER, call.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as intruder:
        assert intruder.stdout and intruder.stdout.readline() == "ready\n"
        subprocess.run([sys.executable, "-c", REHEARSAL], check=True)
        intruder.send_signal(signal.SIGTERM)
        assert any(name.endswith("/agent\n") for name in intruder.stdout), "it never saw what it should knock at"
    assert not trace.exists()


def test_a_rehearsal_that_cannot_be_played_says_why() -> None:
    few = (40, 40)  # descriptors; a shell of ours needs more
    done = subprocess.run(
        [sys.executable, "-c", REHEARSAL],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few),
    )
    assert done.returncode == 1
    assert "RuntimeError: the agent cannot do ExecShell" in done.stderr


def test_a_rehearsal_that_is_killed_takes_its_shell_along() -> None:
    """Its shell waits at a FIFO for a command whose output nobody takes any more, and would do so for ever."""
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", REHEARSAL]) as rehearsal:
            shell = os.pidfd_open(wait_for_shell(rehearsal.pid))
            rehearsal.kill()
        assert select.select([shell], [], [], 30)[0], "the shell is left behind"
        os.close(shell)


def wait_for_shell(parent: int) -> int:
    while True:  # it comes within half a second
        for pid in children(parent):
            with suppress(OSError):
                if read_stat(pid).name in (b"bash", b"sh"):
                    return pid
        time.sleep(0.001)


def children(pid: int) -> Iterator[int]:
    with suppress(OSError):
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
