"""The saved state of a shell, as far as others than shells need it: which variables it exports, and their values.

Shells write it in their own language, as `declare -p` of bash and `export -p` of any sh have it, and whoever has the
shell's directory may have written something else. So this reads, and evaluates nothing:

1. One pass, in time that grows with the length. What is no statement of these ends it, and what was read counts.
2. A value is what the shell itself would make of it: plain, in single or double quotes, in $'...'.
3. Arrays are never exported, nor is what has no value. What the kernel could not take, a NUL, is left out.
"""

from __future__ import annotations

import os
import re

MAX_STATE = 2**20  # bytes that are looked at
MAX_STATEMENTS = 4096
MAX_EXPORTED = 256 * 1024  # bytes as they are quoted: the kernel takes little more for one program
# What a shell sets by itself, of its own directory and depth: of no use to who is started elsewhere, or by nobody.
OF_THE_SHELL = ("PWD", "OLDPWD", "SHLVL", "_")

_PIECE = rb"""[^ \t\n'"\\$]++|'[^']*+'|"(?:[^"\\]++|\\.)*+"|\$'(?:[^'\\]++|\\.)*+'|\\.|\$"""
_PIECES = re.compile(_PIECE, re.S)
_STATEMENT = re.compile(
    rb"(?:(?:(export)|declare|typeset) ((?:-[-\w]++ )*+)([A-Za-z_]\w*+)|([A-Za-z_]\w*+=)|)(=?)((?:%b|[ \t])*+)\n"
    % _PIECE,
    re.S,
)
_PLAINLY_QUOTED = re.compile(rb"""(["'])([^"'\\$`]*+)\1""")
_IN_DOUBLE_QUOTES = re.compile(rb'\\([$`"\\\n])')
_IN_ANSI_QUOTES = re.compile(rb"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.S)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"E": b"\x1b", b"f": b"\f", b"n": b"\n", b"r": b"\r"}
_LETTERS |= {b"t": b"\t", b"v": b"\v"}


def exported(state: bytes) -> dict[str, str]:
    """The variables that a child of the shell would be given."""
    found: dict[str, str] = {}
    place, left, has_begun = 0, MAX_EXPORTED, False
    for _ in range(MAX_STATEMENTS):
        statement = _STATEMENT.match(state, place)
        if statement is None:
            break
        place = statement.end()
        export, flags, name, assigned, has_value, value = statement.groups()
        if name is None:
            if has_begun and not assigned:
                break  # of what follows, functions are no statements of these
            continue
        has_begun = True
        if not (has_value and _is_exported(export, flags)):
            continue
        left -= len(value)
        if left < 0:
            break
        if b"\0" not in (plain := unquoted(value)):
            found[name.decode()] = os.fsdecode(plain)
    return {name: value for name, value in found.items() if name not in OF_THE_SHELL}


def _is_exported(export: bytes | None, flags: bytes) -> bool:
    is_array = b"a" in flags or b"A" in flags
    return not is_array and (export is not None or b"x" in flags)


def unquoted(word: bytes) -> bytes:
    """The text that a shell makes of a word in which nothing is to be expanded."""
    if simple := _PLAINLY_QUOTED.fullmatch(word):
        return simple[2]
    return b"".join(map(_plain, _PIECES.findall(word)))


def _plain(piece: bytes) -> bytes:
    if piece.startswith(b"'"):
        return piece[1:-1]
    if piece.startswith(b'"'):
        return _IN_DOUBLE_QUOTES.sub(lambda found: found[1].strip(b"\n"), piece[1:-1])
    if piece.startswith(b"$'"):
        return _IN_ANSI_QUOTES.sub(lambda found: _character(found[1]), piece[2:-1])
    return piece[1:] if piece.startswith(b"\\") else piece


def _character(escape: bytes) -> bytes:
    if escape.startswith(b"x") and len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    if escape[:1].isdigit() and escape[:1] < b"8":
        return bytes([int(escape, 8) & 0xFF])
    return _LETTERS.get(escape, escape)
