"""Every verb, on a sandbox that is full of names made to hurt whoever reads them: nothing of them reaches a terminal.

What is raw on purpose, the output of commands and the content of files, is looked at last: it is byte for byte.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.cli.main import _main
from atoll.client_sync.sandbox import Sandbox, get_sandbox
from tests.system.test_cli import Cli, cli, in_terminal, sandbox, server
from tests.unit.test_printable import HOSTILE, forbidden

__all__ = ["cli", "server"]  # fixtures

NAMES = [text for text in HOSTILE.values() if not re.search("[\ud800-\udfff]", text)]
IN_FILES = [text.replace("\0", "").replace("/", "") for text in NAMES]
NOT_UTF8 = b"not utf-8 \x9b31m \xe2\x80"
OURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r(?=\n|\x1b)")  # colours, and a progress bar that goes away


@pytest.fixture
def hostile(cli: Cli) -> Iterator[Sandbox]:
    labels = {f"label-{number}": text for number, text in enumerate(NAMES)}
    made = sandbox(cli, "hostile", labels=labels, env={"VARIABLE": "\x9b31m"})
    made.mkdir("names")
    for text in IN_FILES:
        made.write_file(f"names/{text}", text)
        made.exec(["ln", "-s", text, f"names/link {text}"])
    made.write_file(b"names/" + NOT_UTF8, b"")
    made.mkdir("tree")
    for text in IN_FILES[:3]:
        made.exec(["mkfifo", f"tree/{text}"])
    for text in NAMES:
        made.start_process(["true", text.replace("\0", "")])
    made.start_process(["printf", "raw \\033[31m \\302\\233"], process_id="writer").wait_for_exit(timeout=60)
    yield made


def quiet(output: bytes) -> set[str]:
    text = output.decode(errors="surrogateescape")
    return forbidden(OURS.sub("", text))


def verbs(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    evil = IN_FILES[0]
    yield ("ls",)
    yield ("ls", "--label", f"label-0={NAMES[0]}")
    yield "ls", "--usage", "--limit", "1"
    yield "ls", "--after", NAMES[0]
    yield "ls", "--lost"
    yield "adopt", evil
    yield "adopt", "none", "--as", evil, "--image", evil
    yield "inspect", "hostile"
    yield "events", "hostile"
    yield "ps", "hostile"
    yield "files", "ls", "hostile", "names"
    yield "files", "ls", "-r", "-a", "hostile"
    yield "files", "rm", "hostile", f"nothing {evil}"
    yield "files", "mkdir", "hostile", f"{evil}/no"
    for text in (*IN_FILES, os.fsdecode(NOT_UTF8)):
        yield "files", "stat", "hostile", f"names/{text}"
    yield "files", "cat", "hostile", f"nothing {evil}"
    yield "cp", "hostile:tree", str(tmp_path / "tree")
    yield "cp", f"hostile:names/{evil}", str(tmp_path / f"got {evil}")
    yield "cp", f"hostile:nothing {evil}", str(tmp_path / "x")
    yield "cp", str(tmp_path / f"nothing {evil}"), "hostile:x"
    yield "cp", f"{evil}:x", "y"
    yield "cp", "--max-bytes", evil, "hostile:tree", str(tmp_path / "z")
    yield "start", "hostile", "--name", evil, "--", "true"
    yield "start", "hostile", "--cwd", f"/{evil}", "--", "true", evil
    yield "start", "hostile", "--", f"no-such-program-{evil}", evil
    yield "logs", "hostile", evil
    yield "kill", "hostile", evil
    yield "kill", "hostile", "writer", "-s", evil
    yield "exec", "hostile", "--session", evil, "true"
    yield "exec", "hostile", "--cwd", f"/{evil}", "true"
    yield "exec", "hostile", "--env", evil, "true"
    yield "exec", "hostile", "--timeout", evil, "true"
    yield "exec", "hostile", "--", f"no-such-program-{evil}", evil
    yield "exec", evil, "true"
    yield "run", "--image", evil, "true"
    yield "shell", "hostile", "--attach", evil
    yield "sleep", evil
    yield "wake", evil
    yield "rm", evil
    yield "key", "create", evil
    yield "key", "rm", evil
    yield (evil,)
    yield "ls", f"--{evil}"
    yield "--url", evil


def test_no_verb_shows_anything_hostile(
    cli: Cli,
    hostile: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Within this process: to start a hundred of them would take half a minute."""
    for name, value in cli.environment.items():
        monkeypatch.setenv(name, value)
    shown = b""
    for words in verbs(tmp_path):
        for form in ((), ("--json",)):
            _main([words[0], *form, *words[1:]])
            told = capfdbinary.readouterr()
            assert not quiet(told.out), words
            assert not quiet(told.err), words
            shown += told.out + told.err
    get_sandbox("any").close()
    assert rb"\x1b[31mred" in shown and rb"\u202e" in shown and rb"\x9b" in shown  # it was told, and not left out
    assert rb"\u009b" in shown


IN_TERMINAL = [
    ("ls",),
    ("inspect", "hostile"),
    ("events", "hostile"),
    ("ps", "hostile"),
    ("files", "ls", "-r", "hostile", "names"),
    ("cp", "hostile:tree", "{to}/tree"),
    ("cp", f"hostile:names/{IN_FILES[0]}", "{to}/file"),
    ("files", "cat", "hostile", f"nothing {IN_FILES[0]}"),
    ("ps", "hostile", "--json"),
    ("doctor", "--no-trial", "--state-dir", f"{{to}}/{IN_FILES[0]}"),
    ("doctor", "--no-trial", "--state-dir", f"{{to}}/{IN_FILES[0]}", "--json"),
]


def test_no_verb_shows_anything_hostile_in_a_terminal(cli: Cli, hostile: Sandbox, tmp_path: Path) -> None:
    for words in IN_TERMINAL:
        shown = in_terminal(cli, *(word.replace("{to}", str(tmp_path)) for word in words))
        assert shown and not quiet(shown), words


def test_output_and_content_are_raw(cli: Cli, hostile: Sandbox, tmp_path: Path) -> None:
    raw = "".join(NAMES).encode() + bytes(range(256))
    hostile.write_file("raw", raw)
    assert cli("exec", "hostile", "--", "cat", "raw").stdout == raw
    assert cli("files", "cat", "hostile", "raw").stdout == raw
    assert cli("cp", "hostile:raw", "-").stdout == raw
    assert cli("logs", "hostile", "writer").stdout == b"raw \x1b[31m \xc2\x9b"
    assert cli("logs", "--json", "hostile", "writer").stdout.isascii()
    ran = cli("exec", "--json", "hostile", "--", "printf", "\u009b\u202e")
    assert ran.stdout.isascii() and json.loads(ran.stdout)["stdout"] == "\u009b\u202e"


def test_completion_offers_nothing_hostile(cli: Cli, hostile: Sandbox) -> None:
    asked = {"_ATOLL_COMPLETE": "bash_complete", "COMP_WORDS": "atoll inspect h", "COMP_CWORD": "2"}
    assert cli(env=asked).stdout == b"plain,hostile\n"
