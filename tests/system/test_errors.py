"""Every error of files, processes and terminals as a user meets it: code, built-in class, what failed, what to do."""

from __future__ import annotations

import base64
import errno
import json
import os
import pickle
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import RunningServer

PREPARED = (
    "echo x > file; mkdir -p dir/sub full/sub; mkfifo fifo; ln -s loop loop; ln -s nowhere dangling; "
    "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"
)
LONG = "n" * 256
W = "/workspace"
LOCAL = "{local}"  # in what is expected: a directory of this machine


@dataclass
class User:
    """Somebody with a sandbox, and a directory of his own."""

    half: Half
    sandbox: Any
    local: Path

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return await self.half.run(getattr(self.sandbox, method), *arguments, **options)

    async def of(self, thing: Any, method: str, *arguments: Any, **options: Any) -> Any:
        return await self.half.run(getattr(thing, method), *arguments, **options)

    async def read_all(self, stream: Any) -> list[Any]:
        return [item async for item in self.half.iterate(stream)]


@dataclass(frozen=True)
class Case:
    name: str
    code: ErrorCode
    kind: type[Exception]
    context: dict[str, Any]
    do: Callable[[User], Awaitable[object]]
    filename: str | None = None
    number: int | None = None
    says: str = field(default="", repr=False)  # in the message or the remedy


def call(method: str, *arguments: Any, **options: Any) -> Callable[[User], Awaitable[object]]:
    return lambda user: user.call(method, *arguments, **options)


def about(path: str, code: ErrorCode, kind: type[OSError], number: int) -> Callable[..., Case]:
    """A case of something that is wrong with a path, which is all there is to say."""

    def case(name: str, do: Callable[[User], Awaitable[object]], says: str = "") -> Case:
        return Case(name, code, kind, {"path": path}, do, filename=path, number=number, says=says)

    return case


def missing(path: str) -> Callable[..., Case]:
    return about(path, ErrorCode.FILE_NOT_FOUND, FileNotFoundError, errno.ENOENT)


def no_directory(path: str) -> Callable[..., Case]:
    return about(path, ErrorCode.NOT_DIRECTORY, NotADirectoryError, errno.ENOTDIR)


def directory(path: str) -> Callable[..., Case]:
    return about(path, ErrorCode.IS_DIRECTORY, IsADirectoryError, errno.EISDIR)


def existing(path: str) -> Callable[..., Case]:
    return about(path, ErrorCode.FILE_EXISTS, FileExistsError, errno.EEXIST)


def no_file(path: str) -> Callable[..., Case]:
    return about(path, ErrorCode.NOT_A_FILE, OSError, errno.EINVAL)


def invalid(name: str, given: str, value: object, do: Callable[[User], Awaitable[object]], says: str = "") -> Case:
    context = {"field": given, "value": repr(value)}
    return Case(name, ErrorCode.INVALID_REQUEST, ValueError, context, do, says=says)


def no_path(name: str, shown: str, do: Callable[[User], Awaitable[object]]) -> Case:
    return Case(name, ErrorCode.INVALID_PATH, ValueError, {"path": shown}, do)


async def enter_watch(user: User, path: str) -> None:
    async with user.half.entered(user.sandbox.watch(path)):
        pass


async def write_piecewise(user: User, path: str, mode: str) -> None:
    async with user.half.entered(user.sandbox.open_file(path, mode)) as file:
        await user.of(file, "write", b"x")


async def use_closed(user: User, mode: str) -> None:
    file = user.sandbox.open_file("file", mode)
    await user.of(file, "aclose" if user.half.name == "async" else "close")
    await (user.of(file, "read") if mode == "rb" else user.of(file, "write", b"x"))


async def seek(user: User, *arguments: int) -> None:
    async with user.half.entered(user.sandbox.open_file("file")) as file:
        await user.of(file, "seek", *arguments)


async def write_text(user: User) -> None:
    async with user.half.entered(user.sandbox.open_file("new", "wb")) as file:
        await user.of(file, "write", "text")


async def read_in_lost_directory(user: User) -> None:
    await user.call("exec", "mkdir lost; cd lost; rmdir ../lost")
    await user.call("read_file", "relative")


async def read_huge(user: User) -> None:
    await user.call("exec", "truncate -s 1T huge")
    await user.call("read_file", "huge")


async def upload_fifo(user: User) -> None:
    os.mkfifo(user.local / "fifo")
    await user.call("upload", user.local / "fifo", "a")


async def upload_tree_over_file(user: User) -> None:
    (user.local / "tree").mkdir()
    (user.local / "tree/entry").write_text("x")
    await user.call("upload", user.local / "tree", "file")


async def upload_file_over_directory(user: User) -> None:
    (user.local / "tree/sub").mkdir(parents=True)
    (user.local / "tree/sub").rmdir()
    (user.local / "tree/sub").write_text("a directory of this name is there")
    await user.call("upload", user.local / "tree", "full")


async def download_over_file(user: User) -> None:
    (user.local / "taken").write_text("x")
    await user.call("download", "full", user.local / "taken")


async def download_file_over_directory(user: User) -> None:
    (user.local / "tree/file").mkdir(parents=True)
    await user.call("exec", "mkdir tree; echo x > tree/file")
    await user.call("download", "tree", user.local / "tree")


async def take_process(user: User) -> None:
    await user.call("start_process", "sleep 1000", process_id="web")
    await user.call("start_process", "true", process_id="web")


async def process_does(user: User, method: str, *arguments: Any, **options: Any) -> None:
    process = await user.call("start_process", "echo up; sleep 1000", process_id="web")
    await user.of(process, "wait_for_log", "up")
    await user.of(process, method, *arguments, **options)


async def read_too_far(user: User) -> None:
    await user.call("start_process", "sleep 1000", process_id="web")
    await user.read_all(user.sandbox.stream_process_logs("web", since=5))


async def forgotten_process(user: User, method: str) -> None:
    process = await user.call("start_process", "true", process_id="gone")
    await user.of(process, "wait_for_exit")
    await user.call("cleanup_completed_processes")
    result = getattr(process, method)
    if method == "stream_logs":
        await user.read_all(result())
    else:
        await user.half.run(result)


async def exit_before_ready(user: User) -> None:
    process = await user.call("start_process", "echo no config; exit 3", process_id="web")
    await user.of(process, "wait_for_port", 8080)


async def terminal_does(user: User, method: str, *arguments: Any) -> None:
    await user.of(await user.call("create_terminal"), method, *arguments)


async def many_terminals(user: User) -> None:
    for _ in range(33):
        await user.call("create_terminal", shell="cat")


async def many_sessions(user: User) -> None:
    for number in range(65):
        await user.call("create_session", f"s{number}")


async def in_session(user: User, session: str, method: str, arguments: tuple[Any, ...]) -> None:
    made = await user.call("create_session", session)
    await user.of(made, "delete")
    await user.of(made, method, *arguments)


FILES = [
    missing(f"{W}/no")("read", call("read_file", "no")),
    missing(f"{W}/no/such/file")("read below nothing", call("read_file", "no/such/file")),
    missing(f"{W}/no")("stat", call("stat", "no")),
    missing(f"{W}/no")("list", call("list_files", "no")),
    missing(f"{W}/no")("delete", call("delete_file", "no")),
    missing(f"{W}/no")("delete directory", call("delete_dir", "no")),
    missing(f"{W}/no")("chmod", call("chmod", "no", 0o600)),
    missing(f"{W}/no")("watch", lambda user: enter_watch(user, "no")),
    missing(f"{W}/no")("download", lambda user: user.call("download", "no", user.local / "x")),
    missing(f"{W}/dangling")("read a link to nothing", call("read_file", "dangling")),
    missing(f"{W}/a")("mkdir without parent", call("mkdir", "a/b"), "recursive=True"),
    missing(f"{W}/a")("mkdir without grandparent", call("mkdir", "a/b/c"), f"'{W}/a/b/c' cannot be made"),
    missing(f"{W}/dir/a")("mkdir in what is there", call("mkdir", "dir/a/b")),
    missing(f"{W}/a")("move to nowhere", call("move_file", "file", "a/b"), f"'{W}/a/b' cannot be made"),
    missing(f"{W}/a")("rename to nowhere", call("rename_file", "file", "a/b")),
    missing(f"{W}/a")("copy to nowhere", call("copy_file", "file", "a/b")),
    missing("/dev/shm/a")("move to nowhere on another disk", call("move_file", "file", "/dev/shm/a/b")),
    missing(f"{W}/no")("move nothing", call("move_file", "no", "a")),
    missing(f"{W}/no")("rename nothing, to nowhere", call("rename_file", "no", "a/b")),
    missing(f"{W}/no")("copy nothing, to nowhere", call("copy_file", "no", "a/b")),
    missing(f"{W}/lost")("a session's lost directory", read_in_lost_directory, "absolute path"),
    invalid("no standard input", "stdin", 5, call("exec", "cat", stdin=5)),
    Case(
        "no command",
        ErrorCode.INVALID_COMMAND,
        ValueError,
        {"field": "command", "value": "['echo', 1]"},
        call("exec", ["echo", 1]),
    ),
    Case("no session", ErrorCode.SESSION_NOT_FOUND, LookupError, {"session_id": "none"}, call("get_session", "none")),
    no_directory(f"{W}/file")("read below a file", call("read_file", "file/x")),
    no_directory(f"{W}/file")("read deep below a file", call("stat", "file/x/y")),
    no_directory(f"{W}/file")("a file with a slash", call("read_file", "file/")),
    no_directory(f"{W}/file")("list a file", call("list_files", "file")),
    no_directory(f"{W}/file")("write below a file", call("write_file", "file/x", b"")),
    no_directory(f"{W}/file")("write deep below a file", call("write_file", "file/x/y", b"")),
    no_directory(f"{W}/file")("mkdir below a file", call("mkdir", "file/x")),
    no_directory(f"{W}/file")("mkdir deep below a file", call("mkdir", "file/x/y", recursive=True)),
    no_directory(f"{W}/file")("move to below a file", call("move_file", "dir", "file/x")),
    no_directory(f"{W}/file")("move from below a file", call("rename_file", "file/x", "y")),
    no_directory(f"{W}/file")("copy to below a file", call("copy_file", "file", "file/x")),
    no_directory(f"{W}/file")("rename a directory to a file", call("rename_file", "dir", "file")),
    no_directory(f"{W}/file")("delete a file as directory", call("delete_dir", "file"), "as a file"),
    no_directory(f"{W}/file")("watch a file", lambda user: enter_watch(user, "file"), "include its name"),
    no_directory(f"{W}/file")("upload a tree to a file", upload_tree_over_file),
    directory(f"{W}/dir")("read", call("read_file", "dir")),
    directory(f"{W}/dir")("write", call("write_file", "dir", b"")),
    directory(f"{W}/dir")("delete as file", call("delete_file", "dir"), "delete_dir()"),
    directory(f"{W}/dir")("rm", call("rm", "dir"), "recursive=True"),
    directory(f"{W}/dir")("copy onto", call("copy_file", "file", "dir")),
    directory(f"{W}/dir")("rename onto", call("rename_file", "file", "dir")),
    directory(f"{W}/new/")(
        "write to a name with a slash", call("write_file", "new/", b""), "is the name of a directory"
    ),
    directory(f"{W}/new/")("copy to a name with a slash", call("copy_file", "file", "new/")),
    directory(f"{W}/full/sub")("upload a file onto", upload_file_over_directory),
    existing(f"{W}/dir")("mkdir", call("mkdir", "dir")),
    existing(f"{W}/file")("mkdir recursively", call("mkdir", "file", recursive=True)),
    existing(f"{W}/file")("open exclusively", lambda user: write_piecewise(user, "file", "xb")),
    no_file(f"{W}/fifo")("read a FIFO", call("read_file", "fifo"), "is a FIFO"),
    no_file(f"{W}/fifo")("write a FIFO", call("write_file", "fifo", b""), "is a FIFO"),
    no_file(f"{W}/socket")("read a socket", call("read_file", "socket"), "is a socket"),
    no_file(f"{W}/socket")("write a socket", call("write_file", "socket", b""), "is a socket"),
    no_file("/dev/null")("read a device", call("read_file", "/dev/null"), "is a device"),
    no_file(f"{W}/fifo")("download a FIFO", lambda user: user.call("download", "fifo", user.local / "x")),
    no_file("/dev/pts/ptmx")("write a terminal", call("write_file", "/dev/pts/ptmx", b"")),
    about(f"{W}/full", ErrorCode.DIRECTORY_NOT_EMPTY, OSError, errno.ENOTEMPTY)(
        "delete what is not empty", call("delete_dir", "full", recursive=False)
    ),
    about(f"{W}/full", ErrorCode.DIRECTORY_NOT_EMPTY, OSError, errno.ENOTEMPTY)(
        "rename onto what is not empty", call("rename_file", "dir", "full")
    ),
    about(f"{W}/{LONG}", ErrorCode.NAME_TOO_LONG, OSError, errno.ENAMETOOLONG)("write", call("write_file", LONG, b"")),
    about(f"{W}/{LONG}", ErrorCode.NAME_TOO_LONG, OSError, errno.ENAMETOOLONG)(
        "move from", call("rename_file", LONG, "new")
    ),
    about(f"{W}/{LONG}", ErrorCode.NAME_TOO_LONG, OSError, errno.ENAMETOOLONG)(
        "move to", call("rename_file", "file", LONG)
    ),
    about(f"{W}/loop", ErrorCode.TOO_MANY_LINKS, OSError, errno.ELOOP)("read a loop", call("read_file", "loop")),
    about(f"{W}/loop", ErrorCode.TOO_MANY_LINKS, OSError, errno.ELOOP)("write a loop", call("write_file", "loop", b"")),
    about("/sys/x", ErrorCode.READ_ONLY, OSError, errno.EROFS)("write to /sys", call("mkdir", "/sys/x")),
    about("/", ErrorCode.RESOURCE_BUSY, OSError, errno.EBUSY)("delete the root", call("delete_dir", "/")),
    about("/proc", ErrorCode.RESOURCE_BUSY, OSError, errno.EBUSY)(
        "delete a mount", call("delete_dir", "/proc", recursive=False)
    ),
    Case(
        "a path of 5,000 bytes",
        ErrorCode.NAME_TOO_LONG,
        OSError,
        {"length": 5000, "path": "p" * 4096 + "…"},
        call("read_file", "p" * 5000),
        filename="p" * 4096 + "…",
        number=errno.ENAMETOOLONG,
    ),
    no_path("no path", "", call("read_file", "")),
    no_path("a path with a NUL", "a\0b", call("write_file", "a\0b", b"")),
    no_path("a path that is a number", "3", call("read_file", 3)),
    no_path("a path that cannot be bytes", "'\\ud800'", call("read_file", "\ud800")),
    no_path("a move to no path", "", call("move_file", "file", "")),
    no_path("to delete what one counts from", W, call("delete_dir", ".")),
    no_path("a directory into itself", f"{W}/dir/sub/x", call("rename_file", "dir", "dir/sub/x")),
    Case(
        "read more than fits into memory",
        ErrorCode.FILE_TOO_LARGE,
        OSError,
        {"path": f"{W}/huge", "size": 2**40, "limit": 256 * 2**20},
        read_huge,
        filename=f"{W}/huge",
        number=errno.EFBIG,
        says="open_file()",
    ),
    invalid("mode", "mode", 0o77777, call("chmod", "file", 0o77777)),
    invalid("encoding", "encoding", "latin-1", call("read_file", "file", encoding="latin-1"), "is not supported"),
    invalid("offset", "offset", -1, call("read_file", "file", offset=-1)),
    invalid("length", "length", 1.5, call("read_file", "file", length=1.5)),
    invalid("content", "content", 3, call("write_file", "new", 3)),
    invalid("whence", "whence", 9, lambda user: seek(user, 0, 9)),
    invalid("text for bytes", "data", "text", write_text),
    invalid("how to open", "mode", "r+", lambda user: user.read_all(user.sandbox.open_file("file", "r+"))),
    invalid("patterns", "include", [3], lambda user: user.read_all(user.sandbox.watch("dir", include=[3]))),
    invalid("what is no pattern", "exclude", 3, lambda user: user.read_all(user.sandbox.watch("dir", exclude=3))),
    Case(
        "content that is no base64",
        ErrorCode.INVALID_REQUEST,
        ValueError,
        {"encoding": "base64", "path": "new"},
        call("write_file", "new", "!", encoding="base64"),
    ),
    Case(
        "before the beginning",
        ErrorCode.INVALID_REQUEST,
        ValueError,
        {"offset": -9, "path": "file"},
        lambda user: seek(user, -9),
    ),
    Case(
        "read what is closed",
        ErrorCode.INVALID_REQUEST,
        ValueError,
        {"path": "file"},
        lambda user: use_closed(user, "rb"),
    ),
    Case(
        "write what is closed",
        ErrorCode.INVALID_REQUEST,
        ValueError,
        {"path": "file"},
        lambda user: use_closed(user, "wb"),
    ),
]

TRANSFERS = [
    missing(f"{LOCAL}/no")("upload nothing", lambda user: user.call("upload", user.local / "no", "a"), "this machine"),
    missing(f"{LOCAL}/no")("download to nowhere", lambda user: user.call("download", "file", user.local / "no/such/x")),
    no_file(f"{LOCAL}/fifo")("upload a FIFO", upload_fifo, "write_file()"),
    no_directory(f"{LOCAL}/taken")("download a tree onto a file", download_over_file),
    directory(f"{LOCAL}/tree/file")("download a file onto a directory", download_file_over_directory),
]

CWD: list[tuple[Any, ...]] = [
    ("exec", "true"),
    ("exec", ["true"]),
    ("start_process", "true"),
    ("create_session", "new"),
    ("create_terminal",),
]


DIRECTORIES = [
    case
    for way in CWD
    for case in (
        missing(f"{W}/no/where")("a relative cwd", call(*way, cwd="no/where")),
        missing("/no/where")("an absolute cwd", call(*way, cwd="/no/where")),
        no_directory(f"{W}/file")("a cwd that is a file", call(*way, cwd="file")),
        no_directory(f"{W}/file")("a cwd below a file", call(*way, cwd="file/x")),
        about(f"{W}/loop", ErrorCode.TOO_MANY_LINKS, OSError, errno.ELOOP)(
            "a cwd that is a loop", call(*way, cwd="loop")
        ),
        about(f"{W}/{LONG}", ErrorCode.NAME_TOO_LONG, OSError, errno.ENAMETOOLONG)("a long cwd", call(*way, cwd=LONG)),
        Case(
            "a cwd with a NUL",
            ErrorCode.INVALID_PATH,
            ValueError,
            {"field": "cwd", "value": repr("a\0b")},
            call(*way, cwd="a\0b"),
        ),
    )
]


def no_process(name: str, process_id: str, do: Callable[[User], Awaitable[object]]) -> Case:
    return Case(name, ErrorCode.PROCESS_NOT_FOUND, LookupError, {"process_id": process_id}, do)


def no_terminal(name: str, do: Callable[[User], Awaitable[object]]) -> Case:
    return Case(name, ErrorCode.TERMINAL_NOT_FOUND, LookupError, {"terminal_id": "no"}, do)


def no_program(name: str, program: str, do: Callable[[User], Awaitable[object]], says: str = "") -> Case:
    context = {"command": program}
    return Case(name, ErrorCode.COMMAND_NOT_FOUND, FileNotFoundError, context, do, program, errno.ENOENT, says)


PROCESSES = [
    no_process("get", "no", call("get_process", "no")),
    no_process("kill", "no", call("kill_process", "no")),
    no_process("logs", "no", call("get_process_logs", "no")),
    no_process("stream", "no", lambda user: user.read_all(user.sandbox.stream_process_logs("no"))),
    *(
        no_process(f"{method} of one that is forgotten", "gone", partial(forgotten_process, method=method))
        for method in ("refresh", "kill", "logs", "stream_logs", "wait_for_exit")
    ),
    Case("taken", ErrorCode.PROCESS_EXISTS, FileExistsError, {"process_id": "web"}, take_process, number=errno.EEXIST),
    Case("an id", ErrorCode.INVALID_PROCESS_ID, ValueError, {"process_id": "a/b"}, call("get_process", "a/b")),
    Case("an id that is none", ErrorCode.INVALID_PROCESS_ID, ValueError, {"process_id": "7"}, call("get_process", 7)),
    Case("a signal", ErrorCode.INVALID_SIGNAL, ValueError, {"signal": "SIGNO"}, call("kill_process", "x", "SIGNO")),
    Case("empty", ErrorCode.INVALID_COMMAND, ValueError, {"command": " "}, call("start_process", " ")),
    Case("words", ErrorCode.INVALID_COMMAND, ValueError, {"field": "command"}, call("start_process", [1])),
    Case("a NUL", ErrorCode.INVALID_COMMAND, ValueError, {"command": "a\0b"}, call("start_process", ["a\0b"])),
    Case(
        "what is no UTF-8",
        ErrorCode.INVALID_COMMAND,
        ValueError,
        {"field": "command", "value": "'\\udcff'"},
        call("start_process", "\udcff"),
    ),
    Case(
        "a variable",
        ErrorCode.INVALID_ENVIRONMENT,
        ValueError,
        {"name": "A="},
        call("start_process", "true", env={"A=": "b"}),
    ),
    no_program("a program that is not there", "no-such", call("start_process", ["no-such"]), "PATH"),
    no_program("words as one", "ls -l /", call("start_process", ["ls -l /"]), "['ls', '-l', '/']"),
    no_program("words as one for exec", "ls -l", call("exec", ["ls -l"]), "['ls', '-l']"),
    Case(
        "a program that is none",
        ErrorCode.PERMISSION_DENIED,
        PermissionError,
        {"command": "/etc/passwd"},
        call("start_process", ["/etc/passwd"]),
        filename="/etc/passwd",
        number=errno.EACCES,
    ),
    invalid("restart", "restart", "often", call("start_process", "true", restart="often")),
    invalid("timeout", "timeout", "soon", call("start_process", "true", timeout="soon")),
    invalid("since", "since", -1, lambda user: user.read_all(user.sandbox.stream_process_logs("x", since=-1))),
    Case(
        "a since from the future",
        ErrorCode.INVALID_REQUEST,
        ValueError,
        {"process_id": "web", "since": 5, "end": 0},
        read_too_far,
    ),
    Case(
        "no log in time",
        ErrorCode.PROCESS_READY_TIMEOUT,
        TimeoutError,
        {"process_id": "web", "condition": "write 'ready'", "timeout": 1.0, "log": "up"},
        lambda user: process_does(user, "wait_for_log", "ready", timeout=1),
        number=errno.ETIMEDOUT,
        says="within 1 second;",
    ),
    Case(
        "no port in time",
        ErrorCode.PROCESS_READY_TIMEOUT,
        TimeoutError,
        {"process_id": "web", "timeout": 0.1},
        lambda user: process_does(user, "wait_for_port", 8080, timeout=0.1),
        number=errno.ETIMEDOUT,
        says="within 0.1 seconds",
    ),
    Case(
        "no exit in time",
        ErrorCode.PROCESS_EXIT_TIMEOUT,
        TimeoutError,
        {"process_id": "web", "timeout": 1.0},
        lambda user: process_does(user, "wait_for_exit", timeout=1),
        number=errno.ETIMEDOUT,
        says="within 1 second [",
    ),
    Case(
        "an early exit",
        ErrorCode.PROCESS_EXITED_BEFORE_READY,
        AtollError,
        {"process_id": "web", "exit_code": 3, "log": "no config"},
        exit_before_ready,
    ),
    Case(
        "a port",
        ErrorCode.INVALID_PORT,
        ValueError,
        {"port": 70000},
        lambda user: process_does(user, "wait_for_port", 70000),
    ),
    invalid("a path of a URL", "path", "x", lambda user: process_does(user, "wait_for_port", 80, path="x")),
    invalid("a status", "status", (5, 5), lambda user: process_does(user, "wait_for_port", 80, status=5)),
    invalid("what is no status", "status", None, lambda user: process_does(user, "wait_for_port", 80, status=None)),
    invalid("how to ask", "mode", "udp", lambda user: process_does(user, "wait_for_port", 80, mode="udp")),
    invalid("what to look for", "wanted", "", lambda user: process_does(user, "wait_for_log", "")),
    invalid("bytes", "wanted", re.compile(b"x"), lambda user: process_does(user, "wait_for_log", re.compile(b"x"))),
]

TERMINALS = [
    no_terminal("get", call("get_terminal", "no")),
    no_program("a shell that is not there", "no-such", call("create_terminal", shell="no-such")),
    no_program("a shell with arguments", "bash -l", call("create_terminal", shell="bash -l"), "['bash', '-l']"),
    Case(
        "a shell that is none",
        ErrorCode.PERMISSION_DENIED,
        PermissionError,
        {"command": "/etc"},
        call("create_terminal", shell="/etc"),
        filename="/etc",
        number=errno.EACCES,
    ),
    Case(
        "no shell",
        ErrorCode.INVALID_COMMAND,
        ValueError,
        {"field": "shell", "value": "[]"},
        call("create_terminal", shell=[]),
    ),
    Case("a NUL", ErrorCode.INVALID_COMMAND, ValueError, {"command": "a\0b"}, call("create_terminal", shell="a\0b")),
    invalid("a size", "rows", 0, call("create_terminal", rows=0)),
    invalid("a new size", "cols", 70000, lambda user: terminal_does(user, "resize", 70000, 24)),
    invalid("what cannot be typed", "data", 3, lambda user: terminal_does(user, "write", 3)),
    Case("too many", ErrorCode.TOO_MANY_TERMINALS, AtollError, {"limit": 32}, many_terminals),
]

SESSIONS = [
    Case(
        f"{method} in a session that is gone",
        ErrorCode.SESSION_NOT_FOUND,
        LookupError,
        {"session_id": "gone"},
        partial(in_session, session="gone", method=method, arguments=arguments),
    )
    for method, arguments in (
        ("exec", ("true",)),
        ("exec", (["true"],)),
        ("read_file", ("x",)),
        ("move_file", ("x", "y")),
        ("start_process", ("true",)),
        ("create_terminal", ()),
    )
] + [
    Case("too many", ErrorCode.TOO_MANY_SESSIONS, AtollError, {"limit": 64, "session_id": "s63"}, many_sessions),
]

CASES = [
    (part, case)
    for part, cases in (
        ("files", FILES),
        ("transfers", TRANSFERS),
        ("directories", DIRECTORIES),
        ("processes", PROCESSES),
        ("terminals", TERMINALS),
        ("sessions", SESSIONS),
    )
    for case in cases
]


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def user(request: pytest.FixtureRequest, server: RunningServer, tmp_path: Path) -> AsyncIterator[User]:
    half: Half = request.param()
    local = tmp_path / "local"
    local.mkdir()
    yield User(half, half.get_sandbox("errors", url=server.unix_url), local)
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.shared_server.cache_clear()


@pytest.mark.parametrize("part", dict(CASES))
async def test_every_error_says_what_failed_and_what_to_do(user: User, part: str) -> None:
    wrong = []
    for case in (case for name, case in CASES if name == part):
        await user.call("exec", PREPARED)
        (user.local / "x").unlink(missing_ok=True)
        wrong += [f"{case.name}: {fault}" for fault in await faults_of(user, case)]
        await user.call("destroy")
        for left in sorted(user.local.rglob("*"), reverse=True):
            left.rmdir() if left.is_dir() and not left.is_symlink() else left.unlink()
    assert not wrong, "\n".join(wrong)


async def faults_of(user: User, case: Case) -> list[str]:
    def here(text: Any) -> Any:
        return text.replace(LOCAL, str(user.local)) if isinstance(text, str) else text

    try:
        await case.do(user)
    except AtollError as problem:
        found = problem
    except Exception as problem:
        return [f"it is {problem!r}, which nobody typed"]
    else:
        return ["there is no error"]
    faults = []
    if found.code is not case.code:
        faults.append(f"its code is {found.code}: {found}")
    if not isinstance(found, case.kind):
        faults.append(f"it is a {type(found).__mro__}")
    for name, value in case.context.items():
        if found.context.get(name) != here(value):
            faults.append(f"{name} is {found.context.get(name)!r} of {found.context}")
    if getattr(found, "filename", None) != here(case.filename):
        faults.append(f"its filename is {getattr(found, 'filename', None)!r}")
    if getattr(found, "errno", None) != case.number:
        faults.append(f"its errno is {getattr(found, 'errno', None)!r}")
    if not found.remedy or not found.remedy.endswith("."):
        faults.append(f"its remedy is {found.remedy!r}")
    if case.says not in str(found):
        faults.append(f"it says {str(found)!r}")
    if str(found) != f"{found.message} [{found.code}]\n  {found.remedy}":
        faults.append(f"it reads {str(found)!r}")
    again = pickle.loads(pickle.dumps(found))
    if (type(again), str(again), again.context) != (type(found), str(found), found.context):
        faults.append("another process gets another error")
    return faults


# Names that are no text


NAMELESS = b"caf\xe9"
SHOWN, EXACT = "caf\ufffd", os.fsdecode(NAMELESS)


def encoded(path: bytes) -> str:
    return base64.b64encode(path).decode()


@pytest.mark.parametrize(
    ("do", "code"),
    [
        (call("read_file", EXACT), ErrorCode.FILE_NOT_FOUND),
        (call("mkdir", f"{EXACT}/x"), ErrorCode.FILE_NOT_FOUND),
        (call("rename_file", "file", f"{EXACT}/x"), ErrorCode.FILE_NOT_FOUND),
        (lambda user: enter_watch(user, EXACT), ErrorCode.FILE_NOT_FOUND),
    ],
)
async def test_a_name_that_is_no_text_comes_back_in_an_error_as_it_was_given(
    user: User, do: Callable[[User], Awaitable[object]], code: ErrorCode
) -> None:
    await user.call("exec", PREPARED)
    with pytest.raises(AtollError) as caught:
        await do(user)
    problem = caught.value
    assert problem.code is code and isinstance(problem, FileNotFoundError)
    assert problem.filename == f"{W}/{EXACT}"
    path = W.encode() + b"/" + NAMELESS
    assert (problem.context["path"], problem.context["path_base64"]) == (f"{W}/{SHOWN}", encoded(path))
    str(problem).encode()
    json.dumps(problem.context).encode()
    again = pickle.loads(pickle.dumps(problem))
    assert (again.filename, again.context) == (problem.filename, problem.context)
    assert not await user.call("exists", problem.filename)


async def test_a_directory_whose_name_is_no_text_is_told_and_used(user: User) -> None:
    await user.call("mkdir", f"{EXACT}/sub", recursive=True)
    assert [file.name for file in await user.call("list_files", ".")] == [EXACT]
    session = await user.call("create_session", "inside")
    await user.of(session, "exec", "cd caf*/sub")
    with pytest.raises(FileNotFoundError) as caught:
        await user.of(session, "read_file", "no")
    assert caught.value.filename == f"{W}/{EXACT}/sub/no"
    for method, arguments in (("exec", ("true",)), ("start_process", ("true",)), ("create_terminal", ())):
        with pytest.raises(FileNotFoundError) as caught:
            await user.of(session, method, *arguments, cwd="no")
        assert caught.value.filename == f"{W}/{EXACT}/sub/no"
    (listed,) = [one for one in await user.call("list_sessions") if one.id == "inside"]
    assert listed.cwd == f"{W}/{SHOWN}/sub"
    await user.of(session, "exec", "rmdir ../sub")
    with pytest.raises(FileNotFoundError) as caught:
        await user.of(session, "read_file", "relative")
    assert caught.value.filename == f"{W}/{EXACT}/sub"


async def test_names_that_are_no_text_over_http(server: RunningServer) -> None:
    route = "/v1/sandboxes/names/files"
    name = quote(NAMELESS)
    assert (await server.ask("PUT", f"{route}/content?path={name}", b"content")).status == 200
    (listed,) = (await server.ask("GET", f"{route}?path=.")).json()["files"]
    path = W.encode() + b"/" + NAMELESS
    assert (listed["path"], listed["name"], listed["path_base64"]) == (f"{W}/{SHOWN}", SHOWN, encoded(path))
    found = await server.ask("GET", f"{route}/content?path_base64={quote(listed['path_base64'])}")
    assert found.body == b"content"
    for below in (f"path={name}/x", f"path_base64={quote(encoded(NAMELESS + b'/x'))}"):
        answer = await server.ask("GET", f"{route}/content?{below}")
        assert (answer.status, answer.json()["code"]) == (409, "NOT_DIRECTORY")
        assert answer.json()["context"] == {"path": f"{W}/{SHOWN}", "path_base64": encoded(path)}
    given = encoded(b"no \xff/x")
    answer = await server.ask("POST", f"{route}/directory", {"path_base64": given})
    assert (answer.status, answer.json()["code"]) == (404, "FILE_NOT_FOUND")
    assert answer.json()["context"]["path_base64"] == encoded(W.encode() + b"/no \xff")
    answer = await server.ask("POST", f"{route}/directory", {"path_base64": encoded(b"a\0\xff")})
    assert (answer.status, answer.json()["code"]) == (400, "INVALID_PATH")
    assert answer.json()["context"] == {"path": "a\0\ufffd", "path_base64": encoded(b"a\0\xff")}


@pytest.mark.parametrize("text", ["\\udce9", "\\ud800", "a\\ud83d", "\\ude00\\ud83d"])
async def test_half_a_character_in_json_is_a_typed_error(server: RunningServer, text: str) -> None:
    sandbox = "/v1/sandboxes/half"
    for route, body in (
        ("files/directory", '{"path": "%s/x"}'),
        ("files/move", '{"source": "%s", "target": "x"}'),
        ("files/mode", '{"path": "%s", "mode": "0600"}'),
        ("processes", '{"command": "true", "cwd": "%s"}'),
        ("processes", '{"command": "%s"}'),
        ("processes", '{"command": "true", "id": "%s"}'),
        ("terminals", '{"cwd": "%s"}'),
        ("terminals", '{"shell": ["%s"]}'),
        ("exec", '{"command": "true", "cwd": "%s"}'),
        ("sessions", '{"id": "%s"}'),
        ("sessions", '{"cwd": "%s"}'),
    ):
        answer = await server.ask("POST", f"{sandbox}/{route}", (body % text).encode())
        assert 400 <= answer.status < 500, (route, body, answer)
        assert answer.json()["code"] not in ("INTERNAL_ERROR", "ROUTE_NOT_FOUND") and answer.json()["remedy"]


async def test_what_is_streamed_over_http_names_what_failed_too(server: RunningServer) -> None:
    sandbox = "/v1/sandboxes/streams"
    assert (await server.ask("PUT", sandbox, {})).status in (200, 201)
    gone = await server.ask("GET", f"{sandbox}/terminals/no")
    assert (gone.status, gone.json()["context"]) == (404, {"terminal_id": "no"})
    gone = await server.ask("GET", f"{sandbox}/processes/no/logs", headers={"Accept": "text/event-stream"})
    assert (gone.status, gone.json()["context"]) == (404, {"process_id": "no"})
    listed = await server.ask("POST", f"{sandbox}/terminals", {})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", listed.json()["created_at"])
    made = await server.ask("POST", f"{sandbox}/sessions", {"id": "s"})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", made.json()["created_at"])
