"""A server as its operator watches it: health, metrics, and the logs of who asked for what."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.store.keys import KeyScope
from tests.system.conftest import serving
from tests.system.serving import RunningServer
from tests.system.test_key_scopes import ask, key_with

BOX = "/v1/sandboxes/seen"
SECRET = "hunter2"


async def metrics(server: RunningServer) -> dict[str, float]:
    """Each series with its value."""
    answer = await server.ask("GET", "/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_health_needs_no_key_and_no_name_and_tells_a_stranger_nothing(server: RunningServer) -> None:
    for headers in ({}, {"Host": "balancer.internal"}, {"Origin": "http://elsewhere.example"}):
        answer = await server.ask("GET", "/health", tcp=True, headers=headers)
        assert (answer.status, answer.json()) == (200, {"status": "ok", "problem": None})
        assert answer.headers["connection"] == "close"
    for path in ("/health/", "/healthz", "/health/../metrics", "/metrics"):
        assert (await server.ask("GET", path, tcp=True)).status in (307, 401), path
    assert (await server.ask("POST", "/health", {}, tcp=True)).status == 405


async def test_metrics_count_what_happens_and_have_as_many_series_whatever_does(server: RunningServer) -> None:
    before = await metrics(server)
    for number in range(3):
        await server.ask("POST", f"/v1/sandboxes/count-{number}/exec", {"command": "true"})
    box = server.sandbox("count-0")
    await box.exec("true")
    await box.exec(["true"])
    await box.sleep()
    await box.exec("true")
    await server.sandbox("count-1").sleep(stop=True)
    await server.sandbox("count-2").sleep()
    assert (await server.ask("GET", "/v1/sandboxes/nobody-at-all")).status == 404
    assert (await server.ask("GET", "/v1/sandboxes/count-0/files/info?path=none")).status == 404
    after = await metrics(server)
    assert after.keys() == before.keys()

    def grown(series: str) -> float:
        return after[series] - before[series]

    states = {state: after[f'atoll_sandboxes{{state="{state}"}}'] for state in ("running", "frozen", "stopped")}
    assert states == {"running": 1, "frozen": 1, "stopped": 1}
    assert grown('atoll_sandbox_events_total{event="created"}') == 3
    assert grown('atoll_sandbox_start_seconds_count{kind="created"}') == 3
    assert grown('atoll_sandbox_start_seconds_count{kind="thawed"}') == 1
    assert grown('atoll_exec_seconds_count{kind="exec_shell"}') >= 2
    assert grown('atoll_exec_seconds_count{kind="exec"}') == 1
    assert grown('atoll_calls_total{kind="exec"}') == 1
    assert grown('atoll_errors_total{code="SANDBOX_NOT_FOUND"}') == 1
    assert grown('atoll_errors_total{code="FILE_NOT_FOUND"}') == 1
    assert grown('atoll_requests_total{status="4xx"}') == 2
    assert after["atoll_memory_promised_bytes"] == 2 * 2 * 2**30
    assert 0 < after["atoll_memory_used_bytes"] < after["atoll_memory_promisable_bytes"]
    assert 0 < after["atoll_pool_used_bytes"] < after["atoll_pool_size_bytes"]
    assert after["atoll_disks_usable"] == 1
    assert after["process_open_fds"] > 10 and after["process_resident_memory_bytes"] > 2**20
    text = (await server.ask("GET", "/metrics")).body.decode()
    assert "count-" not in text and "nobody" not in text


async def test_metrics_over_tcp_need_a_key_that_is_for_everything(server: RunningServer) -> None:
    assert (await server.ask("GET", "/metrics", tcp=True)).status == 401
    assert (await ask(server, server.key, "GET", "/metrics")).status == 200
    assert (await ask(server, await key_with(server, reads_only=True), "GET", "/metrics")).status == 200
    assert (await ask(server, await key_with(server, patterns=("*",)), "GET", "/metrics")).status == 403


@pytest.fixture
async def logging_server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with serving(tmp_path, "--access-log", "--audit-log", str(tmp_path / "audit.log"), "--json") as server:
        yield server


async def entries(path: Path, logger: str, last: str) -> list[dict[str, Any]]:
    """Those of one logger, when one that is about `last` has been written."""
    async with asyncio.timeout(60):
        while True:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found = [line for line in lines if line["logger"] == logger]
            if any(last in line["message"] for line in found):
                return found
            await asyncio.sleep(0.02)


async def use_it(server: RunningServer) -> None:
    box = server.sandbox("seen", tcp=True)
    await box.exec(f"export TOKEN={SECRET}; echo {SECRET}")
    await box.write_file(f"/workspace/{SECRET}", SECRET)
    await box.read_file(f"/workspace/{SECRET}")
    await server.ask("GET", f"{BOX}/files/info?path={SECRET}", headers={"X-Token": SECRET})
    scoped = await key_with(server, patterns=("other-*",))
    assert (await ask(server, scoped, "DELETE", BOX)).status == 403
    assert (await ask(server, f"atoll_{SECRET}", "GET", BOX)).status == 401
    await box.destroy()


async def test_the_access_log_has_a_line_for_every_request_and_nothing_that_is_secret(
    logging_server: RunningServer,
) -> None:
    server = logging_server
    await use_it(server)
    await server.ask("GET", "/v1/server?last")
    found = await entries(server.log, "atoll.access", "/v1/server")
    by_status = [(line["method"], line["path"], line["status"], line["operation"]) for line in found]
    assert ("POST", f"{BOX}/call", 200, "exec_shell") in by_status
    assert ("POST", f"{BOX}/call", 200, "write_file") in by_status
    assert ("GET", f"{BOX}/files/info", 200, "get_file_info") in by_status or any(
        path == f"{BOX}/files/info" and status == 200 for _, path, status, _ in by_status
    )
    assert ("DELETE", BOX, 403, "destroy_sandbox") in by_status
    assert any(status == 401 and operation == "" for _, _, status, operation in by_status)
    done = next(line for line in found if line["operation"] == "exec_shell")
    assert re.fullmatch(r"key [0-9a-f]{8} \(tests\)", done["by"]) and done["address"] == "127.0.0.1"
    assert done["milliseconds"] >= 0 and done["sandbox"] == "seen"
    assert SECRET not in server.log.read_text() and server.key not in server.log.read_text()


async def test_the_audit_log_says_who_changed_what_and_who_was_refused(logging_server: RunningServer) -> None:
    server = logging_server
    await use_it(server)
    path = server.directory / "audit.log"
    found = await entries(path, "atoll.audit", "destroy_sandbox of seen: done")
    said = [(line["operation"], line["sandbox"], line["code"] or line["status"]) for line in found]
    assert ("exec_shell", "seen", 200) in said
    assert ("write_file", "seen", 200) in said
    assert ("destroy_sandbox", "seen", "KEY_NOT_ALLOWED") in said
    assert ("", "", "INVALID_API_KEY") in said
    assert said[-1] == ("destroy_sandbox", "seen", 204)
    assert "read_file" not in {line["operation"] for line in found}  # who only looks, and may, changes nothing
    refused = next(line for line in found if line["code"] == "KEY_NOT_ALLOWED")
    assert refused["by"].endswith("(scoped)")
    assert SECRET not in path.read_text()
    assert "atoll.audit" not in server.log.read_text()


async def test_timelines_carry_the_name_of_the_key(server: RunningServer) -> None:
    key = await key_with(server, patterns=("seen",))
    assert (await ask(server, key, "PUT", BOX, {})).status == 201
    assert (await ask(server, key, "PUT", f"{BOX}/labels", {"a": "b"})).status == 200
    events = (await server.ask("GET", f"{BOX}/events")).json()["events"]
    assert {event["by"] for event in events} == {f"key {key[6:14]} (scoped)"}
    assert KeyScope().is_limited is False
