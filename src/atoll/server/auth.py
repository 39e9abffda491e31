"""Authentication: who may come in.

1. Over the Unix socket: whoever may open it, which is root (its directory is private).
2. Over TCP: whoever has an API key, always. A page in somebody's browser has none, but could get at a server on the
   same machine by a name that it makes resolve to it, or by a form: so the Host header must be ours, and a request that
   another site's page makes is refused before anything is looked at.
3. A key may be for some sandboxes, only for reading, or for some time. Which it is goes on with the request, and what
   may be done with it is decided where the route is known (`permissions.py`).
4. A WebSocket is let in by the same rules. A page cannot give it headers, but it can name subprotocols: the key may be
   one, `atoll.key.KEY`, since it must not be in a URL, which logs keep.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atoll.protocol.errors import AtollError, ErrorCode, error
from atoll.protocol.sandboxes import MUST_EXIST
from atoll.server.observer import MAX_PATH, STRANGER, sight_of
from atoll.server.permissions import KEY_SCOPE
from atoll.server.problems import bad_request, problem_response
from atoll.server.routes import health
from atoll.store.keys import ID_LENGTH, PREFIX, KeyInfo, Keys, KeyScope, id_of
from atoll.supervisor.actor import Caller
from atoll.telemetry.log import Seldom
from atoll.telemetry.log_lines import about

ONCE = (b"host", b"authorization", b"origin")
MAX_PORT = 65_535
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
LOCAL = "local"  # who asks, over the Unix socket
OPEN_PATHS = ("/docs", "/openapi.json")
PROBED_PATHS = (health.PATH,)  # by load balancers too, which call a server what they like
KEY_PROTOCOL = "atoll.key."
MUST_EXIST_HEADER = tuple(word.encode() for word in MUST_EXIST)


class Gate:
    """Lets a request pass to `app`, with `caller` in its scope, or answers it."""

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._keys = keys
        self._hosts = {host.lower() for host in hosts}
        self._refused = Seldom(logging.getLogger("atoll.server"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            name, asked = await self._identify(scope)
            has_to_exist = MUST_EXIST_HEADER in scope["headers"] or (asked is not None and asked.reads_only)
            scope["caller"] = Caller(name, has_to_exist, asked.labels if asked else {})
            scope[KEY_SCOPE] = asked
            sight_of(scope).by = name or STRANGER
        except AtollError as problem:
            sight_of(scope).code = problem.code
            told = about(code=problem.code.value)
            self._refused.log(logging.WARNING, "%s was refused: %s", _asker(scope), problem.message, extra=told)
            answer = problem_response(problem)
            answer.headers["connection"] = "close"  # a stranger's is not kept
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send if scope["caller"].name else closing(send))

    async def _identify(self, scope: Scope) -> tuple[str, KeyScope | None]:
        """The name of whoever asks, and the scope of their key; nobody has neither, and may do what needs no key."""
        if is_unix(scope):
            return LOCAL, KeyScope()
        if scope["path"] in PROBED_PATHS:
            return "", None
        check_heads(scope["headers"])
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self._check_host(headers.get(b"host", ""), scope)
        check_origin(headers)
        if scope["path"] in OPEN_PATHS:
            return "", None
        key = _key_of(scope, headers)
        if not key:
            raise error(
                ErrorCode.INVALID_API_KEY,
                "this request has no API key, and this server takes none without",
                remedy="Make one with `atoll key create`, and set ATOLL_API_KEY, or send Authorization: Bearer KEY.",
            )
        found = await self._keys.find(key)
        if found is None:
            raise error(
                ErrorCode.INVALID_API_KEY,
                f"this server does not know the API key of this request{which(key)}",
                remedy="It may have been taken away, or be another server's: compare with `atoll key ls` where the "
                "server runs, and set ATOLL_API_KEY; `atoll key create` makes another.",
            )
        if found.has_expired:
            raise _expired(found)
        self._keys.note_use(found.id)
        return f"key {found.id} ({found.name})", found.scope

    def _check_host(self, host: str, scope: Scope) -> None:
        """The address that the client connected to is fine as well: no name can be made to resolve to another one."""
        if host_name(host) not in self._hosts and host_name(host) != address_of(scope):
            raise error(
                ErrorCode.FORBIDDEN_ORIGIN,
                f"{host!r:.200} is not a name of this server",
                remedy="Use its own address, or start it with --allow-host.",
            )


def _expired(key: KeyInfo) -> AtollError:
    return error(
        ErrorCode.INVALID_API_KEY,
        f"the API key {key.id!r} of this request was good until {key.expires_at:%Y-%m-%d %H:%M:%S %Z}",
        remedy="`atoll key create` makes another, where the server runs.",
    )


def _asker(scope: Scope) -> str:
    client = scope.get("client")
    where = f" from {client[0]}:{client[1]}" if client else ""
    return f"{scope.get('method', 'WebSocket')} {scope['path'][:MAX_PATH]}{where}"


def check_heads(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse headers that are there twice or make no sense: a proxy before us may read them otherwise than we do."""
    given = [(name, value) for name, value in headers if name in ONCE]
    for name in ONCE:
        if sum(name == one for one, _ in given) > 1:
            raise bad_request(f"the header {name.decode()} is there more than once", "Send it once.")
    for name, value in given:
        if name == b"host" and value and not host_name(value.decode("latin-1")):
            remedy = "Send the server's name or address, with a port or without, and nothing else."
            raise bad_request(f"Host: {value.decode('latin-1')!r:.200} is no host", remedy)


def closing(send: Send) -> Send:
    """An answer to somebody whom nobody knows: a stranger's connection is not kept."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_and_close


def _key_of(scope: Scope, headers: dict[bytes, str]) -> str:
    scheme, _, key = headers.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    named = (name for name in scope.get("subprotocols", ()) if name.startswith(KEY_PROTOCOL))
    return next(named, "").removeprefix(KEY_PROTOCOL)


def which(key: str) -> str:
    """By its id, which is no secret; nothing of what is no key of ours."""
    return f": it is {id_of(key)!r:.20}" if key.startswith(PREFIX) and len(key) > len(PREFIX) + ID_LENGTH else ""


def check_origin(headers: dict[bytes, str]) -> None:
    """Browsers say where a request comes from; other programs do not, and may pass."""
    origin = headers.get(b"origin")
    if origin and authority(origin) != headers.get(b"host", "").lower():
        raise error(
            ErrorCode.FORBIDDEN_ORIGIN,
            f"a page of {origin!r:.200} may not use this server",
            remedy="Call it from your own server, not from a browser.",
        )


def authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def host_name(host: str) -> str:
    """Without the port; an IPv6 address without its brackets. Nothing of what is no host and port, and nothing else."""
    match = _HOST.fullmatch(host)
    if not match or int(match["port"] or 0) > MAX_PORT:
        return ""
    return (match["address"] or match["name"]).lower()


def address_of(scope: Scope) -> str | None:
    """The server's own, as this client sees it; always an IP address."""
    server = scope.get("server")
    return server[0] if server else None


def is_unix(scope: Scope) -> bool:
    """Uvicorn gives a Unix socket's path as the server's address, without a port."""
    server = scope.get("server")
    return server is not None and server[1] is None
