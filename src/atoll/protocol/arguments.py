"""Arguments of users: each checked, or a typed error that names it, its value and what to give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AtollError, ErrorCode, error, shown

MAX_NUMBER = 2**63 - 1  # of what travels, and of what files are measured in
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

T = TypeVar("T")
Value = TypeVar("Value", str, str | None)


def wrong_argument(
    name: str, value: object, what: str, remedy: str, code: ErrorCode = ErrorCode.INVALID_REQUEST
) -> AtollError:
    return error(code, f"{name}={shown(value)} {what}", remedy=remedy, field=name, value=shown(value, 200))


def check_flag(value: object, name: str) -> bool:
    """Nothing but True and False: "no" and "false" would be true."""
    if not isinstance(value, bool):
        raise wrong_argument(name, value, "is neither True nor False", "Give True or False.")
    return value


def check_count(value: object, name: str) -> int:
    """A number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise wrong_argument(name, value, "is not a number of bytes", f"Give a whole number from 0 to {MAX_NUMBER}.")
    return value


def check_offset(value: object, name: str = "offset") -> int:
    """How far to go, in bytes, in either direction."""
    if isinstance(value, bool) or not isinstance(value, int) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        remedy = f"Give a whole number of bytes, {MAX_NUMBER} at most."
        raise wrong_argument(name, value, "is no place in a file", remedy)
    return value


def check_directory(value: object, name: str = "cwd") -> str | None:
    """A directory inside to run something in; None for the one that it has anyway."""
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value or not _can_be_sent(value):
        remedy = 'Give its path as text, such as "/workspace", or None.'
        raise wrong_argument(name, value, "is not the path of a directory", remedy, ErrorCode.INVALID_PATH)
    return value


def check_callback(value: T, name: str) -> T:
    if value is not None and not callable(value):
        raise wrong_argument(name, value, "cannot be called", "Give a function, or None.")
    return value


def check_variables(env: Mapping[str, Value] | None) -> dict[str, Value]:
    """An environment, or none."""
    given: Mapping[str, Value] = {} if env is None else env
    check_environment(given)
    return dict(given)


def check_lasting_variables(env: Mapping[str, Value] | None) -> dict[str, Value]:
    """Those of a sandbox or a session, which are also for shells: their names are such that a shell can have them.

    A single command without a shell may have what the kernel takes. Whatever it is called, one can be taken away.
    """
    variables = check_variables(env)
    for name, value in variables.items():
        if value is not None and not _SHELL_NAME.fullmatch(name):
            raise error(
                ErrorCode.INVALID_ENVIRONMENT,
                f"a shell can have no variable {shown(name)}, and this one would be for every shell",
                remedy="Use letters, digits and underscores, no digit first; or give it to a command that is a list of "
                "words, with env=.",
                name=name[:200],
            )
    return variables


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
