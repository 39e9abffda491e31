"""Sandbox ids: what users type, and what becomes a host name, a directory and a cgroup."""

import re
from typing import NewType

from atoll.protocol.errors import ErrorCode, error

SandboxId = NewType("SandboxId", str)

MAX_ID_LENGTH = 63  # one DNS label, so that an id is a host name as it is
_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def parse_sandbox_id(text: str) -> SandboxId:
    """`text` as an id, or an error that says what an id looks like."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise error(
            ErrorCode.INVALID_SANDBOX_ID,
            f"{text!r:.200} is not a sandbox id",
            remedy=f"Use 1 to {MAX_ID_LENGTH} lower-case letters, digits and hyphens, with no hyphen at either end.",
        )
    return SandboxId(text)
