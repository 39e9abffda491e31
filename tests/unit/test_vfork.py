"""A child that executes a list of system calls: the code, what the child gets, and how it fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from atoll.agent.commands.process_tree import parse_stat
from atoll.agent.commands.vfork import descriptor_actions, make_vector, vfork_exec

ROUNDS = 20_000


def run(*argv: str, stdin: int | None = None) -> tuple[bytes, int]:
    reader, writer = os.pipe()
    with open(reader, "rb") as output:
        try:
            pid = vfork_exec(argv[0], argv, make_vector(["A=b"]), descriptor_actions(stdin, writer, writer))
        finally:
            os.close(writer)
        said = output.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_it_gets_its_arguments_and_variables_and_three_descriptors() -> None:
    script = 'echo "$# $A"; readlink /proc/$$/fd/0; [ /proc/$$/fd/1 -ef /proc/$$/fd/2 ] && echo same; exit 3'
    said, code = run("/bin/bash", "-c", script, "0", "1")
    assert (said, code) == (b"1 b\n/dev/null\nsame\n", 3)


def test_it_leads_a_session_and_every_signal_is_at_its_default() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        said, _ = run("/bin/cat", "/proc/self/status", "/proc/self/stat")
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR1}, "ours are as they were"
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    *status, stat = said.splitlines()
    masks = [line.split()[1] for line in status if line.startswith((b"SigBlk", b"SigIgn", b"SigCgt"))]
    assert masks == [b"0" * 16] * 3
    assert parse_stat(stat).session == parse_stat(stat).pid


def test_it_may_read_from_a_descriptor_that_is_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with open(tmp_path / "file", "rb") as file:
        assert run("/bin/cat", stdin=file.fileno()) == (b"content", 0)


@pytest.mark.parametrize(
    ("program", "cause"), [("/no/such", FileNotFoundError), ("/etc/passwd", PermissionError), ("/", PermissionError)]
)
def test_what_cannot_be_started_is_an_error_and_leaves_no_child(program: str, cause: type[OSError]) -> None:
    children = Path("/proc/thread-self/children")
    before = children.read_text()
    for _ in range(3):
        with pytest.raises(cause):
            run(program)
    assert children.read_text() == before


def test_a_child_that_is_killed_before_it_runs_is_one_that_was_killed() -> None:
    said, code = run("/bin/sh", "-c", "kill -KILL $$")
    assert (said, code) == (b"", -signal.SIGKILL)


def test_what_is_forgotten_of_earlier_commands_is_given_back() -> None:
    for number in range(ROUNDS):
        descriptor_actions(None, 3 + number % 500, 3 + number // 500)
    assert descriptor_actions.cache_info().currsize <= 256
