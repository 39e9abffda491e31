"""What others chose is shown so that it can do nothing to whoever looks: in errors, in text, in JSON."""

from __future__ import annotations

import json
import traceback
import unicodedata
from collections.abc import Iterator
from itertools import product

import pytest

from atoll.cli import problems
from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.printable import is_printable, printable, printable_json, printable_lines

HOSTILE = {
    "a colour": "\x1b[31mred",
    "the title of a window": "\x1b]0;pwned\x07",
    "C0": "".join(map(chr, range(32))),
    "DEL": "a\x7fb",
    "C1": "".join(map(chr, range(0x80, 0xA0))),
    "CSI in one": "\x9b31m",
    "a turned direction": "evil\u202egnp.exe",
    "isolates": "\u2066a\u2067b\u2068c\u2069",
    "marks of direction": "\u200ea\u200fb\u061c",
    "separators": "a\u2028b\u2029c\x85d",
    "no width": "pass\u200bwd\u200c\u200d\u2060\ufeff",
    "fillers": "\u3164\u115f\u1160\uffa0\u2800\u034f",
    "selectors": "a\ufe00\U000e0100",
    "tags": "a\U000e0041\U000e0042",
    "a soft hyphen": "pass\u00adwd",
    "a space that is none": "a\u00a0b\u3000c",
    "lone surrogates": "\udc9b\ud800",
    "private": "\ue000\U0010ffff",
}
FINE = ["", "plain", "two words", "grün", "日本語", "עברית", "हिन्दी", "🦀", "❤\ufe0f", "e\u0301", "quo'te\"\\"]


def forbidden(text: str) -> set[str]:
    """By Unicode's own categories, and not by the code that is tested."""
    return {
        letter
        for letter in text
        if letter != "\n"
        and (
            unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or letter in "\u3164\u115f\u2800"
        )
    }


def test_what_is_hostile_is_escaped() -> None:
    for text in HOSTILE.values():
        assert not is_printable(text)
        shown = printable(text)
        assert is_printable(shown) and not forbidden(shown) and "\n" not in shown
        assert len(shown) > len(text)
        assert not forbidden(printable_lines(f"{text}\n{text}"))
        shown.encode()


def test_what_people_write_stays_as_it_is() -> None:
    for text in FINE:
        assert is_printable(text)
        assert printable(text) == printable_lines(text) == text
        assert printable_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)


def test_a_document_means_the_same_and_has_nothing_hostile_in_it() -> None:
    for text in HOSTILE.values():
        document = json.dumps({text: [text, 1]}, ensure_ascii=False, indent=2)
        shown = printable_json(document)
        assert json.loads(shown) == {text: [text, 1]}
        assert not forbidden(shown)


def classes() -> Iterator[type[AtollError]]:
    todo = [AtollError]
    while todo:
        found = todo.pop()
        todo += found.__subclasses__()
        yield found


def test_no_error_shows_anything_hostile() -> None:
    assert len(list(classes())) > 20
    for kind, text in product(classes(), HOSTILE.values()):
        check_error(kind, text)


def check_error(kind: type[AtollError], text: str) -> None:
    made = kind(f"{text} failed", context={"path": text, "command": text}, remedy=f"Use {text}.\nOr not.")
    shown = [str(made), repr(made), *traceback.format_exception(made)]
    assert not set().union(*map(forbidden, shown))
    assert str(made).count("\n") == 2 + 2 * text.count("\n")  # a message may end with the lines of a log
    assert made.message == f"{text} failed" and made.context["path"] == text  # programs get it as it is


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_the_command_line_tells_no_error_with_anything_hostile(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    for code, text in product(ErrorCode, HOSTILE.values()):
        problems.tell(error(code, text, remedy=f"{text}\nOr not.", path=text), as_json=as_json)
        told = capsys.readouterr().err
        assert not forbidden(told), text
        if as_json:
            assert json.loads(told)["message"] == text.encode("utf-8", "backslashreplace").decode()
