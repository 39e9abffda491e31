"""The documents: what they show runs as printed, what they name is there, and their links lead somewhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import atoll
from atoll.attacks.catalog import ATTACKS
from atoll.protocol.errors import ErrorCode
from tests.documents import read_blocks, run_document
from tests.leaks import Surroundings
from tests.system.serving import RunningServer

ROOT = Path(__file__).parents[1]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory, surroundings: Surroundings) -> AsyncIterator[RunningServer]:
    """What the documents find as the server of this machine."""
    directory = tmp_path_factory.mktemp("documents")
    server = RunningServer(directory)
    await server.start()
    await server.ask("PUT", "/v1/sandboxes/first", {})
    await server.destroy_all()
    surroundings.shared.add(directory)
    surroundings.processes.add(server.process.pid)
    yield server
    surroundings.processes.discard(server.process.pid)
    surroundings.shared.discard(directory)
    await server.close()


@pytest.mark.parametrize(
    "guide", [guide for guide in GUIDES if read_blocks(guide.read_text())], ids=lambda path: path.name
)
async def test_what_a_document_shows_runs_as_printed(guide: Path, server: RunningServer, tmp_path: Path) -> None:
    places = {"ATOLL_STATE_DIR": str(server.state), "ATOLL_RUNTIME_DIR": str(server.socket.parent)}
    program = [sys.executable, "-m", "tests.documents", str(guide)]
    shown = subprocess.run(
        program, cwd=tmp_path, env=os.environ | places | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    left = (await server.ask("GET", "/v1/sandboxes")).json()["sandboxes"]
    await server.destroy_all()
    assert shown.returncode == 0, shown.stderr
    assert not left, "each document destroys what it makes"


def test_a_document_that_says_otherwise_than_it_runs_is_found_out(tmp_path: Path) -> None:
    document = tmp_path / "guide.md"
    document.write_text(
        "```python\nprint(2 + 2)  # 5\n```\n\n```sh\necho one; echo two\n```\n```text\ntwo\n…\none\n```\n"
    )
    assert len(run_document(document)) == 2
    document.write_text("```sh\nfalse\n```\n")
    with pytest.raises(SystemExit, match="exit code 1"):
        run_document(document)


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
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", document.read_text(), re.MULTILINE))
        assert {one or other for one, other in named} <= targets, document


def test_what_the_reference_shows_is_there() -> None:
    shown = re.findall(r"^::: ([\w.]+)$", "".join(path.read_text() for path in REFERENCE), re.MULTILINE)
    for name in shown:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name
    missing = {name for name in atoll.__all__ if not name.startswith("Async") and f"atoll.{name}" not in shown}
    assert not missing, "not in docs/reference"


def test_every_error_has_its_row() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| `(\w+)` \| (\d+) \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    expected = {(code.value, code.kind.__name__, str(code.status)) for code in ErrorCode}
    assert set(rows) ^ expected == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _, anchor = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        assert ":" in link or target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(document: Path) -> set[str]:
    """The headings of a document, as GitHub and the site call them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_what_is_said_to_show_a_promise_is_there() -> None:
    text = (ROOT / "docs/what-holds.md").read_text()
    files = set(re.findall(r"`((?:tests|src)/[\w/.]+)`", text))
    assert len(files) > 30
    assert not [file for file in files if not (ROOT / file).exists()]
    attacks = set(re.findall(r"\[([a-z-]+)\]", text))
    assert attacks <= {attack.name for attack in ATTACKS}, attacks - {attack.name for attack in ATTACKS}
