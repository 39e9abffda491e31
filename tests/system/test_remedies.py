"""What goes wrong around a server, made to go wrong: each time the code, the value and the remedy that help."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from atoll.cli.main import _main
from atoll.cli.verbs import key, serve  # noqa: F401 (loaded now, and what they load: who runs them below may read no module)
from atoll.images.host import HostImage
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.server import run  # noqa: F401
from atoll.server.routes import ROUTES
from atoll.store import choose, keys  # noqa: F401
from atoll.store.sqlite.database import MIGRATIONS, NAME, Database, fold_log, open_database
from tests.system.serving import RunningServer
from tests.unit.test_host_image import host

__all__ = ["host"]  # a fixture

SHUT_DOWN = 0x8004587D  # the ioctl of ext4 after which a file system is as good as pulled out
WITHOUT_LOG = struct.pack("I", 2)
NOBODY = 65534


# The state directory


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    image, mounted = tmp_path / "image", tmp_path / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mounted], check=True)
    yield mounted
    subprocess.run(["umount", mounted], capture_output=True)


def write(database: Database) -> None:
    database.execute("INSERT INTO retired (sandbox) VALUES ('a')")


def pulled_out(state: Path) -> None:
    with closing(open_database(state)) as database:
        fd = os.open(state, os.O_RDONLY)
        fcntl.ioctl(fd, SHUT_DOWN, WITHOUT_LOG)
        os.close(fd)
        write(database)


def unmounted(state: Path) -> None:
    with closing(open_database(state)) as database:
        write(database)
        subprocess.run(["umount", "-l", state], check=True)
        fold_log(database.path)


def removed(state: Path) -> None:
    with closing(open_database(state)) as database:
        database.path.unlink()
        fold_log(database.path)


def read_only(state: Path) -> None:
    open_database(state).close()
    subprocess.run(["mount", "-o", "remount,ro", state], check=True)
    open_database(state)


def newer(state: Path) -> None:
    with closing(open_database(state)) as database:
        database.execute(f"PRAGMA user_version={len(MIGRATIONS) + 7}")
    open_database(state)


def damaged(state: Path) -> None:
    with closing(open_database(state)) as database:
        write(database)
    (state / NAME).write_bytes((state / NAME).read_bytes()[:100] + os.urandom(50_000))
    with closing(open_database(state)) as database:
        database.rows("SELECT * FROM retired")


class Case(NamedTuple):
    happens: Callable[[Path], None]
    says: str
    remedy: str


STATE = {
    "its disk is pulled out": Case(pulled_out, "disk I/O error", "dmesg"),
    "its file system is unmounted": Case(unmounted, "not there any more", "Mount the file system again"),
    "it is removed": Case(removed, "not there any more", "put the directory back"),
    "its file system is read-only": Case(read_only, "read-only", "Mount it for writing"),
    "a later version made it": Case(newer, f"of version {len(MIGRATIONS) + 7}", "a later one"),
    "it is damaged": Case(damaged, "malformed", "backup"),
}


@pytest.mark.parametrize("what", STATE)
def test_a_database_that_is_in_trouble_is_told_as_what_it_is(disk: Path, what: str) -> None:
    case = STATE[what]
    with pytest.raises(AtollError) as caught:
        case.happens(disk)
    problem = caught.value
    assert problem.code is ErrorCode.STATE_DIRECTORY_UNUSABLE
    assert case.says in problem.message and str(disk / NAME) in problem.message
    assert case.remedy in problem.remedy
    assert problem.context["path"] == str(disk / NAME)


def test_what_a_later_version_made_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(AtollError) as caught:
        newer(tmp_path)
    assert (caught.value.context["version"], caught.value.context["known"]) == (len(MIGRATIONS) + 7, len(MIGRATIONS))
    with closing(Database(tmp_path / NAME)) as database:
        assert database.rows("PRAGMA user_version") == [(len(MIGRATIONS) + 7,)]


@pytest.mark.parametrize(
    "words", [("key", "create", "me"), ("key", "ls"), ("serve",)], ids=lambda words: " ".join(words)
)
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_user_is_told_whose_state_directory_it_is(tmp_path: Path, words: tuple[str, ...], mode: int) -> None:
    state = tmp_path / "state"
    state.mkdir()
    open_database(state).close()
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    state.chmod(mode)
    if words == ("serve",):
        runtime = tmp_path / "run"
        runtime.mkdir(mode=mode)
        words = ("serve", "--runtime-dir", str(runtime))
    code, told = as_user(NOBODY, *words, "--json", "--state-dir", str(state))
    assert code == 1
    body = json.loads(told.splitlines()[-1])
    assert body["code"] == "NOT_ROOT"
    assert f"uid {NOBODY}" in body["message"]
    assert "sudo" in body["remedy"]
    assert words[0] == "serve" or str(state) in body["message"]


def as_user(uid: int, *words: str) -> tuple[int, str]:
    """The program, in a fork of this process: its exit code, and what it says on standard error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writer, 2)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with open(2, "w", closefd=False) as stderr:
                import sys

                sys.stderr = stderr
                code = _main(list(words))
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader) as file:
        told = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


# The host's packages


@contextmanager
def dpkg_running(host: Path) -> Iterator[int]:
    """Whoever installs something: it holds the lock, and has just now a file there that cannot be copied."""
    os.mkfifo(host / "var/lib/dpkg/status-new")
    lock = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); input()"
    )
    command: list[str | Path] = ["python3", "-c", lock, host / "var/lib/dpkg/lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        yield process.pid
        (host / "var/lib/dpkg/status-new").unlink(missing_ok=True)


def test_packages_that_are_being_installed_are_waited_for(host: Path, tmp_path: Path) -> None:
    image = HostImage(tmp_path / "store", host)
    with dpkg_running(host):
        timer = threading.Timer(0.5, (host / "var/lib/dpkg/status-new").unlink)
        timer.start()
        root = image.resolve()
        timer.join()
    assert (Path(root.overlays[0].layers[0]) / "var/lib/dpkg/status").exists()


def test_who_installs_packages_for_long_is_named(host: Path, tmp_path: Path) -> None:
    image = HostImage(tmp_path / "store", host)
    image.patience = 0.3
    with dpkg_running(host) as pid, pytest.raises(AtollError) as caught:
        image.resolve()
    assert caught.value.code is ErrorCode.HOST_IMAGE_NOT_POSSIBLE
    assert f"process {pid}" in caught.value.message and "status-new" in caught.value.message
    assert "Wait until apt or dpkg is done" in caught.value.remedy
    assert os.listdir(tmp_path / "store/host") == []
    assert image.resolve()


def test_what_fails_while_nobody_installs_anything_is_told_at_once(host: Path, tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    with pytest.raises(AtollError) as caught:
        HostImage(tmp_path / "store", host).resolve()
    assert caught.value.code is ErrorCode.HOST_IMAGE_NOT_POSSIBLE
    assert os.strerror(errno.ENOTDIR) in caught.value.message and str(tmp_path / "store") in caught.value.remedy


# The wrong method


async def test_a_wrong_method_is_answered_with_exactly_those_of_the_path(server: RunningServer) -> None:
    table = [(re.compile(re.sub("{[^}]*}", "[^/]+", route.path)), route.method) for route in ROUTES]
    paths = {re.sub("{[^}]*}", "x", route.path) for route in ROUTES}
    expected = {path: {method for pattern, method in table if pattern.fullmatch(path)} for path in paths}
    expected |= {"/docs": {"GET"}, "/openapi.json": {"GET"}}
    assert any(len(methods) > 1 for methods in expected.values())
    for asked, methods in expected.items():
        refused = await server.ask("TRACE", asked)
        assert refused.status == 405, asked
        allowed = set(refused.headers["allow"].split(", "))
        assert allowed == methods | ({"HEAD"} if "GET" in methods else set()), asked
        body = refused.json()
        assert body["code"] == "METHOD_NOT_ALLOWED" and asked in body["message"] and "TRACE" in body["message"]
        assert refused.headers["allow"] in body["remedy"]
