"""Ports of a sandbox that the world reaches: what a client asks of a server, and what it is told."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from atoll.protocol.arguments import MAX_NUMBER, to_text, to_whole, wrong_argument
from atoll.protocol.durations import Moment, parse_duration
from atoll.protocol.errors import AtollError, ErrorCode, as_id, error, shown
from atoll.protocol.plain import Plain
from atoll.protocol.printable import is_printable

FIRST_PORT, LAST_PORT = 1024, 65_535
MAX_PORTS = 32  # of one sandbox: they are in its record, which its disk carries too
MAX_NAME, MAX_TOKEN = 64, 16
_TOKEN = re.compile(rf"[a-z0-9_]{{1,{MAX_TOKEN}}}")


class ExposeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A port to be exposed. What is not given stays as it is, where the port is exposed already."""

    name: str | None = None
    token: str | None = None
    expires: float | str | None = None


class ExposedPort(Plain, frozen=True, kw_only=True):
    """A port that the world reaches under `url`. `expires_at` is None if it is for as long as nobody unexposes it."""

    port: int
    url: str
    exposed_at: Moment
    name: str | None = None
    expires_at: Moment | None = None


class ExposedPorts(msgspec.Struct, frozen=True, kw_only=True):
    ports: Annotated[list[ExposedPort], msgspec.Meta(max_length=MAX_PORTS)]


def parse_exposable(value: object) -> int:
    """A port that can be exposed, which is one that takes no privilege to listen on."""
    port = to_whole(value)
    if port is None or not FIRST_PORT <= port <= LAST_PORT:
        raise error(
            ErrorCode.INVALID_PORT,
            f"{shown(value, 50)} is not a port that can be exposed",
            remedy=f"Give a number from {FIRST_PORT} to {LAST_PORT}, and have the service listen there.",
            port=port if port is not None and abs(port) <= MAX_NUMBER else as_id(value),
        )
    return port


def check_expose(asked: ExposeRequest) -> ExposeRequest:
    """Raise for a name, token or time that cannot be; `expires` is in seconds then."""
    if asked.token is not None and not is_token(asked.token):
        raise error(
            ErrorCode.INVALID_TOKEN,
            "this token cannot be part of a URL",  # and is not shown: it may be right but for one character
            remedy=f"Use 1 to {MAX_TOKEN} lower-case letters, digits and underscores, or none for a random one.",
            option="token",
        )
    if asked.name is not None:
        _check_name(asked.name)
    if asked.expires is None:
        return asked
    seconds = parse_duration(asked.expires, "expires")
    if seconds == 0:
        remedy = 'Give the time from now on, such as 3600 or "1h"; unexpose_port() ends it at once.'
        raise wrong_argument("expires", asked.expires, "is over at once", remedy=remedy)
    return msgspec.structs.replace(asked, expires=seconds)


def is_token(text: object) -> bool:
    return isinstance(text, str) and _TOKEN.fullmatch(text) is not None


def not_exposed(sandbox: str, port: int) -> AtollError:
    return error(
        ErrorCode.PORT_NOT_EXPOSED,
        f"port {port} of sandbox {sandbox!r} is not exposed",
        remedy="get_exposed_ports() lists those that are; expose_port() exposes one.",
        sandbox=sandbox,
        port=port,
    )


def _check_name(name: object) -> None:
    text = to_text(name)
    if not text or len(text) > MAX_NAME or not is_printable(text):
        remedy = f"Give 1 to {MAX_NAME} characters that can be printed, or None for no name."
        raise wrong_argument("name", name, "is not a name for a port", remedy=remedy)
