"""The HTTP API tried by its own document: whatever is asked, the answer is no 5xx, and an error says what to do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from atoll.server.openapi import document
from atoll.server.routes import ROUTES
from tests.system.serving import Answer, RunningServer

EXAMPLES = 15
NAMES = ("fuzz-a", "fuzz-b")  # most requests go to sandboxes that are there, so that they get further than the id

SCHEMA = schemathesis.openapi.from_dict(document())
QUICK = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_no_request_made_from_the_document_makes_the_server_fail(
    server: RunningServer, route: Any, mode: GenerationMode
) -> None:
    operation = SCHEMA[route.path][route.method]
    for name in NAMES:
        await server.ask("PUT", f"/v1/sandboxes/{name}", {})

    @QUICK
    @given(case=operation.as_strategy(generation_mode=mode), name=st.sampled_from([*NAMES, None]))
    def ask(case: Any, name: str | None) -> None:
        if name and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = name
        request = case.as_transport_kwargs(base_url="http://localhost")
        check(server._ask(*to_request(request)), request)

    try:
        await asyncio.to_thread(ask)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    assert "failed" not in server.log.read_text()


def to_request(request: dict[str, Any]) -> tuple[str, str, bytes | None, bool, dict[str, str]]:
    """As a plain HTTP client sends it."""
    import requests

    prepared = requests.Request(
        **{name: value for name, value in request.items() if name in REQUEST_FIELDS},
    ).prepare()
    body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
    return prepared.method or "", prepared.path_url, body, False, dict(prepared.headers)


REQUEST_FIELDS = ("method", "url", "headers", "params", "json", "data", "cookies", "files")


def check(answer: Answer, request: object) -> None:
    assert answer.status < 500, (request, answer)
    if answer.status >= 400:
        problem = json.loads(answer.body)
        assert problem["code"] and problem["message"] and problem["remedy"], (request, problem)
