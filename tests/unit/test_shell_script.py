"""What the shells are told, as text and by the shells themselves."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.agent.sessions.shell_script import BASH, SH, Change, Dialect, followed_by, is_variable_name, quote

SHELLS = (["bash"], ["dash"], ["busybox", "sh"])
GIVES_WAY = Change("it's new", gives_way=True, former="o'ld \n")
MAX_LINE = 1000  # bash reads so much at once; what is longer would be cut off


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@given(text=st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])))
@settings(max_examples=30, deadline=None)
def test_a_quoted_text_is_one_word_of_any_shell(shell: list[str], text: str) -> None:
    script = f"printf %s {quote(text)}".encode()
    assert subprocess.run([*shell, "-c", script], capture_output=True, check=True).stdout == text.encode()


@pytest.mark.parametrize(
    ("name", "is_one"), [("a", True), ("_A9", True), ("9a", False), ("a-b", False), ("a\n", False)]
)
def test_which_names_a_shell_can_have(name: str, is_one: bool) -> None:
    assert is_variable_name(name) is is_one


@pytest.mark.parametrize("dialect", [BASH, SH])
def test_no_place_is_left_open_and_no_line_is_too_long(dialect: Dialect) -> None:
    for text in dialect.scripts().values():
        assert not re.search("@[A-Z]", text)
    for line in (
        dialect.source_after(10**9, 10**9),
        dialect.source_command("c" + "9" * 20),
        dialect.source_dropped(10**9, 10**9),
    ):
        assert len(line) < MAX_LINE and "\n" not in line


@pytest.mark.parametrize(("shell", "dialect"), [(["bash"], BASH), (["dash"], SH), (["busybox", "sh"], SH)])
def test_every_script_is_well_formed(shell: list[str], dialect: Dialect) -> None:
    scripts = [
        *dialect.scripts().values(),
        dialect.before({"L": Change("1"), "M": GIVES_WAY}, {"A": "b", "C": None}, "/tmp", "u1"),
    ]
    scripts += [dialect.undo({"A": "b"}, "/tmp"), dialect.command("x", 1, True), dialect.command("x", 1, False)]
    for script in scripts:
        subprocess.run([*shell, "-n", "-c", script], check=True)


@pytest.mark.parametrize(("shell", "dialect"), [(["bash"], BASH), (["dash"], SH), (["busybox", "sh"], SH)])
@pytest.mark.parametrize(
    ("has", "former", "then"),
    [
        ("o'ld", "o'ld", "new"),
        ("own", "o'ld", "own"),
        (None, "o'ld", None),
        (None, None, "new"),
        ("", None, ""),
        ("", "", "new"),
    ],
)
def test_a_change_that_gives_way_is_for_who_has_what_was_before(
    shell: list[str], dialect: Dialect, has: str | None, former: str | None, then: str | None
) -> None:
    change = Change("new", gives_way=True, former=former)
    assert change.is_for(has) is (then == "new")
    script = f'f() {{ {dialect.before({"V": change}, {}, None, "u")} }}; set -u; f; printf %s "${{V-unset}}"'
    env = {"PATH": "/usr/bin:/bin"} | ({} if has is None else {"V": has})
    shown = subprocess.run([*shell, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    assert shown == ("unset" if then is None else then)


def test_two_changes_are_one_for_who_has_what_was_before_the_first() -> None:
    first = {"A": Change("1", gives_way=True, former="0"), "B": Change("1"), "C": Change("1")}
    then = {
        "A": Change("2", gives_way=True, former="1"),
        "B": Change("2", gives_way=True, former="1"),
        "D": Change("2"),
    }
    assert followed_by(first, then) == {
        "A": Change("2", gives_way=True, former="0"),
        "B": Change("2"),
        "C": Change("1"),
        "D": Change("2"),
    }
