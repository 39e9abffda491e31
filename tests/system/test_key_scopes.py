"""Keys with a scope, against every route there is: what is not theirs they neither see nor touch."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from atoll.protocol.commands import Exec
from atoll.protocol.files import ReadFile
from atoll.protocol.frames import FRAMES, FrameDecoder, FrameKind, encode_frame
from atoll.protocol.messages import encode_message
from atoll.server.api_route import ApiRoute, Reach
from atoll.server.routes import ROUTES, terminals
from atoll.store.choose import open_store
from atoll.store.keys import Keys, KeyScope
from tests.system.serving import HANG_SECONDS, Answer, RunningServer

MINE, THEIRS = "mine-1", "theirs"
ALL_ROUTES = [*ROUTES, terminals.VIEW]
WITH_SANDBOX = [route for route in ALL_ROUTES if "{id}" in route.path]
NOT_ALLOWED = (403, "KEY_NOT_ALLOWED")


async def key_with(server: RunningServer, expires_at: datetime | None = None, **scope: Any) -> str:
    with closing(open_store(server.state)) as store:
        return (await Keys(store.keys).create("scoped", KeyScope(**scope), expires_at=expires_at))[1]


async def ask(server: RunningServer, key: str, method: str, path: str, body: object = None) -> Answer:
    return await server.ask(method, path, body, tcp=True, headers={"Authorization": f"Bearer {key}"})


def told(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["code"] if answer.body else ""


def path_of(route: ApiRoute, sandbox: str) -> str:
    return re.sub(r"\{[a-z_]+\}", "x", route.path.replace("{id}", sandbox))


@pytest.fixture
async def both(server: RunningServer) -> AsyncIterator[RunningServer]:
    """A server with a sandbox that the key is for, and one that it is not for."""
    for name, team in ((MINE, "red"), (THEIRS, "blue")):
        assert (await server.ask("PUT", f"/v1/sandboxes/{name}", {"labels": {"team": team}})).status == 201
    await server.ask("PUT", f"/v1/sandboxes/{THEIRS}/files/content?path=secret", b"secret")
    yield server


async def events_of(server: RunningServer, sandbox: str) -> list[str]:
    found = (await server.ask("GET", f"/v1/sandboxes/{sandbox}/events")).json()["events"]
    return [event["what"] for event in found]


# Every route.


@pytest.mark.parametrize("scope", [{"patterns": ("mine-*",)}, {"labels": {"team": "red"}}], ids=["pattern", "label"])
async def test_no_route_leads_to_a_sandbox_that_a_key_is_not_for(both: RunningServer, scope: dict[str, Any]) -> None:
    key, before = await key_with(both, **scope), await events_of(both, THEIRS)
    for route in WITH_SANDBOX:
        if route is not terminals.VIEW:  # over a WebSocket, see below
            answer = await ask(both, key, route.method, path_of(route, THEIRS), {})
            assert told(answer) == NOT_ALLOWED, (route.method, route.path, answer.body)
    assert await events_of(both, THEIRS) == before
    assert (await ask(both, key, "GET", f"/v1/sandboxes/{MINE}")).status == 200


async def test_what_is_about_the_whole_server_is_closed_to_keys_for_some_sandboxes(both: RunningServer) -> None:
    for scope in ({"patterns": ("*",)}, {"labels": {"team": "red"}}):
        key = await key_with(both, **scope)
        for route in ROUTES:
            if route.reach_of_it is Reach.SERVER:
                answer = await ask(both, key, route.method, path_of(route, MINE), {"id": MINE})
                assert told(answer) == NOT_ALLOWED, (route.method, route.path)
        assert (await ask(both, key, "GET", "/v1/server")).status == 200


def test_a_route_that_says_nothing_is_about_the_whole_server() -> None:
    reaches = {(route.method, route.path): route.reach for route in ROUTES if route.reach is not None}
    assert reaches == {
        ("GET", "/health"): Reach.ANYBODY,
        ("GET", "/metrics"): Reach.SERVER,
        ("GET", "/v1/server"): Reach.KEY,
        ("GET", "/v1/sandboxes"): Reach.FILTERED,
        ("GET", "/v1/events"): Reach.FILTERED,
    }
    assert all(route.reach_of_it is Reach.SANDBOX for route in WITH_SANDBOX)
    assert all(route.reach_of_it is not Reach.SANDBOX for route in ROUTES if route not in WITH_SANDBOX)


async def test_a_key_that_only_reads_changes_nothing_by_any_route(both: RunningServer) -> None:
    key, before = await key_with(both, reads_only=True), await events_of(both, MINE)
    for route in ALL_ROUTES:
        if route.changes_something and not route.is_call and route is not terminals.VIEW:
            answer = await ask(both, key, route.method, path_of(route, MINE), {})
            assert told(answer) == NOT_ALLOWED, (route.method, route.path, answer.body)
    for path in ("", "/files?path=/", "/files/content?path=/etc/os-release", "/processes", "/sessions", "/terminals"):
        assert (await ask(both, key, "GET", f"/v1/sandboxes/{MINE}{path}")).status == 200, path
    assert (await ask(both, key, "GET", "/metrics")).status == 200
    assert (await ask(both, key, "GET", "/v1/lost")).status == 200
    assert await events_of(both, MINE) == before


async def test_a_key_that_only_reads_makes_no_sandbox(both: RunningServer) -> None:
    key = await key_with(both, reads_only=True)
    for path in ("", "/files?path=/", "/processes", "/events"):
        assert (await ask(both, key, "GET", f"/v1/sandboxes/nobody{path}")).status == 404, path
    assert told(await call(both, key, "nobody", encode_message(ReadFile(path=b"f")))) == (404, "SANDBOX_NOT_FOUND")
    assert (await both.ask("GET", "/v1/sandboxes/nobody")).status == 404


# Tricks with paths and methods.

TRICKS = (
    f"/v1/sandboxes/{MINE}/../{THEIRS}",
    f"/v1/sandboxes/{MINE}%2f..%2f{THEIRS}",
    f"/v1/sandboxes/{MINE}/%2e%2e/{THEIRS}",
    f"/v1/sandboxes//{THEIRS}",
    f"//v1/sandboxes/{THEIRS}",
    f"/v1/sandboxes/{THEIRS}/",
    f"/v1/sandboxes/{THEIRS}%00",
    f"/v1/sandboxes/{THEIRS}%0a",
    "/v1/sandboxes/%74heirs",
    f"/v1/sandboxes/{THEIRS.upper()}",
    f"/v1/sandboxes/{THEIRS};{MINE}",
    f"/v1/sandboxes/{MINE}\\..\\{THEIRS}",
    f"/v1/sandboxes/{MINE}?id={THEIRS}",
    f"/v1/sandboxes/{THEIRS}?id={MINE}",
    f"/V1/sandboxes/{THEIRS}",
    f"/health/../v1/sandboxes/{THEIRS}",
    f"/docs/../v1/sandboxes/{THEIRS}",
)


@pytest.mark.parametrize("path", TRICKS)
async def test_no_spelling_of_a_path_shows_what_a_key_is_not_for(both: RunningServer, path: str) -> None:
    key = await key_with(both, patterns=("mine-*",))
    for method in ("GET", "HEAD"):
        answer = await ask(both, key, method, path)
        assert THEIRS not in str(answer.headers) or answer.status >= 300
        assert answer.status >= 300 or json.loads(answer.body or b'{"id": "mine-1"}')["id"] == MINE, answer.body
        assert not (answer.status < 300 and method == "HEAD" and THEIRS in path and "id=theirs" not in path)
        assert b'"id":"theirs"' not in answer.body


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "POST", "PATCH", "DELETE", "PUT", "PROPFIND", "get"])
async def test_no_method_gets_past(both: RunningServer, method: str) -> None:
    key = await key_with(both, patterns=("mine-*",))
    override = {"Authorization": f"Bearer {key}", "X-HTTP-Method-Override": "GET"}
    answer = await both.ask(method, f"/v1/sandboxes/{THEIRS}", {}, tcp=True, headers=override)
    assert answer.status in (400, 403, 405, 501)
    assert b"secret" not in answer.body
    assert (await both.ask("GET", f"/v1/sandboxes/{THEIRS}")).status == 200


async def test_a_request_in_absolute_form_is_about_the_path_it_has(both: RunningServer) -> None:
    key = await key_with(both, patterns=("mine-*",))
    answer = await ask(both, key, "GET", f"http://127.0.0.1:{both.port}/v1/sandboxes/{THEIRS}")
    assert answer.status >= 400


async def test_each_request_of_a_connection_has_the_scope_of_its_own_key(both: RunningServer) -> None:
    full, scoped = both.key, await key_with(both, patterns=("mine-*",))

    def asked() -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", both.port, timeout=HANG_SECONDS)
        with closing(connection):
            statuses = []
            for key in (full, scoped, full, scoped):
                connection.request("GET", f"/v1/sandboxes/{THEIRS}", headers={"Authorization": f"Bearer {key}"})
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
            return statuses

    assert await asyncio.to_thread(asked) == [200, 403, 200, 403]


# The relay.


async def call(server: RunningServer, key: str, sandbox: str, message: bytes, *more: bytes) -> Answer:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": FRAMES}
    body = encode_frame(FrameKind.CALL, message) + b"".join(more)
    return await server.ask("POST", f"/v1/sandboxes/{sandbox}/call", body, tcp=True, headers=headers)


def frames_in(answer: Answer) -> list[tuple[FrameKind, bytes]]:
    return [(frame.kind, frame.payload) for frame in FrameDecoder().feed(answer.body)]


async def test_frames_lead_to_no_sandbox_that_a_key_is_not_for(both: RunningServer) -> None:
    key = await key_with(both, patterns=("mine-*",))
    assert told(await call(both, key, THEIRS, encode_message(Exec(argv=["true"])))) == NOT_ALLOWED
    assert frames_in(await call(both, key, MINE, encode_message(Exec(argv=["echo", "in"]))))[0][1] == b"in\n"


async def test_a_key_that_only_reads_may_ask_for_what_reads(both: RunningServer) -> None:
    key = await key_with(both, reads_only=True)
    found = frames_in(await call(both, key, THEIRS, encode_message(ReadFile(path=b"secret"))))
    assert (FrameKind.DATA, b"secret") in found
    assert told(await call(both, key, THEIRS, encode_message(Exec(argv=["touch", "f"])))) == NOT_ALLOWED


def both_in_one(*calls: bytes) -> bytes:
    """A map with the fields of all of them, the keys that they share twice: whoever takes others reads another call."""
    assert all(call[0] & 0xF0 == 0x80 for call in calls)
    return bytes([0x80 | sum(call[0] & 0x0F for call in calls)]) + b"".join(call[1:] for call in calls)


TOUCH, READ = encode_message(Exec(argv=["touch", "f"])), encode_message(ReadFile(path=b"f"))
TWO_KINDS = (
    both_in_one(TOUCH, READ),
    both_in_one(READ, TOUCH),
    both_in_one(TOUCH, b"\x81\xa4type\xa9read_file"),
    both_in_one(b"\x81\xa4type\xa9read_file", TOUCH),
    TOUCH + b"\xff",
    READ + TOUCH,
    b"\xc1",
    b"",
)


@pytest.mark.parametrize("message", TWO_KINDS, ids=range(len(TWO_KINDS)))
async def test_a_call_of_two_kinds_is_not_carried_out_as_the_other(both: RunningServer, message: bytes) -> None:
    key = await key_with(both, reads_only=True)
    answer = await call(both, key, MINE, message)
    assert answer.status >= 400 or frames_in(answer)[-1][0] is FrameKind.FAILED
    assert (await both.ask("GET", f"/v1/sandboxes/{MINE}/files/info?path=f")).status == 404


async def test_a_second_call_after_the_first_is_refused(both: RunningServer) -> None:
    key = await key_with(both, reads_only=True)
    second = encode_frame(FrameKind.CALL, encode_message(Exec(argv=["touch", "f"])))
    await call(both, key, MINE, encode_message(ReadFile(path=b"/etc/os-release")), second)
    assert (await both.ask("GET", f"/v1/sandboxes/{MINE}/files/info?path=f")).status == 404


# WebSockets.


def upgrade(server: RunningServer, key: str, path: str, *, in_header: bool) -> bytes:
    """The status line that a handshake is answered with."""
    protocols = "atoll.terminal" if in_header else f"atoll.terminal, atoll.key.{key}"
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(b'0' * 16).decode()}"]
    lines += [f"Sec-WebSocket-Protocol: {protocols}", *([f"Authorization: Bearer {key}"] if in_header else [])]
    with socket.create_connection(("127.0.0.1", server.port), HANG_SECONDS) as peer:
        peer.sendall("\r\n".join([*lines, "", ""]).encode())
        head = b""
        while b"\r\n\r\n" not in head and (piece := peer.recv(65536)):
            head += piece
    return head.split(b"\r\n")[0]


@pytest.mark.parametrize("in_header", [True, False], ids=["header", "subprotocol"])
async def test_a_websocket_is_opened_only_where_a_key_may(both: RunningServer, in_header: bool) -> None:
    ids = {}
    for name in (MINE, THEIRS):
        made = await both.ask("POST", f"/v1/sandboxes/{name}/terminals", {"shell": "sh"})
        ids[name] = f"/v1/sandboxes/{name}/terminals/{made.json()['id']}"
    mine, reading = await key_with(both, patterns=("mine-*",)), await key_with(both, reads_only=True)
    for key, path, status in ((mine, ids[MINE], b"101"), (mine, ids[THEIRS], b"403"), (reading, ids[MINE], b"403")):
        line = await asyncio.to_thread(upgrade, both, key, path, in_header=in_header)
        assert line.split()[1] == status, line


async def test_an_upgrade_of_another_route_changes_nothing_about_it(both: RunningServer) -> None:
    key = await key_with(both, patterns=("mine-*",))
    line = await asyncio.to_thread(upgrade, both, key, f"/v1/sandboxes/{THEIRS}", in_header=True)
    assert int(line.split()[1]) >= 400


# Lists, labels, and ids in bodies.


async def test_lists_show_what_a_key_is_for_and_nothing_of_the_rest(both: RunningServer) -> None:
    for scope in ({"patterns": ("mine-*",)}, {"labels": {"team": "red"}}):
        key = await key_with(both, **scope)
        for query in ("", "?usage=true", "?limit=1", "?state=running", "?after=a", "?label=team=red"):
            page = (await ask(both, key, "GET", f"/v1/sandboxes{query}")).json()
            assert [one["id"] for one in page["sandboxes"]] == [MINE], query
            assert page["next"] in (None, MINE), query
        assert (await ask(both, key, "GET", "/v1/sandboxes?label=team=blue")).json()["sandboxes"] == []


async def test_what_a_key_for_a_label_makes_has_it_and_keeps_it(both: RunningServer) -> None:
    key = await key_with(both, labels={"team": "red"})
    assert (await ask(both, key, "POST", "/v1/sandboxes/new-1/exec", {"command": "true"})).status == 200
    made = await ask(both, key, "PUT", "/v1/sandboxes/new-2", {"labels": {"team": "blue", "a": "b"}})
    assert (made.status, made.json()["labels"]) == (201, {"team": "red", "a": "b"})
    assert (await ask(both, key, "PUT", "/v1/sandboxes/new-2/labels", {"team": "blue"})).json()["labels"] == {
        "team": "red"
    }
    assert (await call(both, key, "new-3", encode_message(Exec(argv=["true"])))).status == 200
    for name in ("new-1", "new-2", "new-3"):
        assert (await both.ask("GET", f"/v1/sandboxes/{name}")).json()["labels"] == {"team": "red"}


async def test_a_key_for_a_pattern_makes_none_but_such(both: RunningServer) -> None:
    key = await key_with(both, patterns=("mine-*", "shared"))
    for name, status in (("mine-2", 201), ("shared", 201), ("others", 403), ("mine", 403)):
        assert (await ask(both, key, "PUT", f"/v1/sandboxes/{name}", {})).status == status
    for name in ("others", "mine"):
        assert (await both.ask("GET", f"/v1/sandboxes/{name}")).status == 404


async def test_an_id_in_a_body_or_in_the_place_of_another_word_is_no_way_in(both: RunningServer) -> None:
    key = await key_with(both, patterns=("mine-*",))
    assert told(await ask(both, key, "POST", f"/v1/lost/{THEIRS}.1/adopt", {"id": MINE})) == NOT_ALLOWED
    assert told(await ask(both, key, "POST", f"/v1/lost/{MINE}/adopt", {"id": THEIRS})) == NOT_ALLOWED
    assert (await ask(both, key, "PUT", f"/v1/sandboxes/{MINE}", {"id": THEIRS})).status == 400
    path = f"/v1/sandboxes/{MINE}/processes/..%2f..%2f{THEIRS}"
    assert (await ask(both, key, "GET", path)).status in (400, 404)


# What a key is, and what becomes of it.


async def test_a_key_that_has_expired_opens_nothing_and_says_when(both: RunningServer) -> None:
    soon = await key_with(both, expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert (await ask(both, soon, "GET", "/v1/sandboxes")).status == 200
    over = await key_with(both, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    refused = await ask(both, over, "GET", "/v1/sandboxes")
    assert told(refused) == (401, "INVALID_API_KEY") and "was good until 2" in refused.json()["message"]


async def test_when_a_key_was_used_is_written_now_and_then_and_at_the_end(own_server: RunningServer) -> None:
    server, key = own_server, await key_with(own_server)

    async def last_used() -> datetime | None:
        with closing(open_store(server.state)) as store:
            (found,) = [info for info in await Keys(store.keys).list() if info.id == key[6:14]]
            return found.last_used

    before = datetime.now(UTC)
    assert (await ask(server, key, "GET", "/v1/server")).status == 200
    assert await last_used() is None  # nobody waits for it
    await server.end()
    written = await last_used()
    assert written is not None and before <= written <= datetime.now(UTC)
    await server.start()


async def test_a_key_of_an_earlier_version_is_for_everything(own_server: RunningServer) -> None:
    from tests import kept

    with kept.opened(own_server.state) as connection:
        connection.execute("UPDATE keys SET scope = NULL")
    assert (await ask(own_server, own_server.key, "GET", "/metrics")).status == 200


async def test_a_scope_that_cannot_be_read_lets_nobody_in(own_server: RunningServer) -> None:
    from tests import kept

    for damage in (b"{", b'{"only_on_mondays": true}', b"null", b"\xff"):
        with kept.opened(own_server.state) as connection:
            connection.execute("UPDATE keys SET scope = ?", (damage,))
        assert (await ask(own_server, own_server.key, "GET", "/v1/sandboxes")).status >= 400


def test_every_route_is_asked_about() -> None:
    """The application's own routes that are not asked about are those that anybody may see."""
    from starlette.routing import Route

    from atoll.server.app import make_app

    app: Any = make_app(None, None)  # type: ignore[arg-type]
    routes = app._app._app.routes
    unasked = {route.path for route in routes if isinstance(route, Route)} - {route.path for route in ROUTES}
    assert unasked == {"/docs", "/openapi.json"}


def test_a_kind_of_call_says_itself_whether_it_changes_something() -> None:
    assert msgspec.msgpack.decode(encode_message(ReadFile(path=b"a")))["type"] == "read_file"  # and nothing of that
