#!/usr/bin/env python3
"""Makes src/atoll/client_sync from src/atoll/client: the same SDK without `await`.

    .venv/bin/python scripts/build_sync_client.py             write src/atoll/client_sync
    .venv/bin/python scripts/build_sync_client.py --check     exit 1 if what is there is another

Words are replaced, in code and in documentation alike, and the result is formatted by ruff. What cannot be said in
both worlds with the same words is in `waiting.py`, whose blocking twin is written by hand and copied.
"""

import argparse
import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/atoll/client"
TARGET = ROOT / "src/atoll/client_sync"
HEADER = "# Generated from client/{name} by scripts/build_sync_client.py: do not edit, run `make sync`.\n"
PACKAGE = '"""The SDK, blocking: made from `client/`, file for file. Edit there, then `make sync`."""\n'
RUFF = [sys.executable, "-m", "ruff"]

# Copied as they are, under another name.
TWINS = {"blocking_waiting.py": "waiting.py"}
# For event loops, which there are none of on the other side.
ASYNC_ONLY = {"proactor.py"}

WORDS = [
    (r"\n    close = aclose\n", ""),  # the async half has this name as well
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+(?:\[\w+\])?)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\bAsync([A-Z]\w+)\b", r"\1"),
    (r"\b(get|temporary)_async_sandbox\b", r"\1_sandbox"),
    (r"\blist_sandboxes_async\b", "list_sandboxes"),
    (r"\b((?:follow_)?events)_async\b", r"\1"),
    (r"\b((?:list|adopt|remove)_lost_sandbox(?:es)?)_async\b", r"\1"),
    (r"\batoll\.client\b", "atoll.client_sync"),
]
# What must not be left: a word that the list above does not know yet.
LEFT_OVER = re.compile(r"\b(async|await|asyncio|anext|aiter|Awaitable|Coroutine|Async\w+|\w+_async\b|__a\w+__)\b")


def blocking(text: str) -> str:
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    if found := LEFT_OVER.search(text):
        raise SystemExit(f"{found[0]!r} has no blocking counterpart; teach scripts/build_sync_client.py")
    return text


def build(target: Path) -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        name, place = path.relative_to(SOURCE), target / path.relative_to(SOURCE).parent
        place.mkdir(parents=True, exist_ok=True)
        if path.name in TWINS:
            (place / TWINS[path.name]).write_text(HEADER.format(name=name) + path.read_text())
        elif path == SOURCE / "__init__.py":
            (place / path.name).write_text(PACKAGE)
        elif path.name not in {*TWINS.values(), *ASYNC_ONLY}:
            (place / path.name).write_text(HEADER.format(name=name) + blocking(path.read_text()))
    config = ["--quiet", "--config", str(ROOT / "pyproject.toml")]
    imports = ["--config", 'lint.isort.known-first-party=["atoll"]', "--select", "I,F401", "--fix"]
    # F401: a name that only the async half needed, I001: another package name, another order.
    subprocess.run([*RUFF, "check", *config, *imports, str(target)], check=True)
    subprocess.run([*RUFF, "format", *config, str(target)], check=True)


def differences(one: Path, other: Path) -> list[str]:
    names = {str(path.relative_to(directory)) for directory in (one, other) for path in directory.rglob("*.py")}
    _, different, missing = filecmp.cmpfiles(one, other, sorted(names), shallow=False)
    return different + missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        built = Path(directory)
        build(built)
        if not arguments.check:
            shutil.rmtree(TARGET, ignore_errors=True)
            shutil.copytree(built, TARGET)
        elif stale := differences(built, TARGET):
            sys.exit(f"client_sync is stale ({', '.join(stale)}): run `make sync`")


if __name__ == "__main__":
    main()
