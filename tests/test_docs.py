"""The README's Python runs as printed, and so does the example that `make run` shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


PRINTED = ("4\n 0\n", "COMMAND_NOT_FOUND Check", "hello from /tmp\n")


@pytest.mark.parametrize(("snippet", "printed"), list(zip(SNIPPETS, PRINTED, strict=True)))
def test_a_snippet_of_the_readme_runs(snippet: str, printed: str, tmp_path: Path) -> None:
    shown = subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(printed)


def test_the_first_sandbox_shows_what_it_promises() -> None:
    shown = subprocess.run([sys.executable, ROOT / "examples/first_sandbox.py"], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    for words in ("root@user-123 in /workspace", "34 55 89", "exit code 127", "is still there"):
        assert words in shown.stdout


def test_commands_the_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", (ROOT / document).read_text(), re.MULTILINE))
        assert {one or other for one, other in named} <= targets, document
