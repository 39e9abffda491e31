"""Printable text: whoever chose it, it moves no cursor, changes no colour, and looks like what it is.

Escaped are control characters (C0, DEL, C1), what turns the direction of text, separators of lines and paragraphs, lone
surrogates, spaces that are none, and what is not seen at all. Output of commands and content of files is passed on as
it is, and not by this.
"""

from __future__ import annotations

import re

# Python does not take these for printable, and repr() escapes them: \p{C} and \p{Z}, but for the space. These are
# letters and marks to Unicode, and yet there is nothing to see: fillers, joiners, and selectors of variants.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
)


def is_printable(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _UNSEEN.search(text))


def printable(text: str) -> str:
    """A text in one line: what cannot be shown is written as Python writes it in strings."""
    if is_printable(text):
        return text
    return "".join(letter if is_printable(letter) else _escaped(letter) for letter in text)


def printable_lines(text: str) -> str:
    """The same, with the lines there are."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(document: str) -> str:
    """A document, for a terminal. What JSON lets stand in a string and no terminal should see is written as \\uXXXX."""
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(letter if letter == "\n" or is_printable(letter) else _in_json(letter) for letter in document)


def _in_json(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))


def _escaped(letter: str) -> str:
    shown = repr(letter)[1:-1]
    if shown != letter:
        return shown
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
