"""Environment variables, as the kernel takes them."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.protocol.errors import ErrorCode, as_id, error, shown

MAX_ENVIRONMENT = 128 * 1024  # names and values together; what is larger belongs in a file


def check_environment(env: Mapping[str, str | None]) -> None:
    """Raise INVALID_ENVIRONMENT for what no process could be given."""
    if not isinstance(env, Mapping):
        raise _invalid(
            f"{shown(env)} is not an environment", "Give a dictionary of names and values.", value=as_id(env)
        )
    size = 0
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            message = f"{shown(name)} is no name for a variable"
            raise _invalid(message, "Give it a name, without '=' and NUL.", name=as_id(name))
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise _invalid(
                f"{name}={shown(value)} is no value for a variable", "Give text without NUL.", name=as_id(name)
            )
        try:
            size += len(name.encode()) + len((value or "").encode())
        except UnicodeEncodeError as cause:
            message = f"{shown(name)} or its value is not valid text"
            raise _invalid(message, "Use text that can be UTF-8.", name=as_id(name)) from cause
    if size > MAX_ENVIRONMENT:
        remedy = f"Keep it below {MAX_ENVIRONMENT} bytes; large values belong in a file."
        raise _invalid(f"the environment takes {size} bytes", remedy, size=size, limit=MAX_ENVIRONMENT)


def _invalid(message: str, remedy: str, **context: str | int) -> Exception:
    return error(ErrorCode.INVALID_ENVIRONMENT, message, remedy=remedy, **context)
