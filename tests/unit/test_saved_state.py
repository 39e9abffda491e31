"""What is read of the state that shells save, held against the shells themselves; and bytes that no shell wrote."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.agent.sessions.saved_state import MAX_STATE, OF_THE_SHELL, exported, unquoted
from atoll.agent.sessions.shell_script import quote

DUMPS = {
    "bash": (["bash"], "declare -p; umask -p; declare -f"),
    "bash after exit": (["bash"], "printf 'cd -- %q\\n' \"$PWD\"; export -p"),
    "bash as sh": (["bash", "--posix"], "set; export -p; readonly -p"),
    "dash": (["dash"], "set; export -p; readonly -p; set +o; umask"),
    "busybox": (["busybox", "sh"], "set; export -p; readonly -p; set +o; umask"),
}
TEXTS = st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"")) | st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40
).map(str.encode)


@pytest.mark.parametrize("shell", DUMPS)
@given(values=st.lists(TEXTS, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_what_is_read_is_what_a_child_of_the_shell_is_given(shell: str, values: list[bytes]) -> None:
    argv, dump = DUMPS[shell]
    given_values = {f"V{number}": os.fsdecode(value) for number, value in enumerate(values)}
    script = f"f() {{ export F='no'; }}; unset OLDPWD; L={quote(values[0].decode('ascii', 'ignore'))}; {dump}"
    env = {"PATH": os.environ["PATH"], **given_values}
    state = subprocess.run([*argv, "-c", script], env=env, capture_output=True, check=True).stdout
    assert exported(state) == env


def test_what_is_not_exported_or_is_an_array_or_has_no_value_is_left_out() -> None:
    script = "A=1; export B=2; declare -ax C=(1 2); declare -Ax D=([x]=y); export E; declare -ix N=5; declare -rx R=6"
    script += "; declare -p"
    state = subprocess.run(["bash", "-c", script], env={"PATH": "/bin"}, capture_output=True, check=True).stdout
    assert exported(state) == {"PATH": "/bin", "B": "2", "N": "5", "R": "6"}


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        (rb"'a b'\''c'", b"a b'c"),
        (rb'"a\$b\`c\"d\\e\x"', rb'a$b`c"d\e\x'),
        (rb"$'a\tb\001\x41\'\\'", b"a\tb\x01A'\\"),
        (rb"a\ b", b"a b"),
        (b'"a\nb"', b"a\nb"),
    ],
)
def test_each_way_of_quoting(word: bytes, plain: bytes) -> None:
    assert unquoted(word) == plain


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(state: bytes) -> None:
    for found in (exported(state), exported(b"declare -x A=" + state), exported(b'export A="' + state)):
        assert all("\0" not in value for value in found.values())


@pytest.mark.parametrize(
    "state",
    [
        b"declare -x A='",
        b'declare -x A="' + b"\\" * 5,
        b"declare -x A=$'\\000'\n",
        b"declare -x A='a\0b'\n",
        b"declare -x 1=2\ndeclare -x A-B=3\n",
        b"declare -x A=1",
    ],
)
def test_what_is_no_whole_statement_counts_for_nothing(state: bytes) -> None:
    assert exported(state) == {}


@pytest.mark.parametrize("unit", [b"'", b'"', b"\\", b"$'", b"a'b\"", b"declare -x A=1\n", b"a=1\n", b"(' ", b"\n"])
def test_the_time_grows_with_the_length_and_no_faster(unit: bytes) -> None:
    def cpu(size: int) -> float:
        state = b"declare -x A=1\n" + unit * (size // len(unit))
        began = time.process_time()
        exported(state)
        return time.process_time() - began

    cpu(1000)
    assert cpu(MAX_STATE // 4) < 40 * max(cpu(MAX_STATE // 40), 0.002)


def test_what_is_the_shells_own_is_left_out() -> None:
    state = b"".join(b'declare -x %b="x"\n' % name.encode() for name in OF_THE_SHELL)
    assert exported(state) == {}
