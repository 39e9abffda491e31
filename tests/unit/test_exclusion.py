"""Rules as in .gitignore, held to what Git itself makes of them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from atoll.archives.exclusion import Exclusion

TREE = (
    "a/",
    "a/b/",
    "a/b/c",
    "a/b/c.log",
    "a/a/",
    "a/a/a",
    "b/",
    "b/c/",
    "b/c/a",
    "logs/",
    "logs/a.log",
    "logs/keep",
    "c",
    "x.log",
    " a",
    "a ",
    "#a",
    "!a",
    "]",
    "-",
    "\\",
    "a*",
    "B",
    ".hidden/",
    ".hidden/a",
    "a\nb",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", root], check=True)
    for name in TREE:
        if name.endswith("/"):
            (root / name).mkdir()
        else:
            (root / name).touch()
    return root


def left_by_git(tree: Path, rules: bytes) -> set[str]:
    (tree / ".git/info/exclude").write_bytes(rules)
    names = [name.rstrip("/") for name in TREE]
    asked = subprocess.run(
        ["git", "-C", tree, "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "-z", "--stdin"],
        input=b"\0".join(map(os.fsencode, names)) + b"\0",
        capture_output=True,
        check=False,
    )
    assert asked.returncode in (0, 1), asked.stderr
    return set(names) - {os.fsdecode(name) for name in asked.stdout.split(b"\0")}


def left_by_us(tree: Path, rules: bytes) -> set[str]:
    exclusion = Exclusion(rules.split(b"\n"))

    def walk(directory: Path) -> Iterator[str]:
        for path in directory.iterdir():
            name = str(path.relative_to(tree))
            if name != ".git" and not exclusion.leaves_out(os.fsencode(name), is_directory=path.is_dir()):
                yield name
                if path.is_dir():
                    yield from walk(path)

    return set(walk(tree))


PIECES = st.sampled_from(
    ["a", "b", "c", "logs", ".log", "*", "**", "?", "/", "/**", "**/", "/**/", "!", "#", " ", "\\", "[ab]", "[!a]",
     "[^a]", "[a-c]", "[", "]", "[]-]", "[[:alpha:]]", "[[:upper:]]", "-", "B", "\\ ", "[\\]]", "[c-a]", ".*", "\t"]
)  # fmt: skip
RULES = st.lists(st.lists(PIECES, min_size=1, max_size=5).map("".join), min_size=1, max_size=4)


@given(rules=RULES)
@example(rules=["*.log", "!logs/"])
@example(rules=["/*", "!/a", "/a/*", "!/a/b"])
@example(rules=["logs/*", "!logs/keep"])
@example(rules=["a/**"])
@example(rules=["**/c"])
@example(rules=["a/**/c"])
@example(rules=["a\\ ", "\\#a", "\\!a"])
@example(rules=["[[:nothing:]]"])
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_left_is_what_git_leaves(tree: Path, rules: list[str]) -> None:
    assume(not any(re.search(r"\[[^\]]*/", rule) for rule in rules))
    lines = "\n".join(rules).encode()
    assert left_by_us(tree, lines) == left_by_git(tree, lines)


def test_a_name_is_bytes() -> None:
    exclusion = Exclusion([b"*.\xff", b"\xe4?"])
    assert exclusion.leaves_out(b"a/b.\xff", is_directory=False)
    assert exclusion.leaves_out(b"\xe4\xf6", is_directory=True)
    assert not exclusion.leaves_out(b"b.\xfe", is_directory=False)
