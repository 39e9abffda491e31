"""ARCHITECTURE.md and docs/map.md against the tree: every file is on the map, and imports go where the rules allow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from atoll import _PLACES
from atoll.cli.main import VERBS

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


def test_the_lifecycle_neither_waits_nor_acts_nor_looks_at_a_clock() -> None:
    tree = ast.parse((SOURCE / "supervisor/lifecycle.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"__future__", "enum", "msgspec", "msgspec.structs", "atoll.supervisor.plans"}
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))
    loaded = "import sys, atoll.supervisor.lifecycle; print(*sys.modules)"
    modules = set(subprocess.check_output([sys.executable, "-c", loaded], text=True).split())
    assert not modules & {"asyncio", "selectors", "socket", "sqlite3", "subprocess", "threading"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    if part != "atoll":
        assert imported_parts(path) <= rules()[part] | {part}


# What a client of a server elsewhere may be without: modules of Linux, and of what servers need besides.
ELSEWHERE_MISSING = {
    *("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"),
    *("starlette", "uvicorn", "uvloop", "websockets"),
}


@cache
def imported_at_once(path: Path) -> set[str]:
    """The modules that importing a file imports; not those of its functions, or for type checkers."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return found


def file_of(module: str) -> Path | None:
    place = SOURCE.parent / module.replace(".", "/")
    return next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.exists()), None)


def chains_from(module: str) -> dict[str, list[str]]:
    """Every module that importing `module` loads, by ours, and through which of them."""
    chains = {module: [module]}
    waiting = [module]
    while waiting:
        importer = waiting.pop()
        parents = {".".join(importer.split(".")[:count]) for count in range(1, importer.count(".") + 1)}
        file = file_of(importer) if importer.startswith("atoll") else None
        for name in sorted((imported_at_once(file) if file else set()) | parents):
            if name not in chains:
                chains[name] = [*chains[importer], name]
                waiting.append(name)
    return chains


def protocol_modules() -> list[str]:
    return [f"atoll.protocol.{path.stem}" for path in modules() if part_of(path) == "protocol" and path.stem[0] != "_"]


CLIENT_MODULES = {
    "atoll",
    "atoll.cli.main",
    *_PLACES,
    *protocol_modules(),
    *(f"atoll.cli.verbs.{verb}" for verb in VERBS),
}


@pytest.mark.parametrize("module", sorted(CLIENT_MODULES))
def test_importing_what_clients_use_needs_no_linux_and_no_server(module: str) -> None:
    """All that `import atoll` leads to, and every verb: what it does itself may need more, and says so then."""
    wrong = [chain for name, chain in chains_from(module).items() if name.split(".")[0] in ELSEWHERE_MISSING]
    assert not wrong, "\n".join(" imports ".join(chain) for chain in wrong)


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_importing_what_clients_use_needs_no_name_that_only_linux_has(system: str, tmp_path: Path) -> None:
    """Names within modules that are everywhere, as `select.epoll`, which no look at imported modules finds."""
    script = tmp_path / "import_all.py"
    script.write_text("".join(f"import {module}\n" for module in sorted(CLIENT_MODULES)))
    subprocess.run([sys.executable, ROOT / "tests/elsewhere.py", system, script], check=True)


@pytest.mark.parametrize("path", sorted((SOURCE / "protocol").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_each_part_of_the_protocol_can_be_the_first_to_be_imported(path: Path) -> None:
    subprocess.run([sys.executable, "-c", f"import atoll.protocol.{path.stem}"], check=True)


def test_the_map_is_the_one_made_from_the_docstrings() -> None:
    subprocess.run([sys.executable, ROOT / "scripts/build_map.py", "--check"], check=True)


def test_the_plumbing_of_the_sdk_knows_no_noun() -> None:
    for path in (SOURCE / "client/plumbing").glob("*.py"):
        ours = {name for name in imported_at_once(path) if name.startswith("atoll.client")}
        assert all(name.startswith("atoll.client.plumbing") for name in ours), path


def test_one_place_chooses_the_engine() -> None:
    others = (path for path in modules() if part_of(path) != "engine/native")
    native = {path for path in others if "engine/native" in imported_parts(path)}
    assert native == {SOURCE / "engine/choose.py"}


SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+(OR\s+\w+\s+)?INTO|REPLACE\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|PRAGMA|"
    r"(CREATE|ALTER|DROP)\s+(TABLE|INDEX|VIEW)|BEGIN\s+IMMEDIATE)\b",
    re.DOTALL | re.IGNORECASE,
)


def found_of_databases(source: str) -> list[str]:
    """The statements of SQL, and the imports of what knows it, in a module."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.search(node.value):
            found.append(node.value)
    known = re.compile(r"sqlite3|atoll\.store\.sqlite\b")
    return [one for one in found if known.match(one) or SQL.search(one)]


def is_in_the_database(path: Path) -> bool:
    return path.is_relative_to(SOURCE / "store/sqlite") or path == SOURCE / "store/choose.py"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_sql_is_outside_the_store_and_one_place_chooses_the_database(path: Path) -> None:
    assert is_in_the_database(path) or found_of_databases(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import sqlite3",
        "from sqlite3 import connect",
        "from atoll.store.sqlite.database import Database",
        "from atoll.store import sqlite",
        "def f(d): d.execute('PRAGMA query_only=1')",
        "QUERY = '''\n  SELECT id\n  FROM sandboxes'''",
        "QUERY = 'INSERT OR IGNORE INTO sandboxes VALUES (?)'",
        "def f(d, name): d.execute(f'delete from sandboxes where id = {name}')",
    ],
)
def test_sql_is_found_wherever_it_is(source: str) -> None:
    assert found_of_databases(source)


# A docstring that begins so is read twice: it says something before it says of what.
NO_NOUNS = {"What", "Who", "Whoever", "Whose", "Which", "That", "Those", "It", "One", "Nobody", "Somebody", "Anybody"}


def docstrings(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [found for node in nodes if isinstance(node, kinds) and (found := ast.get_docstring(node))]


def test_docstrings_name_their_noun_first() -> None:
    wrong = [f"{path}: {found}" for path in modules() for found in docstrings(path) if found.split()[0] in NO_NOUNS]
    assert not wrong, "\n".join(wrong)


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
