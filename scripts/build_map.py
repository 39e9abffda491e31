#!/usr/bin/env python3
"""Makes docs/map.md: every file of src/atoll with the first sentence of its docstring.

.venv/bin/python scripts/build_map.py             write docs/map.md
.venv/bin/python scripts/build_map.py --check     exit 1 if what is there is another
"""

import argparse
import ast
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/atoll"
MAP = ROOT / "docs/map.md"
HEAD = """\
# The map

Every file of `src/atoll`, with the first sentence of its docstring. Made by `make map`: edit the docstrings. After a
merge nothing here needs to be resolved by hand: take either side, run `make map`.
"""
COLUMN = 26
WIDTH = 120
# What has no docstring to speak for it.
OTHERS = {".bpf": "the system-call filter for this CPU, as scripts/build_seccomp.py compiled it"}
# Generated whole from their neighbour, file by file.
TWINS = {"client_sync"}


def first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    if not docstring:
        raise SystemExit(f"{path.relative_to(ROOT)} has no docstring: say in its first sentence what the file is for")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph)[0].rstrip(".")


def line(name: str, sentence: str) -> str:
    start = f"{name:<{COLUMN - 1}} "
    return textwrap.fill(sentence, WIDTH, initial_indent=start, subsequent_indent=" " * COLUMN, break_on_hyphens=False)


def files(folder: Path) -> list[str]:
    lines = []
    for path in sorted(folder.iterdir()):
        if path.suffix in OTHERS:
            lines.append(line(f"  {path.name}", OTHERS[path.suffix]))
        elif path.suffix == ".py" and path.name != "__init__.py":
            lines.append(line(f"  {path.name}", first_sentence(path)))
    return lines


def folders(folder: Path) -> list[str]:
    """The lines of a package, its own files before the packages in it."""
    name = folder.relative_to(SOURCE).as_posix()
    lines = ["", line(f"{name}/", first_sentence(folder / "__init__.py"))]
    if name not in TWINS:
        lines += files(folder)
        lines += [line for inner in packages(folder) for line in folders(inner)]
    return lines


def packages(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/__init__.py"))


def drawn() -> str:
    lines = [line for folder in packages(SOURCE) for line in folders(folder)]
    return "\n".join([HEAD, "```", *lines[1:], "```", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    if not arguments.check:
        MAP.write_text(drawn())
    elif not MAP.exists() or MAP.read_text() != drawn():
        sys.exit("docs/map.md is stale: run `make map`")


if __name__ == "__main__":
    main()
