"""A program that is run as if on another system: what that lacks is taken away before Atoll is imported.

    python tests/elsewhere.py win32|darwin SCRIPT.py|MODULE [ARGUMENTS...]

The standard library is loaded first, as it decides by the system it was built for. From then on modules that only Linux
has cannot be imported, functions and constants that Windows lacks are gone, a directory cannot be opened, select takes
nothing but sockets, and an event loop watches none.
"""

from __future__ import annotations

import asyncio

# The standard library's own, which its other modules load when they are used.
import concurrent.futures.thread  # noqa: F401
import logging.handlers  # noqa: F401
import os
import runpy
import select
import selectors
import shutil
import signal
import socket
import ssl  # noqa: F401
import stat
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
from collections.abc import Callable, Sequence
from typing import Any

# Loaded while they can be; what they import stays loaded, and is taken away from everybody else below.
import click  # noqa: F401
import httptools  # noqa: F401
import msgspec  # noqa: F401
import rich.console
import rich.progress
import rich.table  # noqa: F401

LACKING_MODULES = {
    "win32": "fcntl grp posix pty pwd resource syslog termios tty uvloop uvicorn starlette websockets",
    "darwin": "uvloop uvicorn starlette websockets",
}
LACKING = {
    "win32": {
        os: """
            O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH SEEK_DATA SEEK_HOLE fchmod fork geteuid
            get_blocking getuid memfd_create mkfifo pidfd_open pread pwrite set_blocking setsid umask uname
        """,
        select: "epoll poll POLLIN POLLOUT",
        selectors: "EpollSelector PollSelector",
        signal: "pidfd_send_signal SIGHUP SIGKILL SIGPIPE SIGUSR1 SIGWINCH",
        socket: "AF_UNIX SO_PEERCRED",
    },
    "darwin": {
        os: "O_PATH pidfd_open memfd_create sched_getaffinity",
        select: "epoll",
        selectors: "EpollSelector",
        signal: "pidfd_send_signal",
        socket: "SO_PEERCRED TCP_KEEPIDLE",
    },
}


def take_away(system: str) -> None:
    for name in LACKING_MODULES[system].split():
        sys.modules[name] = None  # type: ignore[assignment]
    if system == "win32":
        watch_no_sockets()
        wait_for_sockets_alone()
        open_no_directories()
    for module, names in LACKING[system].items():
        for name in names.split():
            vars(module).pop(name, None)
    sys.platform = system


def watch_no_sockets() -> None:
    """As the event loop of Windows: what asyncio does itself with sockets is no affair of `add_reader` there."""

    class ProactorEventLoop(asyncio.SelectorEventLoop):
        def __init__(self) -> None:
            super().__init__(selectors.SelectSelector())

        def _refused(self, *_: object) -> Any:
            raise NotImplementedError

        add_reader: Any = _refused
        remove_reader: Any = _refused
        add_writer: Any = _refused
        remove_writer: Any = _refused

    vars(asyncio)["ProactorEventLoop"] = ProactorEventLoop

    class Policy(asyncio.DefaultEventLoopPolicy):
        _loop_factory = ProactorEventLoop

    asyncio.set_event_loop_policy(Policy())


def wait_for_sockets_alone() -> None:
    wait = select.select

    def is_socket(thing: Any) -> bool:
        return stat.S_ISSOCK(os.fstat(thing if isinstance(thing, int) else thing.fileno()).st_mode)

    def select_sockets(reading: Any, writing: Any, failing: Any, *seconds: Any) -> Any:
        if not all(map(is_socket, (*reading, *writing, *failing))):
            raise OSError(10038, "an operation was attempted on something that is not a socket")
        if not (reading or writing or failing):
            raise OSError(10022, "an invalid argument was supplied")
        return wait(reading, writing, failing, *seconds)

    vars(select)["select"] = select_sockets
    vars(socket)["socketpair"] = pair_over_tcp


def pair_over_tcp() -> tuple[socket.socket, socket.socket]:
    """What `socket.socketpair` is where there are no Unix sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        return near, far


def open_no_directories() -> None:
    """And nothing relative to one; what is open cannot be removed."""
    opened, listed = os.open, os.listdir

    def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, mode)

    def list_directory(path: Any = ".") -> Any:
        if isinstance(path, int):
            raise NotImplementedError("no descriptors of directories")
        return listed(path)

    vars(os).update(open=open_file, listdir=list_directory)
    for name in ("stat", "mkdir", "unlink", "rmdir", "symlink", "readlink", "utime", "replace", "rename"):
        vars(os)[name] = by_path_alone(getattr(os, name))
    vars(shutil)["_use_fd_functions"] = False  # found out when it was loaded
    os.supports_dir_fd.clear()
    os.supports_fd.clear()


def by_path_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if any(option.endswith("dir_fd") and value is not None for option, value in options.items()):
            raise NotImplementedError("dir_fd unavailable on this platform")
        if function.__name__ == "utime" and isinstance(arguments[0], int):
            raise TypeError("utime: path should be string, bytes or os.PathLike, not int")
        if function.__name__ in ("unlink", "replace", "rename") and os.fsencode(arguments[0]) in open_files():
            raise PermissionError(13, "The process cannot access the file because it is being used", arguments[0])
        return function(*arguments, **options)

    return call


def open_files() -> set[bytes]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.fsencode(os.readlink(f"/proc/self/fd/{name}")))
        except OSError:  # it was that of the list itself
            continue
    return found


def main(words: Sequence[str]) -> None:
    system, script = words[:2]
    sys.argv = [*words[1:]]
    take_away(system)
    run = runpy.run_path if script.endswith(".py") else runpy.run_module
    run(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
