"""The HTTP API tried by its own document: whatever is asked, the answer is no 5xx, and an error says what to do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from atoll.protocol.frames import FRAMES, FrameKind, encode_frame
from atoll.server.api_route import ApiRoute
from atoll.server.openapi import document
from atoll.server.routes import ROUTES
from atoll.server.routes.files import TAR
from tests.system.serving import Answer, RunningServer

EXAMPLES = 50
NAMES = ("fuzz-a", "fuzz-b")  # most requests go to sandboxes that are there, so that they get further than the id
PATHS = (".", "file", "directory", "/proc/self/status", None)  # and many to files that may be there
REQUEST_FIELDS = {"method", "url", "headers", "params", "json", "data", "cookies", "files"}

schemathesis.serializer.alias(TAR, "application/octet-stream")
SCHEMA = schemathesis.openapi.from_dict(document())
QUICK = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


CASES = [
    pytest.param(route, mode, id=f"{route.method} {route.path} {mode.value}")
    for route in ROUTES
    for mode in GenerationMode
    if route.body_type != FRAMES and (mode is GenerationMode.POSITIVE or route.body or route.query or "{" in route.path)
]


@pytest.mark.parametrize(("route", "mode"), CASES)
async def test_no_request_made_from_the_document_makes_the_server_fail(
    server: RunningServer, route: ApiRoute, mode: GenerationMode
) -> None:
    for name in NAMES:
        await server.ask("PUT", f"/v1/sandboxes/{name}", {})
    cases = SCHEMA[route.path][route.method].as_strategy(generation_mode=mode)

    @QUICK
    @given(case=cases, name=st.sampled_from([*NAMES, None]), path=st.sampled_from(PATHS))
    def ask(case: Any, name: str | None, path: str | None) -> None:
        if name and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = name
        if path and case.query and "path" in case.query:
            case.query["path"] = path
        request = to_request(case)
        check(server._ask(*request), request)

    await asyncio.to_thread(ask)
    assert "failed" not in server.log.read_text()


async def test_no_bytes_given_to_the_relay_make_the_server_fail(server: RunningServer) -> None:
    fields = st.sampled_from(["type", "argv", "command", "session_id"])
    payloads = st.binary(max_size=100) | st.dictionaries(fields, st.text() | st.none()).map(msgspec.msgpack.encode)
    frames = st.lists(st.builds(encode_frame, st.sampled_from(FrameKind), payloads), max_size=4).map(b"".join)

    @settings(QUICK, max_examples=10 * EXAMPLES)
    @given(body=st.binary(max_size=100) | frames | st.builds(lambda a, b: a + b, frames, st.binary(max_size=6)))
    def ask(body: bytes) -> None:
        check(server._ask("POST", f"/v1/sandboxes/{NAMES[0]}/call", body, False, {}), body)

    await asyncio.to_thread(ask)
    assert "failed" not in server.log.read_text()


def to_request(case: Any) -> tuple[str, str, bytes | None, bool, dict[str, str]]:
    """As a plain HTTP client sends it."""
    fields = case.as_transport_kwargs(base_url="http://localhost")
    prepared: Any = requests.Request(**{name: fields[name] for name in REQUEST_FIELDS & fields.keys()}).prepare()
    body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
    return prepared.method, prepared.path_url, body, False, dict(prepared.headers)


def check(answer: Answer, request: object) -> None:
    assert answer.status < 500, (request, answer)
    if answer.status >= 400:
        problem = json.loads(answer.body)
        assert problem["code"] and problem["message"] and problem["remedy"], (request, problem)
