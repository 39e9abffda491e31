"""What happens to all sandboxes of a server, over HTTP, in both halves of the SDK and on the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from atoll.client import news as async_news
from atoll.client_sync import news as sync_news
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.sandboxes import NewsEvent, SandboxEvent
from atoll.supervisor import news
from atoll.supervisor.news import News
from tests.client.halves import AsyncHalf, BlockingHalf, Half
from tests.system.serving import HANG_SECONDS, RunningServer
from tests.system.test_key_scopes import ask, key_with


def told(event: Any) -> tuple[str, str]:
    return event.sandbox, event.what


async def make(server: RunningServer, *names: str, **options: object) -> None:
    for name in names:
        assert (await server.ask("PUT", f"/v1/sandboxes/{name}", options)).status == 201


async def test_the_latest_of_all_are_listed_in_order_also_after_a_restart(own_server: RunningServer) -> None:
    server = own_server
    await make(server, "a", "b")
    await server.ask("PUT", "/v1/sandboxes/a/labels", {"x": "y"})
    await server.ask("DELETE", "/v1/sandboxes/b")
    expected = [("a", "created"), ("b", "created"), ("a", "labels_changed"), ("b", "destroyed")]
    for _ in range(2):
        found = (await server.ask("GET", "/v1/events")).json()["events"]
        assert [(event["sandbox"], event["what"]) for event in found] == expected
        await server.kill()
        await server.start()
    found = (await server.ask("GET", "/v1/events?limit=2")).json()["events"]
    assert [(event["sandbox"], event["what"]) for event in found] == expected[2:]
    assert (await server.ask("GET", "/v1/events?limit=1001")).status == 400


async def test_keys_see_what_happens_to_theirs(server: RunningServer) -> None:
    await make(server, "mine-1", "mine-2", labels={"team": "red"})
    await make(server, "others", labels={"team": "blue"})
    for scope in ({"patterns": ("mine-*",)}, {"labels": {"team": "red"}}):
        key = await key_with(server, **scope)
        found = (await ask(server, key, "GET", "/v1/events")).json()["events"]
        assert {event["sandbox"] for event in found} == {"mine-1", "mine-2"}


@pytest.fixture(params=[AsyncHalf, BlockingHalf], ids=lambda half: half.name)
async def half(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Half]:
    half: Half = request.param()
    yield half
    half.server.find_server(server.unix_url).transport.close_idle()
    half.server.shared_server.cache_clear()


async def test_the_sdk_lists_and_follows_what_happens(half: Half, server: RunningServer) -> None:
    is_async = half.name == "async"
    list_them: Any = async_news.events_async if is_async else sync_news.events
    follow: Any = async_news.follow_events_async if is_async else sync_news.follow_events
    await make(server, "first")
    assert told((await half.run(list_them, limit=1, url=server.unix_url))[0]) == ("first", "created")
    stream = follow(limit=1, url=server.unix_url)
    seen = half.iterate(stream)
    assert told(await anext(seen)) == ("first", "created")
    await make(server, "second")
    await server.ask("DELETE", "/v1/sandboxes/first")
    assert [told(await anext(seen)) for _ in range(2)] == [("second", "created"), ("first", "destroyed")]
    await half.close(stream)
    with pytest.raises(AtollError) as caught:
        await half.run(list_them, limit=-1, url=server.unix_url)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


async def test_a_stream_for_a_key_has_the_whole_life_of_what_it_is_for_and_nothing_else(
    half: Half, server: RunningServer
) -> None:
    follow: Any = async_news.follow_events_async if half.name == "async" else sync_news.follow_events
    await make(server, "others-1", labels={"team": "blue"})
    await make(server, "before", labels={"team": "red"})
    key = await key_with(server, labels={"team": "red"})
    stream = follow(limit=10, url=server.tcp_url, api_key=key)
    seen = half.iterate(stream)
    assert told(await anext(seen)) == ("before", "created")
    await make(server, "others-2", labels={"team": "blue"})
    await make(server, "mine", labels={"team": "red"})
    await server.ask("DELETE", "/v1/sandboxes/others-1")
    await server.ask("DELETE", "/v1/sandboxes/mine")
    assert [told(await anext(seen)) for _ in range(2)] == [("mine", "created"), ("mine", "destroyed")]
    await half.close(stream)
    half.server.find_server(server.tcp_url, key).transport.close_idle()


async def test_the_command_line_shows_and_follows_what_happens_to_all(server: RunningServer) -> None:
    def atoll(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "atoll.cli", "--url", server.unix_url, "events", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    await make(server, "shown", "known")
    output, _ = await asyncio.to_thread(atoll("--limit", "2").communicate, timeout=HANG_SECONDS)
    lines = output.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["shown", "known"] and all("created" in line for line in lines)
    following = atoll("-f", "--limit", "1", "--json")
    assert following.stdout and following.stderr
    try:
        assert json.loads(await asyncio.to_thread(following.stdout.readline))["sandbox"] == "known"
        await server.ask("DELETE", "/v1/sandboxes/shown")
        event = json.loads(await asyncio.to_thread(following.stdout.readline))
        assert (event["sandbox"], event["what"]) == ("shown", "destroyed")
    finally:
        following.kill()
        await asyncio.to_thread(following.wait)
        following.stdout.close()
        following.stderr.close()
    refused = atoll("--since", "3")
    _, said = await asyncio.to_thread(refused.communicate, timeout=HANG_SECONDS)
    assert refused.returncode == 2 and b"name it" in said


# The news by itself.


def event(number: int) -> SandboxEvent:
    from datetime import UTC, datetime

    return SandboxEvent(number=number, time=datetime.now(UTC), what="created", cause="c", by="b")


async def nothing_before() -> list[NewsEvent]:
    return []


async def test_who_comes_back_goes_on_where_it_stopped() -> None:
    told_of, box = News(), "box"
    for number in range(1, 6):
        told_of.tell(box, {}, event(number))  # type: ignore[arg-type]
    stream = told_of.follow(lambda *_: True, 1, nothing_before)
    numbers = [(await anext(stream)).number for _ in range(5)]
    await stream.aclose()
    again = told_of.follow(lambda *_: True, numbers[2], nothing_before)
    assert [(await anext(again)).event.number for _ in range(2)] == [4, 5]
    await again.aclose()


async def test_who_does_not_read_makes_nothing_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "UNREAD", 10)
    told_of = News()
    stream = told_of.follow(lambda *_: True, 0, nothing_before)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    for number in range(1, 3 * news.KEPT):
        told_of.tell("box", {}, event(number))  # type: ignore[arg-type]
    assert (await first).event.number == 1
    assert [(await anext(stream)).event.number for _ in range(9)] == list(range(2, 11))
    assert len(told_of._latest) == news.KEPT
    await stream.aclose()
    assert not told_of._followers
