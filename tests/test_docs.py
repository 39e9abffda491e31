"""The README's Python runs as printed, and so does the example that `make run` shows."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from atoll.attacks.catalog import ATTACKS

ROOT = Path(__file__).parents[1]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


PRINTED = (
    ["4", "0"],
    ["124 True", "hello from /tmp", "gcc in /usr", "$HOME is not expanded"],
    ["stdout 1 for you", "complete 0", "running {'team': 'red'}", "['created']"],
    ["200", "killed True", "2", "7 stdout trying", "22 exit 0", "PROCESS_EXITED_BEFORE_READY no config"],
    ["['0', '1', '2']"],
    ["FILE_NOT_FOUND /no/such/place Make it first."],
    ["30 100", "exit code 3"],
    [
        "x,y\n1,2",
        "application/x-executable",
        "hello",
        "b'100000\\n'",
        "/workspace/data/b.csv",
        "['a.csv', 'b.csv']",
    ],
    ["frozen 1", "'frozen', 'thawed', 'stopped', 'upkeep_changed'"],
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Where the snippets find a server of their own; they start it, and it is ended after them."""
    places = {"ATOLL_STATE_DIR": f"{tmp_path}/state", "ATOLL_RUNTIME_DIR": f"{tmp_path}/run"}
    yield os.environ | places
    with suppress(ProcessLookupError):  # it has ended by itself
        pidfd = os.pidfd_open(int((tmp_path / "state/lock").read_text()))
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        select.select([pidfd], [], [])
        os.close(pidfd)


def test_the_snippets_of_the_readme_run(server: dict[str, str], tmp_path: Path) -> None:
    for snippet, printed in zip(SNIPPETS, PRINTED, strict=True):
        command = [sys.executable, "-c", snippet]
        shown = subprocess.run(command, cwd=tmp_path, env=server, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        for words in printed:
            assert words in shown.stdout


def test_the_first_sandbox_shows_what_it_promises_and_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "own"
    place.mkdir()
    shown = subprocess.run(
        [sys.executable, ROOT / "scripts/with_own_server.py", sys.executable, ROOT / "examples/first_sandbox.py"],
        env=os.environ | {"TMPDIR": str(place), "ATOLL_URL": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in (
        "root@first-sandbox in /workspace",
        "34 55 89",
        "exit code 124, then: hello you, from /tmp",
        "3\n2\n1\ngone\n",
        "gcc in /usr",
        "exit code 127",
        "nobody has been here: 0 files",
        "is still there",
    ):
        assert words in shown.stdout
    assert not list(place.iterdir())


def test_commands_the_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", (ROOT / document).read_text(), re.MULTILINE))
        assert {one or other for one, other in named} <= targets, document


def test_what_is_said_to_show_a_promise_is_there() -> None:
    text = (ROOT / "docs/what-holds.md").read_text()
    files = set(re.findall(r"`((?:tests|src)/[\w/.]+)`", text))
    assert len(files) > 30
    assert not [file for file in files if not (ROOT / file).exists()]
    attacks = set(re.findall(r"\[([a-z-]+)\]", text))
    assert attacks <= {attack.name for attack in ATTACKS}, attacks - {attack.name for attack in ATTACKS}
