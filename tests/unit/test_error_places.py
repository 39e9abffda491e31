"""Every place in the source of files, processes and terminals that makes an error, held to what an error has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/atoll"
CLIENT = "files open_files transfers local_files file_content file_watch processes terminals plumbing/feeds".split()
MODULES = [
    *(path for part in ("protocol", "agent", "archives") for path in sorted((SOURCE / part).rglob("*.py"))),
    *(SOURCE / f"client/{name}.py" for name in CLIENT),
]
# What a connection says to whoever breaks its rules, or about the call that it adds to each error by itself.
ABOUT_THE_CALL = {"agent/server.py", "agent/files/worker.py", "agent/files/workers.py"}


def makers() -> Iterator[tuple[str, ast.Call]]:
    """Every place that makes an error, but for the functions that make them for others."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "error":
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", node


def test_every_place_that_makes_an_error_gives_a_remedy_and_names_what_failed() -> None:
    places = dict(makers())
    assert len(places) > 50
    for place, node in places.items():
        given = {keyword.arg for keyword in node.keywords}
        assert "remedy" in given, f"{place}: no remedy"
        is_named = len(given) > 1 or place.partition(":")[0] in ABOUT_THE_CALL
        assert is_named, f"{place}: nothing in the context"
