"""Exclusion: what of a tree is left out, by rules as in .gitignore.

Rules:
1. The last rule that fits decides; one that begins with `!` has what fits left in.
2. Who walks the tree does not enter a directory that is left out, so nothing in it can be left in again.
3. A rule is for one entry, not for what is below it. A pattern for whole paths, as libraries make them of such rules,
   fits everything below as well, and a later `!logs/` would then bring back what an earlier `*.log` left out.
4. A slash parts names wherever it stands: in brackets, where it could fit nothing anyway, it spoils its rule.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLASSES = {
    b"alnum": b"0-9A-Za-z",
    b"alpha": b"A-Za-z",
    b"blank": b" \\t",
    b"digit": b"0-9",
    b"lower": b"a-z",
    b"punct": b"!-/:-@\\[-`{-~",
    b"space": b" \\t-\\r",
    b"upper": b"A-Z",
    b"xdigit": b"0-9A-Fa-f",
}
_NEVER = rb"(?!)"
_MANY = re.compile(rb"\*\*+")


class Exclusion:
    """Rules of one tree. A path counts from its top."""

    def __init__(self, rules: Iterable[bytes]) -> None:
        found = [rule for line in rules if (rule := _to_rule(line))]
        self._rules: list[tuple[bool, re.Pattern[bytes]]] = []  # the last come first: they decide
        for leaves_out, some in groupby(reversed(found), lambda rule: rule[0]):
            # Rules in a row that say the same are one expression.
            expression = b"|".join(pattern for _, pattern in some)
            self._rules.append((leaves_out, re.compile(expression, re.DOTALL)))

    def leaves_out(self, path: bytes, *, is_directory: bool) -> bool:
        entry = path + b"/" if is_directory else path
        for leaves_out, expression in self._rules:
            if expression.fullmatch(entry):
                return leaves_out
        return False


def _to_rule(line: bytes) -> tuple[bool, bytes] | None:
    """Whether it leaves out, and what fits; None for a line that is no rule."""
    pattern = _without_blanks_at_its_end(line.removesuffix(b"\n").removesuffix(b"\r"))
    leaves_out = not pattern.startswith(b"!")
    pattern = pattern if leaves_out else pattern[1:]
    if not pattern or (leaves_out and pattern.startswith(b"#")):
        return None
    only_directories = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    if not pattern:
        return None
    is_anywhere = b"/" not in pattern
    pattern = pattern.removeprefix(b"/")
    expression = rb"(?:.*/)?" + _name(pattern) if is_anywhere else _path(pattern)
    return leaves_out, b"(?:%b)%b" % (expression, b"/" if only_directories else b"/?")


def _without_blanks_at_its_end(line: bytes) -> bytes:
    """But for one with a backslash before it."""
    stripped = line.rstrip(b" ")
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return line[: len(stripped) + 1] if backslashes % 2 and len(stripped) < len(line) else stripped


def _path(pattern: bytes) -> bytes:
    """Two asterisks in place of a name stand for any number of directories, at the end for all that is inside."""
    *steps, last = pattern.split(b"/")
    ways = [rb"(?:[^/]+/)*" if _MANY.fullmatch(step) else _name(step) + b"/" for step in steps]
    return b"".join(ways) + (b".+" if _MANY.fullmatch(last) else _name(last))


def _name(pattern: bytes) -> bytes:
    """An expression for a name, which is never empty: asterisks, question marks, brackets and backslashes."""
    return rb"(?=[^/])" + _letters(pattern)


def _letters(pattern: bytes) -> bytes:
    found: list[bytes] = []
    position = 0
    while position < len(pattern):
        letter = pattern[position : position + 1]
        position += 1
        if letter == b"*":
            if not found or found[-1] != rb"[^/]*":
                found.append(rb"[^/]*")
        elif letter == b"?":
            found.append(rb"[^/]")
        elif letter == b"[":
            made = _brackets(pattern, position)
            if made is None:
                return _NEVER
            position, expression = made
            found.append(expression)
        elif letter == b"\\":
            if position == len(pattern):
                return _NEVER
            found.append(re.escape(pattern[position : position + 1]))
            position += 1
        else:
            found.append(re.escape(letter))
    return b"".join(found)


def _brackets(pattern: bytes, position: int) -> tuple[int, bytes] | None:
    """The place after them, and a class of letters; None if they are not closed."""
    is_inverse = pattern[position : position + 1] in (b"!", b"^")
    position += is_inverse
    start, members = position, b""
    while True:
        letter = pattern[position : position + 1]
        if not letter:
            return None
        if letter == b"]" and position > start:
            break
        if letter == b"[" and (named := re.compile(rb"\[:(\w*):\]").match(pattern, position)):
            if named[1] not in _CLASSES:
                return None
            members += _CLASSES[named[1]]
            position = named.end()
            continue
        position, first = _member(pattern, position)
        members += re.escape(first)
        if pattern[position : position + 1] == b"-" and pattern[position + 1 : position + 2] not in (b"]", b""):
            position, last = _member(pattern, position + 1)
            members += b"-" + re.escape(last) if first <= last else b""
    if not members:
        return position + 1, rb"[^/]" if is_inverse else _NEVER
    return position + 1, b"(?!/)[%b%b]" % (b"^" if is_inverse else b"", members)


def _member(pattern: bytes, position: int) -> tuple[int, bytes]:
    """The place after a letter, which may have a backslash before it, and the letter."""
    if pattern[position : position + 1] == b"\\" and position + 1 < len(pattern):
        position += 1
    return position + 1, pattern[position : position + 1]
