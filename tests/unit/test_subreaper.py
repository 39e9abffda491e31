from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.agent.sessions.subreaper import CODE, SUBREAPER

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    program = tmp_path / "program"
    program.write_bytes(SUBREAPER)
    program.chmod(0o700)
    return lambda *words: subprocess.run(["ignored", *words], executable=program, env={"A": "b"}, capture_output=True)


@pytest.mark.parametrize(("source", "code"), CODE)
def test_the_code_is_what_it_says(tmp_path: Path, source: str, code: str) -> None:
    subprocess.run(["as", "-o", "made.o"], cwd=tmp_path, input=f"{source}\n".encode(), check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", "made.o", "made"], cwd=tmp_path, check=True)
    assert (tmp_path / "made").read_bytes().hex() == code


def test_the_program_gets_its_arguments_and_variables(run: Run) -> None:
    assert run("/bin/sh", "-c", 'echo "$0 $1 $# $A"', "zero", "one", "two words").stdout == b"zero one 2 b\n"
    assert run("/usr/bin/env").stdout == b"A=b\n"


ORPHAN = """
while parent=$(awk '/^PPid/ { print $2 }' /proc/$$/status); [ "$parent" = "$0" ]; do :; done
echo "$parent"
"""


def test_the_program_is_a_subreaper(run: Run) -> None:
    script = 'echo $$; ( sh -c "$0" "$BASHPID" & ) | cat'  # which reads until the orphan has ended
    shell, parent = run("/bin/bash", "-c", script, ORPHAN).stdout.split()
    assert parent == shell


@pytest.mark.parametrize("words", [(), ("/no/such/program",), ("/etc/passwd",)])
def test_what_cannot_be_started_ends_as_a_shell_would_say(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words).returncode == 127
