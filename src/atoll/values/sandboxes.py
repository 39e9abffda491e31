"""Sandboxes, as the SDK hands them out: what was ignored of the options that one was asked for with."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping

from atoll.protocol.printable import printable

OURS = "atoll."


class OptionsIgnoredWarning(UserWarning):
    """Options that were given for a sandbox which exists and has others: it keeps those.

    `options` says of each by its name what it is and what was asked for.
    """

    def __init__(self, sandbox_id: str, options: Mapping[str, str]) -> None:
        told = "; ".join(f"{printable(name)}: {printable(how)}" for name, how in options.items())
        super().__init__(
            f"sandbox {sandbox_id!r} exists with other options, and keeps them: {told}. "
            "With strict=True this is an error; set_limits() and its like change them."
        )
        self.sandbox_id = sandbox_id
        self.options = dict(options)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.sandbox_id, self.options)


def warn_of_ignored(sandbox_id: str, options: Mapping[str, str]) -> None:
    """At the line of the user's program that used the sandbox."""
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").startswith(OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(OptionsIgnoredWarning(sandbox_id, options), stacklevel=level)
