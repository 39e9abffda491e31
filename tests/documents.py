"""Documents that run: the Python and shell of a Markdown file, executed in order, and compared with what it shows.

    .venv/bin/python -m tests.documents docs/files.md

1. Every block of Python or shell runs, but for one right below a comment `<!-- not run: REASON -->`. JavaScript, which
   would need a page, is parsed.
2. A comment behind `print(...)`, after two spaces, is text that it prints.
3. A block of text below one that runs shows what it prints, in this order; … stands for whatever comes between.
4. Blocks share the directory they run in, and nothing else. Places of Atoll's own are those of the server under test.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(r"^(<!-- not run: \S.* -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^\s*print\(.*\)  # (.+)$", re.MULTILINE)
_ANYTHING = re.compile(r"…|\n")
PLACES = {"/run/atoll/": "ATOLL_RUNTIME_DIR", "/var/lib/atoll/": "ATOLL_STATE_DIR"}


@dataclass
class Block:
    """A block that runs. Each of `shown` is a list of texts that it prints, in this order."""

    language: str
    line: int
    code: str
    shown: list[list[str]] = field(default_factory=list)


def read_blocks(text: str) -> list[Block]:
    """The blocks of a document that run."""
    found: list[Block] = []
    is_run = False  # the block above
    for match in _BLOCK.finditer(text):
        reason, language, code = match.groups()
        if language == "text":
            if is_run:
                found[-1].shown.append([part.strip() for part in _ANYTHING.split(code) if part.strip()])
        elif is_run := reason is None and language in RUN:
            line = text.count("\n", 0, match.start(3))
            found.append(Block(language, line, code, [_PRINTED.findall(code)] if language == "python" else []))
    return found


def run_python(block: Block, name: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        # The line numbers of a traceback are those of the document.
        exec(compile("\n" * block.line + block.code, name, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def run_shell(block: Block, name: str) -> str:
    code = block.code
    for place, variable in PLACES.items():
        code = code.replace(place, f"${variable}/")
    return _run(["bash", "-euo", "pipefail", "-c", code], name)


def parse_javascript(block: Block, name: str) -> str:
    Path("snippet.mjs").write_text(block.code)
    return _run(["node", "--check", "snippet.mjs"], name)


def _run(command: list[str], name: str) -> str:
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{name}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


RUN = {"python": run_python, "sh": run_shell, "js": parse_javascript}


def missing(texts: list[str], printed: str) -> Iterator[str]:
    """What of `texts` was not printed, in its place."""
    place = 0
    for text in texts:
        found = printed.find(text, place)
        if found < 0:
            yield text
        else:
            place = found + len(text)


def run_document(path: Path) -> list[str]:
    """What went otherwise than the document says."""
    problems = []
    for block in read_blocks(path.read_text()):
        printed = RUN[block.language](block, f"{path.name}, the block at line {block.line}")
        problems += [
            f"{path.name}:{block.line}: {text!r} is not in its place in {printed!r}"
            for texts in block.shown
            for text in missing(texts, printed)
        ]
    return problems


if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sys.exit("\n".join(run_document(Path(sys.argv[1]))) or 0)
