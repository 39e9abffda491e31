from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.agent.sessions.subreaper import to_elf
from atoll.cpu.facts import Cpu
from atoll.cpu.own import CPUS, OWN

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(params=list(CPUS))
def cpu(request: pytest.FixtureRequest) -> Cpu:
    return CPUS[request.param]


@pytest.fixture
def run(tmp_path: Path, cpu: Cpu) -> Run:
    """The program of each CPU; of another one under emulation. What it becomes is this machine's in any case."""
    program = tmp_path / "program"
    program.write_bytes(to_elf(cpu))
    program.chmod(0o700)
    start = [program] if cpu is OWN else [f"qemu-{cpu.name}", "-strace", program]
    return lambda *words: subprocess.run([*start, *words], env={"A": "b", "PATH": "/usr/bin"}, capture_output=True)


def test_the_program_gets_its_arguments_and_variables(run: Run) -> None:
    assert run("/bin/sh", "-c", 'echo "$0 $1 $# $A"', "zero", "one", "two words").stdout == b"zero one 2 b\n"
    assert set(run("/usr/bin/env").stdout.split()) == {b"A=b", b"PATH=/usr/bin"}


ORPHAN = """
while parent=$(awk '/^PPid/ { print $2 }' /proc/$$/status); [ "$parent" = "$0" ]; do :; done
echo "$parent"
"""


def test_the_program_is_a_subreaper(cpu: Cpu, run: Run) -> None:
    if cpu is not OWN:
        assert b" prctl(36,1," in run("/bin/true").stderr  # which emulators refuse to do
        return
    script = 'echo $$; ( sh -c "$0" "$BASHPID" & ) | cat'  # which reads until the orphan has ended
    shell, parent = run("/bin/bash", "-c", script, ORPHAN).stdout.split()
    assert parent == shell


@pytest.mark.parametrize("words", [(), ("/no/such/program",), ("/etc/passwd",)])
def test_what_cannot_be_started_ends_as_a_shell_would_say(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words).returncode == 127
