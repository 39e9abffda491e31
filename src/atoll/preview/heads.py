"""Heads of HTTP/1.1 messages on their way through the proxy: what is passed on, what is not, what is added.

Rules:
1. The length of a body is said in one way that everybody reads alike, and said anew by us: a message of which two
   readers could make different things is refused (RFC 9112, 6.3 and 11.2).
2. What is between two neighbours, Connection and what it names, ends here (RFC 9110, 7.6.1).
3. A service sees the name and the scheme that the visitor used, in Host and X-Forwarded-*, whatever the visitor says.
   Only what is on this machine, which is a reverse proxy, is believed.
4. The address of a preview is a secret between whoever has it: no page gives it to another site as its referrer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

Header = tuple[bytes, bytes]
Headers = Sequence[Header]

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate")
) | {b"te", b"transfer-encoding", b"upgrade"}
OURS = frozenset((b"host", b"content-length", b"forwarded", b"x-forwarded-for", b"x-forwarded-host"))
OURS_TOO = frozenset((b"x-forwarded-proto", b"x-forwarded-prefix"))
NOT_IN_TRAILERS = HOP_BY_HOP | OURS | OURS_TOO | {b"trailer", b"authorization", b"cookie", b"set-cookie"}
# Policies that tell other sites nothing; of others we have a better one.
DISCREET = (b"no-referrer", b"same-origin")
POLICY = b"referrer-policy"
LOOPBACK = ("127.0.0.1", "::1")
BODILESS = (204, 304)


class Framing(Enum):
    """How the end of a body is found."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


class RequestHead(NamedTuple):
    method: bytes
    target: bytes
    version: str
    headers: Headers


class ResponseHead(NamedTuple):
    status: int
    reason: bytes
    version: str
    headers: Headers


class Visit(NamedTuple):
    """How a visitor came: from where, and under which scheme; `prefix` is what a path begins with that means us."""

    client: str
    scheme: str
    prefix: bytes = b""


class AmbiguousError(Exception):
    """The message could be read in more than one way."""


def host_of(head: RequestHead) -> bytes:
    hosts = values(head.headers, b"host")
    if len(hosts) != 1:
        raise AmbiguousError(f"it has {len(hosts)} Host headers")
    return hosts[0]


def path_of(head: RequestHead) -> bytes:
    """The target as services get it: a path. A whole URL must be of the host that Host names."""
    target = head.target
    if target.startswith(b"/") or (target == b"*" and head.method == b"OPTIONS"):
        return target
    scheme, found, rest = target.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https", b"ws", b"wss"):
        raise AmbiguousError("its target is no path")
    cut = min((rest.find(mark) for mark in (b"/", b"?") if mark in rest), default=len(rest))
    if rest[:cut].lower() != host_of(head).lower():
        raise AmbiguousError("its target names another host than its Host header")
    return rest[cut:] if rest[cut : cut + 1] == b"/" else b"/" + rest[cut:]


def request_framing(head: RequestHead) -> Framing:
    coded, lengths = values(head.headers, b"transfer-encoding"), values(head.headers, b"content-length")
    if coded:
        if lengths or [one.lower() for one in coded] != [b"chunked"] or head.version != "1.1":
            raise AmbiguousError("the length of its body is said in two ways, or in one that not everybody knows")
        return Framing.CHUNKED
    if not lengths:
        return Framing.NONE
    check_length(lengths)
    return Framing.LENGTH if int(lengths[0]) else Framing.NONE


def response_framing(head: ResponseHead, method: bytes) -> Framing:
    if method == b"HEAD" or head.status < 200 or head.status in BODILESS:
        return Framing.NONE
    coded, lengths = values(head.headers, b"transfer-encoding"), values(head.headers, b"content-length")
    if coded:
        if lengths or [one.lower() for one in coded] != [b"chunked"]:
            raise AmbiguousError("the length of its body is said in two ways, or in one that not everybody knows")
        return Framing.CHUNKED
    if not lengths:
        return Framing.UNTIL_CLOSE
    check_length(lengths)
    return Framing.LENGTH


def check_length(lengths: Sequence[bytes]) -> None:
    if len(lengths) != 1 or not lengths[0].strip(b" \t").isdigit() or len(lengths[0]) > 18:
        raise AmbiguousError("its Content-Length is no number, or more than one")


def is_websocket(head: RequestHead) -> bool:
    upgrades = [value.lower() for value in values(head.headers, b"upgrade")]
    is_asked_for = head.method == b"GET" and head.version == "1.1" and b"upgrade" in named(head.headers)
    return is_asked_for and upgrades == [b"websocket"]


def accepts_websocket(head: ResponseHead) -> bool:
    upgrades = [value.lower() for value in values(head.headers, b"upgrade")]
    return head.status == 101 and upgrades == [b"websocket"] and b"upgrade" in named(head.headers)


def keeps_alive(head: RequestHead | ResponseHead) -> bool:
    words = named(head.headers)
    return b"close" not in words if head.version == "1.1" else b"keep-alive" in words


def to_service(head: RequestHead, path: bytes, framing: Framing, visit: Visit) -> bytes:
    """The request as the service gets it."""
    host = host_of(head)
    lines = [head.method + b" " + path + b" HTTP/1.1", b"Host: " + host]
    lines += _lines(_passed_on(head.headers, OURS | OURS_TOO))
    if framing is Framing.CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    elif lengths := values(head.headers, b"content-length"):
        lines.append(b"Content-Length: " + lengths[0].strip(b" \t"))
    if is_websocket(head):
        lines += [b"Connection: Upgrade", b"Upgrade: websocket"]
    return b"\r\n".join((*lines, *_lines(_forwarded(head, host, visit)), b"", b""))


def to_visitor(head: ResponseHead, framing: Framing, *, version: str, may_stay: bool) -> bytes:
    """The answer as the visitor gets it. `framing` is how it goes out."""
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    policies = [value.strip().lower() for value in values(head.headers, POLICY)]
    headers = _passed_on(head.headers, {b"content-length", POLICY})
    lines += _lines(headers)
    if head.status >= 200:
        lines.append(b"Referrer-Policy: " + (policies[0] if policies and policies[-1] in DISCREET else DISCREET[0]))
        lines += _length_lines(head, framing)
        if not may_stay:
            lines.append(b"Connection: close")
        elif version == "1.0":
            lines.append(b"Connection: keep-alive")
    return b"\r\n".join((*lines, b"", b""))


def switching(head: ResponseHead) -> bytes:
    """The answer by which a WebSocket begins."""
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Connection: Upgrade", b"Upgrade: websocket"]
    return b"\r\n".join((*lines, *_lines(_passed_on(head.headers, {b"content-length"})), b"", b""))


def trailer_lines(trailers: Headers) -> bytes:
    """The end of a chunked body."""
    kept = [(name, value) for name, value in trailers if name.lower() not in NOT_IN_TRAILERS]
    return b"\r\n".join((b"0", *_lines(kept), b"", b""))


def values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def named(headers: Headers) -> set[bytes]:
    """The words of Connection."""
    return {word.strip().lower() for value in values(headers, b"connection") for word in value.split(b",")}


def wants_page(head: RequestHead) -> bool:
    """Whether a person looks: a browser asks for a page in so many words, a program does not."""
    return head.method in (b"GET", b"HEAD") and any(b"text/html" in value for value in values(head.headers, b"accept"))


def _length_lines(head: ResponseHead, framing: Framing) -> list[bytes]:
    if framing is Framing.CHUNKED:
        return [b"Transfer-Encoding: chunked"]
    lengths = values(head.headers, b"content-length")
    if framing is Framing.UNTIL_CLOSE or not lengths or head.status == 204:
        return []
    return [b"Content-Length: " + lengths[0].strip(b" \t")]


def _passed_on(headers: Headers, but: Iterable[bytes]) -> Iterable[Header]:
    """Headers but for those between neighbours and these, by the letter or as a CGI program would read them."""
    dropped = HOP_BY_HOP | named(headers) | set(but)
    return (pair for pair in headers if pair[0].lower().replace(b"_", b"-") not in dropped)


def _forwarded(head: RequestHead, host: bytes, visit: Visit) -> list[Header]:
    is_proxy = visit.client in LOOPBACK
    before = values(head.headers, b"x-forwarded-for") if is_proxy else []
    schemes = values(head.headers, b"x-forwarded-proto") if is_proxy else []
    scheme = schemes[0] if schemes and schemes[0] in (b"http", b"https") else visit.scheme.encode()
    found = [
        (b"X-Forwarded-For", b", ".join((*before, visit.client.encode()))),
        (b"X-Forwarded-Host", host),
        (b"X-Forwarded-Proto", scheme),
    ]
    return [*found, (b"X-Forwarded-Prefix", visit.prefix)] if visit.prefix else found


def _lines(headers: Iterable[Header]) -> list[bytes]:
    return [name + b": " + value for name, value in headers]
