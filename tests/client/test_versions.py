"""An SDK that is newer, or older, than its server."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.versions import PROTOCOL_VERSION, SINCE
from tests.client.halves import Half
from tests.client.peers import ContractServer, RawServer, read_request

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
NO_ROUTE = b'{"code": "ROUTE_NOT_FOUND", "message": "there is no \'/v1/sandboxes\'", "remedy": "See /docs."}'


async def test_a_call_that_came_later_than_the_server_is_not_made(
    half: Half, stub: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SINCE, "exec", PROTOCOL_VERSION + 1)
    sandbox = half.get_sandbox("one", url=stub.url)
    for _ in range(2):
        with pytest.raises(AtollError) as caught:
            await half.run(sandbox.exec, ["true"])
        assert caught.value.code is ErrorCode.SERVER_TOO_OLD and caught.value.remedy
        assert caught.value.context["server"] == PROTOCOL_VERSION
    assert not [path for _, path, _ in stub.requests if path.endswith("/call")]
    assert (await half.run(sandbox.exec, "true")).success, "what the server knows needs no question"
    stub.protocol_version += 1
    assert (await half.run(sandbox.exec, ["true"])).success
    asked = len(stub.requests)
    assert (await half.run(sandbox.exec, ["true"])).success
    assert len(stub.requests) == asked + 1, "once it is known to be new enough, nobody asks again"


def server_of(version: int | None, answer: bytes) -> RawServer:
    """One that says `answer` to everything but what it is."""

    def behave(peer: Any) -> None:
        while request := read_request(peer):
            spoken = b"" if version is None else b', "protocol_version": %d' % version
            about = b'{"version": "0", "pid": 1, "started_at": "2026-01-01T00:00:00Z"%b}' % spoken
            is_about = request.startswith(b"GET /v1/server ")
            peer.sendall(JSON % (len(about), about) if is_about else answer)

    return RawServer(behave)


@pytest.mark.parametrize(
    "answer",
    [
        JSON % (14, b'{"items": [1]}'),
        b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%b" % (len(NO_ROUTE), NO_ROUTE),
    ],
    ids=["other fields", "no route"],
)
@pytest.mark.parametrize(
    ("version", "ours", "code"),
    [
        (None, 2, ErrorCode.SERVER_TOO_OLD),
        (2, 3, ErrorCode.SERVER_TOO_OLD),
        (PROTOCOL_VERSION + 1, PROTOCOL_VERSION, ErrorCode.SDK_TOO_OLD),
    ],
)
async def test_an_answer_that_makes_no_sense_is_explained_by_the_versions(
    half: Half, monkeypatch: pytest.MonkeyPatch, answer: bytes, version: int | None, ours: int, code: ErrorCode
) -> None:
    monkeypatch.setattr(half.server, "PROTOCOL_VERSION", ours)
    with server_of(version, answer) as server:
        with pytest.raises(AtollError) as caught:
            await half.list_sandboxes(url=server.url)
        half.server.shared_server.cache_clear()
    assert caught.value.code is code and caught.value.remedy
    assert caught.value.context == {"server": version or 1, "sdk": ours}


async def test_between_equals_it_stays_what_it_is(half: Half) -> None:
    with server_of(PROTOCOL_VERSION, JSON % (14, b'{"items": [1]}')) as server:
        with pytest.raises(AtollError) as caught:
            await half.list_sandboxes(url=server.url)
        half.server.shared_server.cache_clear()
    assert caught.value.code is ErrorCode.INTERNAL_ERROR
