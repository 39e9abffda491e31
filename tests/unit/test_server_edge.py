"""The server's pure parts: who may come in, statuses, and the document that is made from the routes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from starlette.responses import PlainTextResponse
from starlette.types import Message

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.server.auth import Gate, check_heads, check_origin, host_name, is_unix
from atoll.server.docs_page import page
from atoll.server.observer import Observer
from atoll.server.openapi import document
from atoll.server.routes import ROUTES
from atoll.server.run import is_listened_on, listen_on_path, listening, make_server
from atoll.server.settings import Settings
from atoll.store.keys import Keys
from atoll.store.sqlite.store import SqliteStore
from atoll.supervisor.roster import Roster


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:7070", "localhost"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[::1]:7070", "::1"),
        ("user@localhost", ""),
        ("evil.example@127.0.0.1", ""),
        ("127.0.0.1@evil.example", ""),
        ("user:word@localhost", ""),
        ("localhost:", ""),
        ("localhost:http", ""),
        ("localhost:70700", ""),
        ("localhost:-1", ""),
        ("local host", ""),
        ("localhost\t", ""),
        ("localhost,localhost", ""),
        ("localhost#", ""),
        ("localhost\u00e9", ""),
        ("localhost:\u0661", ""),
        ("localhost.evil.example", "localhost.evil.example"),
        ("evil.example/localhost", ""),
        ("", ""),
        ("[::1", ""),
        ("[nonsense]", ""),
    ],
)
def test_a_host_is_compared_by_its_name(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize("origin", ["http://a.example", "null", "http://[", "http://localhost:1", "localhost:7070"])
def test_another_origin_is_refused(origin: str) -> None:
    with pytest.raises(AtollError) as caught:
        check_origin({b"host": "localhost:7070", b"origin": origin})
    assert caught.value.code is ErrorCode.FORBIDDEN_ORIGIN


@pytest.mark.parametrize("headers", [{}, {b"origin": "http://localhost:7070"}, {b"origin": "HTTP://LOCALHOST:7070"}])
def test_no_origin_and_its_own_may_pass(headers: dict[bytes, str]) -> None:
    check_origin({b"host": "localhost:7070", **headers})


@pytest.mark.parametrize(
    ("server", "expected"), [(("/run/atoll/server.sock", None), True), (("127.0.0.1", 7070), False), (None, False)]
)
def test_what_is_not_surely_the_unix_socket_needs_a_key(server: object, expected: bool) -> None:
    assert is_unix({"type": "http", "server": server}) is expected


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        yield store


@pytest.fixture
def keys(store: SqliteStore) -> Keys:
    return Keys(store.keys)


async def pass_gate(
    keys: Keys, path: str = "/v1/server", host: str = "192.0.2.7:7070", key: str = ""
) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of what a client gets that connected to 192.0.2.7."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody reads the body")

    headers = [(b"host", host.encode()), (b"authorization", b"Bearer " + key.encode())]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "server": ("192.0.2.7", 7070)}
    await Gate(PlainTextResponse("in"), keys, ("localhost",))(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("192.0.2.7", 200),
        ("192.0.2.7:7070", 200),
        ("localhost", 200),
        ("192.0.2.8", 403),
        ("evil.example", 403),
        ("192.0.2.7.evil.example", 403),
        ("evil.example@192.0.2.7", 400),
        ("192.0.2.7:7070:1", 400),
        ("192.0.2.7:x", 400),
        ("192.0.2.7 evil.example", 400),
        ("", 403),
    ],
)
async def test_the_address_that_was_connected_to_is_a_name_of_the_server(keys: Keys, host: str, status: int) -> None:
    _, key = await keys.create("mine")
    assert (await pass_gate(keys, host=host, key=key))[0] == status


@pytest.mark.parametrize("name", [b"host", b"authorization", b"origin"])
def test_a_header_that_is_there_twice_is_refused(name: bytes) -> None:
    """Also if both say the same."""
    check_heads([(b"host", b"localhost"), (b"accept", b"a"), (b"accept", b"b")])
    with pytest.raises(AtollError, match="more than once") as caught:
        check_heads([(name, b"localhost"), (b"accept", b"a"), (name, b"localhost")])
    assert caught.value.code.status == 400


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/v1/server"])
async def test_the_connection_of_a_stranger_is_not_kept(keys: Keys, path: str) -> None:
    status, headers = await pass_gate(keys, path)
    assert status == (401 if path == "/v1/server" else 200)
    assert headers[b"connection"] == b"close"


async def test_the_connection_of_a_client_with_a_key_is_kept(keys: Keys) -> None:
    _, key = await keys.create("mine")
    assert b"connection" not in (await pass_gate(keys, key=key))[1]


def test_what_a_client_says_of_itself_in_a_proxys_headers_is_not_taken(
    store: SqliteStore, keys: Keys, tmp_path: Path
) -> None:
    roster = Roster(None, store.timeline)  # type: ignore[arg-type]
    config = make_server(Settings(state=tmp_path, runtime=tmp_path), roster, keys).config
    config.load()
    assert isinstance(config.loaded_app, Observer)
    assert isinstance(config.loaded_app._app, Gate)  # with nothing else in front of it


def test_a_socket_may_be_as_deep_in_the_tree_as_any_file(tmp_path: Path) -> None:
    path = tmp_path / ("deep" * 30) / "server.sock"
    with listen_on_path(path):
        assert is_listened_on(path)
        assert path.stat().st_mode & 0o777 == 0o600
    assert not is_listened_on(path)


def test_a_socket_that_a_server_listens_on_is_not_taken_from_it(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with listen_on_path(path):
        with pytest.raises(AtollError) as caught:
            listen_on_path(path)
        assert caught.value.code is ErrorCode.ADDRESS_NOT_USABLE
        assert is_listened_on(path)
    listen_on_path(path).close()  # a dead server's is


def test_a_server_that_ends_leaves_the_socket_of_another_alone(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path, runtime=tmp_path)
    with listening(settings):
        settings.socket.rename(tmp_path / "elsewhere")
        other = listen_on_path(settings.socket)
    with other:
        assert is_listened_on(settings.socket)
    with listening(settings):
        pass
    assert not settings.socket.exists()


@pytest.mark.parametrize("in_the_way", ["run", "run/server.sock/x"])
def test_a_socket_that_cannot_be_made_is_a_typed_error(tmp_path: Path, in_the_way: str) -> None:
    (tmp_path / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_the_way).touch()
    with pytest.raises(AtollError) as caught:
        listen_on_path(tmp_path / "run/server.sock")
    assert caught.value.code is ErrorCode.ADDRESS_NOT_USABLE


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_status(code: ErrorCode) -> None:
    assert 400 <= code.status < 600


def test_a_callers_mistake_is_never_the_servers() -> None:
    for code in ErrorCode:
        if code.startswith("INVALID_") or code.endswith("_NOT_FOUND"):
            assert 400 <= code.status < 500


def test_the_document_is_openapi() -> None:
    assert document()["openapi"] == "3.1.0"
    schema = schemathesis.openapi.from_dict(document())
    schema.validate()
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    found = {(operation.method.upper(), operation.path) for operation in operations}
    assert found == {(route.method, route.path) for route in ROUTES}


def test_the_schemas_in_the_document_are_json_schema() -> None:
    schemas = document()["components"]["schemas"]
    for name in schemas:
        whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        jsonschema_rs.validator_for(whole)


def test_to_follow_means_one_thing_for_a_log_and_another_for_a_link() -> None:
    meanings = {}
    for path in ("processes/{process_id}/logs", "files/info"):
        parameters = document()["paths"][f"/v1/sandboxes/{{id}}/{path}"]["get"]["parameters"]
        (meanings[path],) = [each["description"] for each in parameters if each["name"] == "follow"]
    assert "goes on" in meanings["processes/{process_id}/logs"]
    assert "link" in meanings["files/info"]


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for path in document()["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES)


def test_the_page_is_for_people_and_all_its_links_lead_somewhere() -> None:
    shown = page()
    links = set(re.findall(r"href='#(\w+)'", shown))
    assert {"ExecRequest", "ExecEventBody", "SandboxInfo", "ErrorBody"} <= links
    assert links <= set(re.findall(r"<div id='(\w+)'", shown))
    for route in ROUTES:
        assert f"<code>{route.path}</code>" in shown
    for schema_word in ("$ref", "anyOf", "additionalProperties", "contentSchema"):
        assert schema_word not in shown
    assert "://" not in shown.replace("http://127.0.0.1:7070", "")  # so it loads nothing
