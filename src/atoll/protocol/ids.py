"""Ids that users choose: of sandboxes, which become host names and directories, and of sessions."""

import re
from typing import Annotated, NewType

import msgspec

from atoll.protocol.errors import ErrorCode, as_id, error, shown

SandboxId = NewType("SandboxId", str)
SessionId = NewType("SessionId", str)
# Of a session, process or terminal, as an agent says it: safe to print, and to paste into a shell. For Python alone,
# $ is also before a last newline.
SaidId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$(?!\n)")]

MAX_ID_LENGTH = 63  # one DNS label, so that an id is a host name as it is
_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def parse_sandbox_id(text: str) -> SandboxId:
    """`text` as an id, or an error that says what an id looks like."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise error(
            ErrorCode.INVALID_SANDBOX_ID,
            f"{shown(text, 200)} is not a sandbox id",
            remedy=f"Use 1 to {MAX_ID_LENGTH} lower-case letters, digits and hyphens, with no hyphen at either end.",
            sandbox_id=as_id(text),
        )
    return SandboxId(text)


def parse_session_id(text: str) -> SessionId:
    """`text` as an id, or an error that says what an id looks like."""
    if not isinstance(text, str) or not _SESSION_ID.fullmatch(text):
        raise error(
            ErrorCode.INVALID_SESSION_ID,
            f"{shown(text, 200)} is not a session id",
            remedy=f"Use 1 to {MAX_ID_LENGTH} letters, digits, dots, underscores and hyphens, a letter or digit first.",
            session_id=as_id(text),
        )
    return SessionId(text)
