"""Clients where there is no Linux: what they need of it is not there, and they work all the same, over TCP."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.client.plumbing.local_server import SERVER_PACKAGES
from tests.system.serving import RunningServer

ROOT = Path(__file__).parents[2]
SYSTEMS = ("win32", "darwin")

BLOCKING = """
import io, os, sys, threading, warnings
from pathlib import Path
import atoll

here = Path(sys.argv[1])
sandbox = atoll.get_sandbox("elsewhere")
assert sandbox.exec("echo $((6 * 7))").stdout == "42\\n"
assert sandbox.exec("cat", stdin="text").stdout == "text"
assert {event.data for event in sandbox.exec_stream("echo one; echo two >&2") if event.data} == {"one\\n", "two\\n"}

# Input that comes late, from a pipe; and more of it than anybody holds, while as much comes back.
late, pipe = os.pipe()
threading.Timer(0.2, lambda: (os.write(pipe, b"late"), os.close(pipe))).start()
with open(late, "rb") as stdin:
    assert sandbox.exec("cat", stdin=stdin).stdout == "late"
much = os.urandom(3_000_000)
(here / "much").write_bytes(much)
with open(here / "much", "rb", buffering=0) as stdin:
    assert sandbox.exec("cat", stdin=stdin).stdout_bytes == much

sandbox.write_file("notes.txt", "line\\r\\nend\\n")
assert sandbox.read_file("notes.txt").content == "line\\r\\nend\\n"
with sandbox.open_file("notes.txt") as reader:
    assert reader.read() == b"line\\r\\nend\\n"
assert [info.name for info in sandbox.list_files(".")] == ["notes.txt"]

# Directories, there and back, with line ends as they were.
tree = here / "tree"
(tree / "a" / "b").mkdir(parents=True)
(tree / "a" / "b" / "lines").write_bytes(b"1\\r\\n2\\n")
(tree / "empty").mkdir()
(tree / "link").symlink_to("a/b/lines")
os.utime(tree / "a" / "b" / "lines", (1_000_000_000, 1_000_000_000))
sandbox.upload(tree, "copy")
assert sandbox.exec("cat copy/link; ls copy").stdout == "1\\r\\n2\\na\\nempty\\nlink\\n"
sandbox.download("copy", here / "back")
assert (here / "back/a/b/lines").read_bytes() == b"1\\r\\n2\\n"
assert (here / "back/a/b/lines").stat().st_mtime == 1_000_000_000
assert (here / "back/empty").is_dir() and os.readlink(here / "back/link") == "a/b/lines"
sandbox.exec("echo more > copy/a/more; rm copy/link; echo file > copy/link")
sandbox.download("copy", here / "back")
assert (here / "back/a/more").read_text() == "more\\n" and (here / "back/link").read_text() == "file\\n"
sandbox.exec("head -c 2000000 /dev/urandom > large; truncate -s 3M holes")
for name in ("large", "holes"):
    sandbox.download(name, here / name)
    sandbox.upload(here / name, f"{name}.again")
    assert sandbox.exec(["cmp", name, f"{name}.again"]).success

# What must not be written: out of the directory, or, where names mean more, by another name than its own.
sandbox.exec("mkdir bad; ln -s / bad/out")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    sandbox.download("bad", here / "bad")
assert "'out' to '/'" in str(told[0].message), told
assert not list((here / "bad").iterdir())
for name in ("a\\\\b", "c:x", "NUL.txt", "dot.", "s:stream"):
    assert sandbox.exec(["sh", "-c", 'rm -rf named; mkdir -p named; echo x > "named/$0"', name]).success
    try:
        sandbox.download("named", here / "named")
        assert sys.platform != "win32", name
        __import__("shutil").rmtree(here / "named")
    except atoll.AtollError as problem:
        assert sys.platform == "win32" and problem.code == "UNSAFE_ARCHIVE", problem
        try:
            sandbox.download(f"named/{name}", f"{here}/")
        except atoll.AtollError as problem:
            assert problem.code == "INVALID_PATH", problem
    assert not (here / "named").exists()
assert not [path for path in here.iterdir() if path.name.startswith(".atoll-")]

process = sandbox.start_process("echo started; sleep 60")
assert process.wait_for_log("started", timeout=60)
process.kill()
terminal = sandbox.create_terminal(80, 24, shell="sh")
with terminal.attach() as view:
    terminal.write("exit 3\\n")
    for _ in view:
        pass
assert view.exit_code == 3
print("done")
"""

ASYNC = """
import asyncio, os, sys
from pathlib import Path
import atoll

here = Path(sys.argv[1])

async def main():
    sandbox = atoll.get_async_sandbox("elsewhere")
    results = await asyncio.gather(*(sandbox.exec(["echo", str(number)]) for number in range(20)))
    assert [result.stdout for result in results] == [f"{number}\\n" for number in range(20)]
    events = [event async for event in sandbox.exec_stream("echo one; sleep 0.1; echo two")]
    assert [event.data for event in events if event.data] == ["one\\n", "two\\n"]
    much = os.urandom(3_000_000)
    assert (await sandbox.exec("cat", stdin=[much])).stdout_bytes == much
    late, pipe = os.pipe()
    asyncio.get_running_loop().call_later(0.2, lambda: (os.write(pipe, b"late"), os.close(pipe)))
    with open(late, "rb") as stdin:
        assert (await sandbox.exec("cat", stdin=stdin)).stdout == "late"
    (here / "tree/a").mkdir(parents=True)
    (here / "tree/a/file").write_bytes(much)
    await sandbox.upload(here / "tree", "copy")
    await sandbox.download("copy", here / "back")
    assert (here / "back/a/file").read_bytes() == much
    # One that is cancelled ends its command, and leaves the others alone.
    sleeping = asyncio.create_task(sandbox.exec("echo > sleeps; exec sleep 1000"))
    while not await sandbox.exists("sleeps"):
        pass
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    assert (await sandbox.exec("echo on")).stdout == "on\\n"
    try:
        await sandbox.exec("sleep 1000", timeout=0.2)
    finally:
        print("done")

asyncio.run(main())
"""

CLIENT_PARTS = ("archives", "cli", "client", "client_sync", "protocol", "values")


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_clients_use_exists_elsewhere(system: str) -> None:
    """mypy knows which functions and constants a system has."""
    command = [sys.executable, "-m", "mypy", "--platform", system, "--cache-dir", f".mypy_cache/{system}"]
    checked = subprocess.run(
        [*command, *(f"src/atoll/{part}" for part in CLIENT_PARTS)], cwd=ROOT, capture_output=True, text=True
    )
    ours = tuple(f"src/atoll/{part}/" for part in CLIENT_PARTS)
    assert not [line for line in checked.stdout.splitlines() if line.startswith(ours)]
    assert re.search(r"^(Success|Found)", checked.stdout, re.MULTILINE), checked.stdout + checked.stderr


def run(system: str, *words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests/elsewhere.py"), system, *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


async def run_beside(server: RunningServer, system: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"ATOLL_URL": server.tcp_url, "ATOLL_API_KEY": server.key}
    return await asyncio.to_thread(run, system, *words, environment=environment)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("program", [BLOCKING, ASYNC], ids=["blocking", "async"])
async def test_the_sdk_works_elsewhere(server: RunningServer, system: str, program: str, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(program)
    (tmp_path / "here").mkdir()
    ran = await run_beside(server, system, str(tmp_path / "client.py"), str(tmp_path / "here"))
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr


@pytest.mark.parametrize("system", SYSTEMS)
async def test_the_command_line_works_elsewhere(server: RunningServer, system: str, tmp_path: Path) -> None:
    async def cli(*words: str) -> str:
        ran = await run_beside(server, system, "atoll.cli", *words)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert await cli("exec", "elsewhere", "--", "echo", "hello") == "hello\n"
    assert "elsewhere" in await cli("ls")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("content")
    await cli("cp", str(tmp_path / "tree"), "elsewhere:copy")
    await cli("cp", "elsewhere:copy", str(tmp_path / "back"))
    assert (tmp_path / "back/file").read_text() == "content"
    assert await cli("cp", "elsewhere:copy/file", "-") == "content"
    assert "serve" in await cli("--help")


@pytest.mark.parametrize(
    ("system", "words", "code"),
    [
        ("win32", ["ls"], "MACHINE_NOT_SUPPORTED"),
        ("darwin", ["ls"], "MACHINE_NOT_SUPPORTED"),
        ("win32", ["serve"], "MACHINE_NOT_SUPPORTED"),
        ("darwin", ["doctor"], "MACHINE_NOT_SUPPORTED"),
        ("win32", ["key", "ls"], "MACHINE_NOT_SUPPORTED"),
        ("win32", ["shell", "elsewhere", "--url", "http://127.0.0.1:1"], "MACHINE_NOT_SUPPORTED"),
        ("win32", ["ls", "--url", "unix:///run/atoll/server.sock"], "MACHINE_NOT_SUPPORTED"),
        ("darwin", ["ls", "--url", "unix:///nowhere/server.sock"], "SERVER_NOT_REACHABLE"),
    ],
)
def test_what_cannot_be_done_elsewhere_says_so(system: str, words: list[str], code: str) -> None:
    ran = run(system, "atoll.cli", *words, environment={"ATOLL_URL": "", "ATOLL_API_KEY": ""})
    assert ran.returncode == 1
    assert f"[{code}]" in ran.stderr.splitlines()[0], ran.stderr
    assert ran.stderr.splitlines()[1].strip(), "and what to do"


def test_a_server_without_what_it_needs_says_how_to_install_it(tmp_path: Path) -> None:
    """`serve` itself, and whoever would have started it."""
    taken = "".join(f"sys.modules[{name!r}] = None\n" for name in SERVER_PACKAGES)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{taken}")
    places = {"ATOLL_STATE_DIR": str(tmp_path / "state"), "ATOLL_RUNTIME_DIR": str(tmp_path / "run")}
    for words in (["serve"], ["ls"]):
        ran = subprocess.run(
            [sys.executable, "-m", "atoll.cli", *words],
            capture_output=True,
            text=True,
            env=os.environ | places | {"ATOLL_URL": "", "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"},
        )
        assert ran.returncode == 1
        assert "[SERVER_NOT_INSTALLED]" in ran.stderr, ran.stderr
        assert "pip install 'atoll[server]'" in ran.stderr
