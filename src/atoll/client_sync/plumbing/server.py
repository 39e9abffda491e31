# Generated from client/plumbing/server.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""A server as its clients see it: requests that end in a typed answer or a typed error."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from atoll.client_sync.plumbing.local_server import LocalServer
from atoll.client_sync.plumbing.network import Address, TcpAddress, UnixAddress
from atoll.client_sync.plumbing.transport import CancelScope, Response, Transport
from atoll.protocol.calls import FIRST
from atoll.protocol.errors import AtollError, ErrorBody, ErrorCode, error, from_body, shown
from atoll.protocol.versions import PROTOCOL_VERSION, version_needed

MAX_ERROR = 2**20
MAX_SERVERS = 64  # that are remembered with their connections; one that is forgotten is only connected to anew
NO_CONTENT = 204
UNREACHABLE = (502, 503, 504)  # said by a proxy in front of a server that is not there
DENIED = (401, 403)
ANSWER_GRACE = 30.0  # for an agent to say something, on top of a command's own timeout

T = TypeVar("T")


def find_server(url: str | None = None, api_key: str | None = None) -> Server:
    """The server at `url`, at ATOLL_URL, or on this machine; always the same object, so that connections are shared."""
    if url is not None:
        parse_url(url)
    if api_key is not None:
        check_api_key(api_key, "api_key")
    url = url or os.environ.get("ATOLL_URL") or ""
    api_key = api_key or os.environ.get("ATOLL_API_KEY") or None
    return shared_server(url, api_key, None if url else LocalServer.from_environment())


@lru_cache(maxsize=MAX_SERVERS)
def shared_server(url: str, api_key: str | None, local: LocalServer | None) -> Server:
    return Server(url, api_key, local)


class _Versions(msgspec.Struct):
    """The two versions a server says of itself: its own and that of its protocol."""

    version: str
    protocol_version: int = FIRST


class Server:
    def __init__(self, url: str, api_key: str | None, local: LocalServer | None = None) -> None:
        if api_key is not None:
            check_api_key(api_key)
        self._place = (url, api_key, local)
        self.address, self.prefix = (local.address, "") if local else parse_url(url)
        self.transport = Transport(self.address, api_key=api_key, open_stream=local.open_stream if local else None)
        self.answer_grace = ANSWER_GRACE
        self._known_version = FIRST

    @property
    def place(self) -> str:
        """The place of a server, as a URL."""
        return f"{self.address}{self.prefix}"

    def __reduce__(self) -> tuple[object, ...]:
        """A copy, here or in another process, is the one that is shared there. A pickle has the key in it."""
        return shared_server, self._place

    def ask(
        self,
        method: str,
        path: str,
        answer: type[T],
        body: object = None,
        *,
        headers: str = "",
        scope: CancelScope | None = None,
    ) -> T:
        """The answer to a request, which must be an `answer`."""
        response = self._request(method, path, body, headers, scope)
        body = response.read()
        try:
            return msgspec.json.decode(body, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
            if not _is_json(body):
                raise self._no_atoll(response.status, body) from cause
            nonsense = self._nonsense(f"{method} {path} was answered with {cause}")
            raise self._or_versions_differ(nonsense) from cause

    def tell(self, method: str, path: str, *, headers: str = "") -> None:
        """A request whose answer says nothing."""
        response = self._request(method, path, None, headers)
        if response.status != NO_CONTENT:
            raise self._not_ours(response)
        response.read()

    def stream(self, path: str, accept: str, scope: CancelScope | None = None) -> Response:
        response = self.transport.request("GET", self.prefix + path, accept=accept, scope=scope)
        if not response.is_good(accept):
            raise self.problem(response)
        return response

    def _request(
        self, method: str, path: str, body: object, headers: str, scope: CancelScope | None = None
    ) -> Response:
        content = b"" if body is None else _encode_json(body)
        response = self.transport.request(method, self.prefix + path, body=content, headers=headers, scope=scope)
        if not response.is_good():
            raise self.problem(response)
        return response

    def problem(self, response: Response) -> AtollError:
        """The reason why an answer is not the one that was wanted."""
        if response.is_good():  # but of another type, which only another program gives
            return self._not_ours(response)
        body = response.read(MAX_ERROR)
        try:
            problem = from_body(msgspec.json.decode(body, type=ErrorBody))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            problem = self._foreign_error(response.status, body)
        return self._or_versions_differ(problem) if problem.code is ErrorCode.ROUTE_NOT_FOUND else problem

    def _foreign_error(self, status: int, body: bytes) -> AtollError:
        """For an error that was not worded by us: a proxy's, or another program's."""
        shown = f"{self.address} answered {status}: {body[:200].decode(errors='replace')!r}"
        if status in UNREACHABLE:
            return error(ErrorCode.SERVER_NOT_REACHABLE, shown, remedy="Is the server behind it running?")
        if status in DENIED:
            return error(ErrorCode.INVALID_API_KEY, shown, remedy="Check api_key= or ATOLL_API_KEY.")
        return self._no_atoll(status, body)

    def _not_ours(self, response: Response) -> AtollError:
        """For what is no answer to what was asked. It may have no end, so only its beginning is read."""
        try:
            return self._no_atoll(response.status, response.next_chunk())
        finally:
            response.close()

    def _no_atoll(self, status: int, body: bytes) -> AtollError:
        """Nothing was asked of Atoll, so nothing has happened there."""
        return error(
            ErrorCode.SERVER_NOT_REACHABLE,
            f"what answers at {self.address} is no Atoll server: {status}, {body[:200].decode(errors='replace')!r}",
            remedy="Check url=, --url or ATOLL_URL: host, port, and the path if a proxy has one in front of ours. "
            "`atoll serve` says where it listens.",
            status=status,
        )

    def check_version(self, message: bytes) -> None:
        """Raise if the server is too old for this call. It is asked once, or again while it is."""
        needed = version_needed(message)
        if needed > self._known_version:
            self._known_version = self._version() or PROTOCOL_VERSION
        if needed > self._known_version:
            raise self._too_old(self._known_version)

    def _or_versions_differ(self, problem: AtollError) -> AtollError:
        """For an answer that makes no sense: that server and SDK are of two versions, or else `problem`."""
        theirs = self._version()
        if theirs is None or theirs == PROTOCOL_VERSION:
            return problem
        if theirs < PROTOCOL_VERSION:
            return self._too_old(theirs)
        return error(
            ErrorCode.SDK_TOO_OLD,
            f"the server at {self.address} speaks version {theirs} of the protocol, and this SDK {PROTOCOL_VERSION}: "
            f"{problem.message}",
            remedy="Install the version of atoll that the server has.",
            server=theirs,
            sdk=PROTOCOL_VERSION,
        )

    def _version(self) -> int | None:
        """The version of the protocol which the server speaks; None if it cannot be learned."""
        try:
            response = self.transport.request("GET", f"{self.prefix}/v1/server")
            return msgspec.json.decode(response.read(MAX_ERROR), type=_Versions).protocol_version
        except (AtollError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _too_old(self, theirs: int) -> AtollError:
        return error(
            ErrorCode.SERVER_TOO_OLD,
            f"the server at {self.address} speaks version {theirs} of the protocol, and this SDK {PROTOCOL_VERSION}",
            remedy="Install this version of atoll there too and start the server anew, which its sandboxes outlive; or "
            "use the SDK of its version.",
            server=theirs,
            sdk=PROTOCOL_VERSION,
        )

    def _nonsense(self, what: str) -> AtollError:
        remedy = f"Is there an Atoll server of this version at {self.address}?"
        return error(ErrorCode.INTERNAL_ERROR, what, remedy=remedy)


def check_api_key(key: object, name: str = "ATOLL_API_KEY") -> None:
    """The key itself is not shown: what is wrong with it may be a line end."""
    if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable():
        raise error(
            ErrorCode.INVALID_API_KEY,
            f"{name} is {'empty' if key == '' else 'not printable ASCII text'}, so no server can have given it",
            remedy="Give the key that `atoll key create` printed, as it is.",
            field=name,
        )


def parse_url(url: str) -> tuple[Address, str]:
    """The address `url` points to, and the path before ours, if a proxy has one."""
    try:
        is_plain = isinstance(url, str) and url.isascii() and url.isprintable() and " " not in url
        parts = urlsplit(url if is_plain else "")
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            return UnixAddress(parts.path), ""
        if (
            parts.scheme in ("http", "https")
            and parts.hostname
            and not (parts.query or parts.fragment or parts.username)
        ):
            has_tls = parts.scheme == "https"
            address = TcpAddress(parts.hostname, parts.port or (443 if has_tls else 80), has_tls)
            return address, parts.path.rstrip("/")
    except ValueError:  # a port that is none
        pass
    raise error(
        ErrorCode.INVALID_REQUEST,
        f"{shown(url, 200)} is not the URL of a server",
        remedy="Give http://host:port, https://host or unix:///path/to/server.sock, in url=, --url or ATOLL_URL.",
        field="url",
        value=shown(url, 200),
    )


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _encode_json(body: object) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError) as cause:
        remedy = "Use text, numbers and dictionaries of them."
        raise error(ErrorCode.INVALID_REQUEST, f"this cannot be sent: {cause}", remedy=remedy) from cause
