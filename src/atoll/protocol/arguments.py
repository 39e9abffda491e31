"""Arguments of users: each checked, or a typed error that names it, its value and what to give.

Numbers are of any type that is one, also NumPy's; a path is text or a path object.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping
from typing import TypeVar

from atoll.protocol.environment import check_environment
from atoll.protocol.errors import AtollError, ErrorCode, error, shown

MAX_NUMBER = 2**63 - 1  # of what travels, and of what files are measured in
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Word = str | os.PathLike[str]
Directory = str | os.PathLike[str]

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


def to_whole(value: object) -> int | None:
    """A whole number of any type that has them; None for all else. True and False are none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def to_number(value: object) -> float | None:
    """A number of any type, but of text; None for all else, and for one that no float can be."""
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):  # also an array of several
        return None


def check_count(value: object, name: str) -> int:
    """A number of bytes."""
    number = to_whole(value)
    if number is None or not 0 <= number <= MAX_NUMBER:
        raise wrong_argument(name, value, "is not a number of bytes", f"Give a whole number from 0 to {MAX_NUMBER}.")
    return number


def check_offset(value: object, name: str = "offset") -> int:
    """A distance in bytes, in either direction."""
    number = to_whole(value)
    if number is None or not -MAX_NUMBER <= number <= MAX_NUMBER:
        remedy = f"Give a whole number of bytes, {MAX_NUMBER} at most."
        raise wrong_argument(name, value, "is no place in a file", remedy)
    return number


def check_number_seen(value: object, name: str = "since") -> int:
    """The number of the last event that somebody has seen; None for none."""
    number = 0 if value is None else to_whole(value)
    if number is None or not 0 <= number <= MAX_NUMBER:
        remedy = "Give the number of the last event you have seen."
        raise wrong_argument(name, value, "is not an event's number", remedy)
    return number


def check_command(command: object, name: str = "command") -> str | list[str]:
    """A line for a shell as it is, or the words of a command without one, among which paths may be."""
    if isinstance(command, str):
        return command
    words = [to_text(word) for word in command] if isinstance(command, list | tuple) else []
    if not words or None in words:
        remedy = "Give a string for the shell, or a list of at least one word."
        raise wrong_argument(name, command, "is not a command", remedy, ErrorCode.INVALID_COMMAND)
    return [word for word in words if word is not None]


def to_text(value: object) -> str | None:
    """Text as it is, a path object as text; None for all else."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return value if isinstance(value, str) else None


def check_directory(value: object, name: str = "cwd") -> str | None:
    """A directory inside to run something in; None for the one that it has anyway."""
    if value is None:
        return None
    path = to_text(value)
    if not path or "\0" in path or not _can_be_sent(path):
        remedy = 'Give its path, such as "/workspace", or None.'
        raise wrong_argument(name, value, "is not the path of a directory", remedy, ErrorCode.INVALID_PATH)
    return path


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
    """The variables of a sandbox or a session, which are also for shells: so their names are such as a shell can have.

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
