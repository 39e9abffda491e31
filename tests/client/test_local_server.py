"""Without a URL the server of this machine is found, or started once, whoever asks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atoll.cli.verbs import serve as cli_serve
from atoll.client_sync import sandbox as sync_sandbox
from atoll.client_sync.plumbing.local_server import LocalServer
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.server.settings import Settings
from atoll.supervisor.workshop import DEFAULT_RUNTIME, DEFAULT_STATE
from tests.client.halves import AsyncHalf, Half
from tests.client.peers import RawServer, read_request

NO_SANDBOXES = b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"sandboxes":[]}'

# A server as the SDK starts it: slow to come up, and on record.
SERVER = """
import os, socket, sys, threading, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
runtime = options["--runtime-dir"]
with open(f"{runtime}/started", "a") as record:
    record.write(f"{os.getpid()}\\n")
print("coming up", flush=True)
time.sleep(0.3)
path = f"{runtime}/server.sock"
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(64)

def serve(peer):
    while peer.recv(65536):
        peer.sendall(b'HTTP/1.1 200 OK\\r\\ncontent-length: 16\\r\\n\\r\\n{"sandboxes":[]}')

while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without a server; what is started there is ended."""
    monkeypatch.delenv("ATOLL_URL", raising=False)
    monkeypatch.setenv("ATOLL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ATOLL_RUNTIME_DIR", str(tmp_path / "run"))
    yield tmp_path / "run"
    for pid in started(tmp_path / "run"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def starts(half: Half, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says what is started instead of `atoll serve`."""

    def starts(program: str) -> None:
        monkeypatch.setattr(half.local_server, "COMMAND", [sys.executable, "-c", program])

    starts(SERVER)
    return starts


def started(runtime: Path) -> list[int]:
    record = runtime / "started"
    return [int(line) for line in record.read_text().split()] if record.exists() else []


async def test_a_server_that_runs_is_found(half: Half, runtime: Path, starts: Any) -> None:
    def behave(peer: Any) -> None:
        while True:
            read_request(peer)
            peer.sendall(NO_SANDBOXES)

    runtime.mkdir()
    with RawServer(behave, runtime / "server.sock"):
        assert await half.list_sandboxes() == []
    assert not started(runtime)


async def test_a_server_is_started_and_belongs_to_nobody(half: Half, runtime: Path, starts: Any) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    assert await half.list_sandboxes() == []
    assert await half.list_sandboxes() == []
    (pid,) = started(runtime)
    assert os.getsid(pid) != os.getsid(0)
    os.close(writer)
    assert os.read(reader, 1) == b""  # so nobody else holds the pipe's other end
    os.close(reader)
    log = runtime.parent / "state/server.log"
    assert log.read_text() == "coming up\n"
    assert log.stat().st_mode & 0o777 == 0o600
    assert runtime.stat().st_mode & 0o777 == 0o700
    sandbox = half.get_sandbox("a")
    assert repr(sandbox).endswith(f"'a' at unix://{runtime}/server.sock>")


async def test_a_socket_on_which_nobody_listens_is_no_server(half: Half, runtime: Path, starts: Any) -> None:
    runtime.mkdir()
    with RawServer(lambda peer: None, runtime / "server.sock"):
        pass
    assert (runtime / "server.sock").exists()
    assert await half.list_sandboxes() == []
    assert len(started(runtime)) == 1


async def test_a_server_that_died_is_started_again(half: Half, runtime: Path, starts: Any) -> None:
    assert await half.list_sandboxes() == []
    server = os.pidfd_open(started(runtime)[0])
    signal.pidfd_send_signal(server, signal.SIGKILL)
    select.select([server], [], [])
    os.close(server)
    assert await half.list_sandboxes() == []
    assert len(started(runtime)) == 2


async def test_ten_that_start_at_once_start_one(half: Half, runtime: Path, starts: Any) -> None:
    if isinstance(half, AsyncHalf):
        assert await asyncio.gather(*(half.list_sandboxes() for _ in range(10))) == [[]] * 10
    else:
        threads = [threading.Thread(target=half.server.find_server().ask, args=("GET", "/", object)) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert len(started(runtime)) == 1


async def test_ten_programs_that_start_at_once_start_one(runtime: Path) -> None:
    program = f"""
from atoll.client_sync.plumbing import local_server
from atoll import list_sandboxes
local_server.COMMAND[1:] = ["-c", {SERVER!r}]
assert list_sandboxes() == []
"""
    programs = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(10)]
    codes = [await asyncio.to_thread(one.wait) for one in programs]
    assert codes == [0] * 10
    assert len(started(runtime)) == 1


async def test_a_server_that_ends_at_once_is_explained_by_its_log(half: Half, runtime: Path, starts: Any) -> None:
    log = runtime.parent / "state/server.log"
    log.parent.mkdir()
    log.write_text("of an earlier time\n")
    starts("import sys; sys.exit('this kernel is too old')")
    with pytest.raises(ConnectionError) as caught:
        await half.list_sandboxes()
    assert isinstance(caught.value, AtollError)
    assert caught.value.code is ErrorCode.SERVER_NOT_REACHABLE
    assert f"{log} ends with:\nthis kernel is too old" in str(caught.value)
    assert "atoll doctor" in caught.value.remedy
    assert "earlier" not in str(caught.value)


async def test_a_log_that_is_full_makes_room_for_another(half: Half, runtime: Path, starts: Any) -> None:
    state = runtime.parent / "state"
    log, old_log = state / "server.log", state / "server.log.1"
    state.mkdir()
    starts("import sys; sys.exit('not today')")
    for written, kept in ((2**20 - 1, None), (2**20, 2**20), (3 * 2**20, 3 * 2**20)):
        log.write_bytes(b"x" * written)
        with pytest.raises(ConnectionError, match="ends with:\nnot today"):
            await half.list_sandboxes()
        assert log.read_text() == ("" if kept else "x" * written) + "not today\n"
        assert (old_log.stat().st_size if kept else None) == kept
    assert sorted(path.name for path in state.iterdir()) == ["server.log", "server.log.1"]


async def test_a_server_that_does_not_come_up_is_not_waited_for_for_ever(
    half: Half, runtime: Path, starts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts(SERVER.replace("time.sleep(0.3)", "time.sleep(3600)"))
    monkeypatch.setattr(half.local_server, "START_SECONDS", 1.0)
    with pytest.raises(ConnectionError, match="took no connection within 1 seconds"):
        await half.list_sandboxes()
    while not started(runtime):  # or nobody would know whom to end
        await asyncio.sleep(0.01)


async def test_a_program_that_cannot_be_run_is_named(
    half: Half, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half.local_server, "COMMAND", ["/no/such/python"])
    with pytest.raises(ConnectionError, match="/no/such/python"):
        await half.list_sandboxes()


async def test_a_directory_that_cannot_be_made_is_named(
    half: Half, tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATOLL_RUNTIME_DIR", str(tmp_path / "file/run"))
    with pytest.raises(ConnectionError, match="file/run cannot be made"):
        await half.list_sandboxes()


def told_to_nobody() -> str:
    """What the SDK says to a user who is not root."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            sync_sandbox.list_sandboxes()
        except BaseException as problem:
            os.write(writer, str(problem).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        return told.read()


@pytest.mark.parametrize("is_running", [False, True])
def test_without_root_it_says_what_to_do(is_running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o755)
        monkeypatch.delenv("ATOLL_URL", raising=False)
        monkeypatch.setenv("ATOLL_RUNTIME_DIR", name)
        if is_running:
            stack.enter_context(RawServer(lambda peer: None, directory / "server.sock"))
            (directory / "server.sock").chmod(0o600)
        told = told_to_nobody()
    assert "[NOT_ROOT]" in told
    assert "Run this as root, or set ATOLL_URL" in told


def test_another_state_directory_has_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by whoever uses it, and run there by `atoll serve`."""
    monkeypatch.delenv("ATOLL_RUNTIME_DIR", raising=False)
    served: list[Settings] = []
    monkeypatch.setattr(cli_serve, "run_server", served.append)
    for state in (DEFAULT_STATE, tmp_path / "one", tmp_path / "other"):
        monkeypatch.setenv("ATOLL_STATE_DIR", str(state))
        assert CliRunner().invoke(cli_serve.serve, []).exit_code == 0
        assert LocalServer.from_environment().runtime == served[-1].runtime
    assert served[0].runtime == DEFAULT_RUNTIME
    assert len({settings.runtime for settings in served}) == 3
    monkeypatch.setenv("ATOLL_RUNTIME_DIR", str(tmp_path))
    assert LocalServer.from_environment().runtime == tmp_path
