"""Heads on their way through the proxy of previews: what one reader and another could take differently is refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.preview import heads
from atoll.preview.heads import AmbiguousError, Framing, Header, RequestHead, ResponseHead, Visit
from atoll.preview.messages import End, GoneError, MalformedError, Requests

HOST = (b"Host", b"8080-a-t.localhost")
VISIT = Visit("192.0.2.7", "https")


def request(*headers: Header, method: bytes = b"POST", target: bytes = b"/", version: str = "1.1") -> RequestHead:
    return RequestHead(method, target, version, [HOST, *headers])


def sent(*headers: Header, visit: Visit = VISIT, **given: bytes) -> list[bytes]:
    head = request(*headers, **given)  # type: ignore[arg-type]
    framing = heads.request_framing(head)
    return heads.to_service(head, heads.path_of(head), framing, visit).split(b"\r\n")


@pytest.mark.parametrize(
    "lengths",
    [
        [(b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked")],
        [(b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")],
        [(b"Transfer-Encoding", b"gzip, chunked")],
        [(b"Transfer-Encoding", b"identity")],
        [(b"Content-Length", b"3"), (b"Content-Length", b"4")],
        [(b"Content-Length", b"+3")],
        [(b"Content-Length", b"3, 3")],
        [(b"Content-Length", b"")],
        [(b"Content-Length", b"9" * 19)],
    ],
)
def test_a_length_said_in_two_ways_is_refused(lengths: list[Header]) -> None:
    with pytest.raises(AmbiguousError):
        heads.request_framing(request(*lengths))
    with pytest.raises(AmbiguousError):
        heads.response_framing(ResponseHead(200, b"OK", "1.1", lengths), b"GET")


def test_a_length_is_said_anew_and_once() -> None:
    lines = sent((b"content-LENGTH", b"3 "), (b"Content_Length", b"7"))
    assert [line for line in lines if b"ength" in line] == [b"Content-Length: 3"]
    lines = sent((b"Transfer-Encoding", b"Chunked"))
    assert [line for line in lines if b"ncoding" in line] == [b"Transfer-Encoding: chunked"]


@pytest.mark.parametrize("hosts", [[], [HOST, HOST]])
def test_a_request_has_one_host(hosts: list[Header]) -> None:
    with pytest.raises(AmbiguousError):
        heads.host_of(RequestHead(b"GET", b"/", "1.1", hosts))


@pytest.mark.parametrize("target", [b"a", b"*", b"http://elsewhere/", b"file:///etc", b"//x@y:"[2:]])
def test_a_target_that_is_no_path_here_is_refused(target: bytes) -> None:
    with pytest.raises(AmbiguousError):
        heads.path_of(request(target=target))


def test_a_whole_url_of_this_host_is_its_path() -> None:
    assert heads.path_of(request(target=b"http://8080-A-t.localhost/a?b")) == b"/a?b"
    assert heads.path_of(request(target=b"http://8080-a-t.localhost?b")) == b"/?b"


def test_what_is_between_neighbours_ends_here() -> None:
    lines = sent(
        (b"Connection", b"close, X-Own"), (b"X-Own", b"1"), (b"TE", b"trailers"), (b"Keep-Alive", b"5"), (b"X", b"2")
    )
    assert lines[2] == b"X: 2"
    assert not [line for line in lines if line.split(b":")[0] in (b"Connection", b"X-Own", b"TE", b"Keep-Alive")]


def test_who_is_forwarded_is_not_believed_unless_a_proxy_of_this_machine_says_so() -> None:
    said = [(b"X-Forwarded-For", b"10.0.0.1"), (b"X_Forwarded_Proto", b"http"), (b"X-Forwarded-Proto", b"http")]
    lines = sent(*said)
    assert lines[-5:] == [
        b"X-Forwarded-For: 192.0.2.7",
        b"X-Forwarded-Host: 8080-a-t.localhost",
        b"X-Forwarded-Proto: https",
        b"",
        b"",
    ]
    assert len([line for line in lines if line.lower().startswith(b"x")]) == 3
    near = sent(*said, visit=Visit("127.0.0.1", "https"))
    assert near[-5:-2] == [
        b"X-Forwarded-For: 10.0.0.1, 127.0.0.1",
        b"X-Forwarded-Host: 8080-a-t.localhost",
        b"X-Forwarded-Proto: http",
    ]


@pytest.mark.parametrize("policy", [None, b"unsafe-url", b"origin"])
def test_no_page_tells_its_address_to_others(policy: bytes | None) -> None:
    given = [(b"Referrer-Policy", policy)] if policy else []
    head = heads.to_visitor(ResponseHead(200, b"OK", "1.1", given), Framing.CHUNKED, version="1.1", may_stay=True)
    assert head.lower().count(b"referrer-policy") == 1 and b"Referrer-Policy: no-referrer\r\n" in head


def test_a_service_may_tell_its_own_pages_where_they_come_from() -> None:
    said = [(b"Referrer-Policy", b"same-origin")]
    head = heads.to_visitor(ResponseHead(200, b"OK", "1.1", said), Framing.CHUNKED, version="1.1", may_stay=True)
    assert b"Referrer-Policy: same-origin\r\n" in head


def test_trailers_say_nothing_of_framing_or_of_who_asks() -> None:
    trailers = [(b"X-Sum", b"6"), (b"Content-Length", b"1"), (b"Cookie", b"a"), (b"transfer-encoding", b"x")]
    assert heads.trailer_lines(trailers) == b"0\r\nX-Sum: 6\r\n\r\n"


class Wire:
    """As much of a transport as a side has while it only reads."""

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def events_of(*pieces: bytes) -> list[object]:
    side = Requests()
    side.connection_made(Wire())  # type: ignore[arg-type]
    for piece in pieces:
        side.data_received(piece)
    side.connection_lost(None)
    found: list[object] = []
    try:
        while True:
            found.append(await side.next())
    except (GoneError, MalformedError) as end:
        return [*found, type(end)]


GOOD = (
    b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: 1\r\n\r\n"
    b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n"
)


@given(st.lists(st.integers(0, len(GOOD)), max_size=8))
def test_however_a_request_is_cut_it_is_the_same(cuts: list[int]) -> None:
    marks = sorted({0, len(GOOD), *cuts})
    found = asyncio.run(events_of(*(GOOD[one:other] for one, other in pairwise(marks))))
    bodies = b"".join(event for event in found if isinstance(event, bytes))
    rest = [event for event in found if not isinstance(event, bytes)]
    first = RequestHead(b"POST", b"/a", "1.1", [(b"Host", b"a"), (b"Transfer-Encoding", b"chunked")])
    second = RequestHead(b"GET", b"/b", "1.1", [(b"Host", b"a")])
    assert bodies == b"abc"
    assert rest == [first, End([(b"X", b"1")]), second, End([]), GoneError]


@given(st.binary(max_size=400))
def test_whatever_comes_the_parser_finds_messages_or_none(noise: bytes) -> None:
    asyncio.run(events_of(noise))
    asyncio.run(events_of(b"GET / HTTP/1.1\r\nHost: a\r\n" + noise))


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;" + b"x" * 70_000,
    ],
)
async def test_what_could_smuggle_a_request_is_none(bad: bytes) -> None:
    found = await events_of(bad[:100], bad[100:])
    assert isinstance(found[-1], type) and issubclass(found[-1], MalformedError)
