# Generated from client/plumbing/local_server.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""The server of this machine: found on its Unix socket, or started in the background.

1. Whoever can connect to the socket is done.
2. Otherwise a lock in the runtime directory decides who starts one. Who gets the lock looks again first, because the
   one before may have been quicker.
3. The server is nobody's child: it outlives the program that started it, and stops by itself when nothing needs it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from atoll.client_sync.plumbing.network import Stream, UnixAddress, connect
from atoll.client_sync.plumbing.transport import CONNECT_SECONDS
from atoll.client_sync.plumbing.waiting import is_readable, pause
from atoll.protocol.errors import AtollError, ErrorCode, error

STATE_DIRECTORY = "/var/lib/atoll"
RUNTIME_DIRECTORY = "/run/atoll"
SOCKET, LOCK, LOG, OLD_LOG = "server.sock", "server-start.lock", "server.log", "server.log.1"
START_SECONDS = 60.0
LOOK_PAUSE = 0.02
MAX_LOG = 2**20  # of all servers that were started; another is begun then, and the one before it is kept
LOG_BOUNDS = ["--log-size", "1", "--log-files", "1"]
LOG_TAIL = 2000
SERVER_PACKAGES = ("starlette", "uvicorn", "uvloop", "websockets")  # the extra `server` in pyproject.toml
COMMAND = [sys.executable, "-m", "atoll.cli", "serve", "--embedded"]
# The shell ends at once, so that the server is adopted by init and leaves no zombie with us.
DETACH = ["/bin/sh", "-c", '"$0" "$@" >&2 & echo $!']

logger = logging.getLogger("atoll.client_sync")


@dataclass(frozen=True)
class LocalServer:
    state: Path
    runtime: Path

    @classmethod
    def from_environment(cls) -> LocalServer:
        state = Path(os.environ.get("ATOLL_STATE_DIR") or STATE_DIRECTORY).absolute()
        runtime = os.environ.get("ATOLL_RUNTIME_DIR")
        return cls(state, Path(runtime).absolute() if runtime else runtime_of(state))

    @property
    def address(self) -> UnixAddress:
        return UnixAddress(str(self.runtime / SOCKET))

    def open_stream(self) -> Stream:
        """A connection to the server, which is started if there is none."""
        check_system("a server of this machine")
        return self._try_to_connect() or self._start()

    def _try_to_connect(self) -> Stream | None:
        try:
            return connect(self.address, CONNECT_SECONDS)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return None
        except PermissionError as cause:
            raise _not_root(f"the server at {self.address} is root's") from cause
        except OSError as cause:
            raise _failed(f"the server at {self.address} takes no connection: {cause.strerror}") from cause

    def _start(self) -> Stream:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise _not_root(f"there is no server at {self.address}, and starting one needs root")
        check_installed()
        try:
            self.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as cause:
            raise _failed(f"{cause.filename} cannot be made: {cause.strerror}") from cause
        with _opened(self.runtime / LOCK) as lock:
            if other := self._wait_for_turn(lock):
                return other
            self._put_full_log_away()
            with _opened(self.state / LOG) as log:
                log_start = os.lseek(log, 0, os.SEEK_END)
                return self._wait_for(self._spawn(log), log_start)

    def _wait_for_turn(self, lock: int) -> Stream | None:
        """Hold the lock, unless whoever held it before has brought a server up."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            is_mine = _lock(lock)
            if stream := self._try_to_connect():
                return stream
            if is_mine:
                return None
            if time.monotonic() > deadline:
                raise _failed(f"another process has been starting the server for {START_SECONDS:g} seconds")
            pause(LOOK_PAUSE)

    def _put_full_log_away(self) -> None:
        log = self.state / LOG
        with suppress(OSError):  # there is none; or what is wrong with it is told when it is opened
            if log.stat().st_size >= MAX_LOG:
                log.replace(self.state / OLD_LOG)

    def _spawn(self, log: int) -> int:
        directories = ["--state-dir", str(self.state), "--runtime-dir", str(self.runtime)]
        logger.info("starting the server of this machine; %s is its log", self.state / LOG)
        try:
            shell = subprocess.run(
                [*DETACH, *COMMAND, *directories, "--log-file", str(self.state / LOG), *LOG_BOUNDS],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as cause:
            raise _failed(f"the server cannot be started: {cause}") from cause
        return int(shell.stdout)

    def _wait_for(self, pid: int, log_start: int) -> Stream:
        deadline = time.monotonic() + START_SECONDS
        with _Watch(pid) as server:
            while True:
                has_ended = server.has_ended()  # asked first, so that one that served and ended is still found
                if stream := self._try_to_connect():
                    return stream
                if has_ended:
                    raise _failed("the server ended as soon as it was started", self._log_tail(log_start))
                if time.monotonic() > deadline:
                    what = f"the server was started but took no connection within {START_SECONDS:g} seconds"
                    raise _failed(what, self._log_tail(log_start))
                pause(LOOK_PAUSE)

    def _log_tail(self, start: int) -> str:
        log = self.state / LOG
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - LOG_TAIL))
            tail = file.read(LOG_TAIL).decode(errors="replace").strip()
        return f"{log} ends with:\n{tail}" if tail else f"{log} says nothing."


class _Watch:
    """A process that is nobody's child, by a descriptor that cannot come to mean another."""

    def __init__(self, pid: int) -> None:
        self._descriptor = -1
        if sys.platform == "linux":
            with suppress(ProcessLookupError):
                self._descriptor = os.pidfd_open(pid)

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def has_ended(self) -> bool:
        return self._descriptor < 0 or is_readable(self._descriptor)


def runtime_of(state: Path) -> Path:
    """The runtime directory for a state directory's server, unless somebody says otherwise: no two have the same."""
    if state == Path(STATE_DIRECTORY):
        return Path(RUNTIME_DIRECTORY)
    return Path(f"{RUNTIME_DIRECTORY}-{hashlib.sha256(os.fsencode(state)).hexdigest()[:12]}")


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as cause:
        raise _failed(f"{path} cannot be opened: {cause.strerror}") from cause
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    if sys.platform != "win32":
        import fcntl  # Windows has none, and clients of servers elsewhere load this file too

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def check_system(what: str) -> None:
    """`what` is possible where sandboxes are, and nowhere else."""
    if sys.platform != "linux":
        raise error(
            ErrorCode.MACHINE_NOT_SUPPORTED,
            f"{what} needs Linux, and this is {sys.platform}",
            remedy="Run it on a Linux machine, where sandboxes can be. To use those from here, set ATOLL_URL (or url=, "
            "--url) to its server, and ATOLL_API_KEY to a key of it.",
            system=sys.platform,
        )


def check_installed() -> None:
    """The packages that a server needs and its clients do not are there, or it is said what is missing."""
    if missing := [name for name in SERVER_PACKAGES if find_spec(name) is None]:
        raise error(
            ErrorCode.SERVER_NOT_INSTALLED,
            f"a server needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed here",
            remedy="pip install 'atoll[server]', or set ATOLL_URL (or url=, --url) to a server elsewhere.",
            missing=", ".join(missing),
        )


def _failed(message: str, log_tail: str = "") -> AtollError:
    hint = "`atoll doctor` says what this machine lacks."
    return error(ErrorCode.SERVER_NOT_REACHABLE, message, remedy=f"{hint}\n{log_tail}".strip())


def _not_root(message: str) -> AtollError:
    remedy = "Run this as root, or set ATOLL_URL (or url=) to a server that you may use."
    return error(ErrorCode.NOT_ROOT, message, remedy=remedy)
