"""ARCHITECTURE.md and docs/map.md against the tree: every file is on the map, and imports go where the rules allow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/atoll"
DOCUMENT = (ROOT / "ARCHITECTURE.md").read_text()


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The part a module belongs to: its first folder, and `engine/native` apart from `engine`."""
    parts = path.relative_to(SOURCE).parts
    if parts[:2] == ("engine", "native"):
        return "engine/native"
    return parts[0] if len(parts) > 1 else "atoll"


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module or ""] + [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            words = name.split(".")
            if words[0] == "atoll" and len(words) > 1 and (SOURCE / words[1]).is_dir():
                found.add("engine/native" if words[1:3] == ["engine", "native"] else words[1])
    return found


def rules() -> dict[str, set[str]]:
    """The table "part | may import" in ARCHITECTURE.md."""
    rows = re.findall(r"^\| `([a-z_/]+)` \| ([^|]+) \|$", DOCUMENT, re.MULTILINE)
    return {part: set(re.findall(r"`([a-z_/]+)`", allowed)) for part, allowed in rows}


def test_there_is_a_rule_for_every_part() -> None:
    assert set(rules()) == {part_of(path) for path in modules()} - {"atoll"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    if part != "atoll":
        assert imported_parts(path) <= rules()[part] | {part}


def test_the_lifecycle_neither_waits_nor_acts_nor_looks_at_a_clock() -> None:
    tree = ast.parse((SOURCE / "supervisor/lifecycle.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"__future__", "enum", "msgspec", "msgspec.structs", "atoll.supervisor.plans"}
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))
    loaded = "import sys, atoll.supervisor.lifecycle; print(*sys.modules)"
    modules = set(subprocess.check_output([sys.executable, "-c", loaded], text=True).split())
    assert not modules & {"asyncio", "selectors", "socket", "sqlite3", "subprocess", "threading"}


def test_the_map_is_the_one_made_from_the_docstrings() -> None:
    subprocess.run([sys.executable, ROOT / "scripts/build_map.py", "--check"], check=True)


def test_files_the_documents_name_exist() -> None:
    for document in (DOCUMENT, *(path.read_text() for path in sorted((ROOT / "docs/decisions").glob("*.md")))):
        for name in re.findall(r"`((?:src|tests|benches|scripts|examples|docs)/[\w./-]+)`", document):
            assert (ROOT / name).exists(), name


def test_the_walk_of_one_exec_names_real_functions() -> None:
    for module, function in re.findall(r"`([a-z_/]+\.py)`: `([\w.]+)`", DOCUMENT):
        source = (SOURCE / module).read_text()
        for name in function.split("."):
            assert re.search(rf"(class|def) {name}\b", source), f"{module} has no {name}"


def test_the_shipped_seccomp_filters_are_the_generated_ones() -> None:
    subprocess.run([ROOT / "scripts/build_seccomp.py", "--check"], check=True)
