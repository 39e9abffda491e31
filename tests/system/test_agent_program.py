"""The agent as a program of its own, for engines that exec it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.agent.scratch import PLACES
from atoll.protocol.commands import Exec, ExecShell
from atoll.supervisor.agent_link import AgentLink
from tests.native import linked_at

SECRET = bytes(range(32))
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def scratches() -> set[Path]:
    return {path for place in PLACES for path in Path(place).glob(".atoll-*")}


@pytest.fixture(autouse=True)
def no_scratch_left() -> Iterator[None]:
    """Such an agent keeps its scratch where its machine has room for it, which here is the host's."""
    with open("/run/atoll-test-agent-program", "w") as turn:  # or it would remove another test's
        fcntl.flock(turn, fcntl.LOCK_EX)
        before = scratches()
        yield
        for path in scratches() - before:
            shutil.rmtree(path)


async def test_the_agent_runs_as_pid_1_of_a_namespace_and_serves_the_host(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        process = subprocess.Popen(
            [*UNSHARE, sys.executable, "-m", "atoll.agent", "--listener", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env={"PATH": "/usr/bin:/bin", "COLOUR": "blue"},
        )
    async with linked_at(path) as link:
        output = await link.run(Exec(argv=["sh", "-c", "echo $PPID $COLOUR; cat /proc/1/cmdline | tr '\\0' ' '"]))
        await link.run(ExecShell(command="colour() { echo $COLOUR; }"))
        shown = await link.run(ExecShell(command="colour"))
    assert output.stdout.startswith(b"1 blue\n")
    assert shown.stdout == b"blue\n"
    process.kill()  # unshare; --kill-child takes the agent along
    process.wait()


async def test_the_agent_turns_away_whoever_shares_its_pid_namespace(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", "atoll.agent", "--listener", str(listener.fileno())], pass_fds=[listener.fileno()]
        )
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        assert peer.recv(1) == b"", "not a byte for a neighbour"
    process.kill()
    process.wait()


@pytest.fixture
def over_tcp() -> Iterator[tuple[str, int]]:
    """An agent that knows hosts by a secret; without isolation, so that anybody might be one."""
    given, giving = os.pipe()
    os.write(giving, SECRET)
    os.close(giving)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = ["--listener", str(listener.fileno()), "--secret", str(given)]
        fds = [listener.fileno(), given]
        process = subprocess.Popen([sys.executable, "-m", "atoll.agent", *options], pass_fds=fds)
        os.close(given)
        yield listener.getsockname()
    process.kill()
    process.wait()


@pytest.mark.parametrize("said", [b"", SECRET[:-1], SECRET[:-1] + b"x", b"x" * 10_000])
async def test_over_tcp_whoever_does_not_say_the_secret_hears_nothing(over_tcp: tuple[str, int], said: bytes) -> None:
    with socket.create_connection(over_tcp) as peer, suppress(ConnectionError):
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        assert await asyncio.to_thread(peer.recv, 1) == b"", "not a byte for a stranger"


async def test_over_tcp_whoever_says_the_secret_is_served_byte_by_byte(over_tcp: tuple[str, int]) -> None:
    async def connect() -> socket.socket:
        peer = socket.create_connection(over_tcp)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(SECRET)):
            peer.sendall(SECRET[number : number + 1])
        peer.setblocking(False)
        return peer

    async with AgentLink(connect) as link:
        assert (await link.run(Exec(argv=["sh", "-c", "cat; echo x"]), b"in ")).stdout == b"in x\n"


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 33])
def test_a_secret_of_another_length_is_refused(secret: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryFile() as file:
        file.write(secret)
        file.seek(0)
        options = ["--listener", str(listener.fileno()), "--secret", str(file.fileno())]
        fds = [listener.fileno(), file.fileno()]
        command = [sys.executable, "-m", "atoll.agent", *options]
        shown = subprocess.run(command, pass_fds=fds, capture_output=True, text=True)
    assert shown.returncode == 2 and "a secret has 32 bytes" in shown.stderr


def test_without_a_secret_tcp_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "atoll.agent", "--listener", str(listener.fileno())]
        shown = subprocess.run(command, pass_fds=[listener.fileno()], capture_output=True, text=True)
    assert shown.returncode == 2 and "must be a listening Unix socket" in shown.stderr


def test_anything_but_a_listening_unix_socket_is_refused() -> None:
    for arguments, said in (
        ([], "--listener"),
        (["--listener", "x"], "invalid int"),
        (["--listener", "0"], "listening"),
    ):
        shown = subprocess.run(
            [sys.executable, "-m", "atoll.agent", *arguments], capture_output=True, text=True, stdin=subprocess.PIPE
        )
        assert shown.returncode == 2
        assert said in shown.stderr


def test_signals_that_somebody_ignored_or_blocked_are_at_their_defaults_again() -> None:
    code = """
import ctypes, signal
from atoll.agent.main import reset_signals
ignore = (ctypes.c_ulong * 4)(1)
for number in (2, 10, 32, 33, 34, 64):
    ctypes.CDLL(None).syscall(13, number, ignore, None, ctypes.c_size_t(8))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
def status():
    lines = (line.split() for line in open("/proc/self/status") if line.startswith(("SigIgn", "SigBlk")))
    return {name: int(value, 16) for name, value in lines}
before = status()
reset_signals()
python_ignores = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
print(all(before.values()), status() == {"SigBlk:": 0, "SigIgn:": python_ignores})
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.stdout == "True True\n", shown
