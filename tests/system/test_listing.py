"""Lists of many sandboxes: in pages, and at nobody's cost.

A thousand real ones would take a minute. Here most are records alone: those of sandboxes that have ended need nothing
else, and those of `copies` all name one sandbox that runs, so that each costs a look what a real one costs.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.protocol.sandboxes import MAX_SANDBOXES_PER_PAGE, SandboxQuery
from atoll.store.choose import open_store
from atoll.supervisor.plans import Upkeep
from atoll.supervisor.records import Records, SandboxRecord
from atoll.supervisor.roster import Roster
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.conftest import Box
from tests.system.serving import RunningServer

STOPPED, COPIES = 700, 300


def record(number: int) -> SandboxRecord:
    """Of one that ended long ago."""
    return SandboxRecord(
        id=SandboxId(f"stopped-{number:04}"),
        image="host",
        image_state="none",
        limits=Limits(),
        created_at=datetime.now(UTC),
        env={"A": "1"},
        upkeep=Upkeep(labels={"third": "yes"} if number % 3 == 0 else {}),
    )


def put_on_record(state: Path, records: list[SandboxRecord]) -> None:
    with closing(open_store(state)) as store:
        records_there = Records(store)
        for one in records:
            kept.at_once(records_there.begin(one))
            kept.at_once(records_there.commit(one.id))


@pytest.fixture(scope="module")
async def records_alone(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    server = RunningServer(tmp_path_factory.mktemp("records"))
    server.state.mkdir(mode=0o700)
    put_on_record(server.state, [record(number) for number in range(STOPPED)])
    await server.start()
    yield server
    await server.end()


async def test_a_page_says_where_the_next_begins(records_alone: RunningServer) -> None:
    pages, after = [], ""
    while after is not None:
        page = (await records_alone.ask("GET", f"/v1/sandboxes?limit=300{after and f'&after={after}'}")).json()
        pages.append([sandbox["id"] for sandbox in page["sandboxes"]])
        after = page["next"]
    assert list(map(len, pages)) == [300, 300, 100]
    assert [name for page in pages for name in page] == [f"stopped-{number:04}" for number in range(STOPPED)]


async def test_a_page_has_a_hundred_unless_somebody_says_otherwise(records_alone: RunningServer) -> None:
    page = (await records_alone.ask("GET", "/v1/sandboxes")).json()
    assert (len(page["sandboxes"]), page["next"]) == (100, "stopped-0099")
    whole = (await records_alone.ask("GET", f"/v1/sandboxes?limit={STOPPED}")).json()
    assert (len(whole["sandboxes"]), whole["next"]) == (STOPPED, None)


async def test_conditions_count_before_the_page_is_full(records_alone: RunningServer) -> None:
    path = "/v1/sandboxes?label=third=yes&state=stopped&after=stopped-0003&limit=2"
    page = (await records_alone.ask("GET", path)).json()
    assert [sandbox["id"] for sandbox in page["sandboxes"]] == ["stopped-0006", "stopped-0009"]
    assert page["next"] == "stopped-0009"
    page = (await records_alone.ask("GET", "/v1/sandboxes?state=frozen")).json()
    assert page == {"sandboxes": [], "next": None}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "INVALID_REQUEST"),
        ("limit=1001", "INVALID_REQUEST"),
        ("limit=-1", "INVALID_REQUEST"),
        ("limit=all", "INVALID_REQUEST"),
        ("after=", "INVALID_SANDBOX_ID"),
        ("after=No%00", "INVALID_SANDBOX_ID"),
        ("usage=maybe", "INVALID_REQUEST"),
    ],
)
async def test_a_page_that_cannot_be_meant_is_refused(records_alone: RunningServer, query: str, code: str) -> None:
    answer = await records_alone.ask("GET", f"/v1/sandboxes?{query}")
    assert (answer.status, answer.json()["code"]) == (400, code)
    assert answer.json()["remedy"]


async def test_what_they_use_is_told_when_asked_for(server: RunningServer) -> None:
    assert (await server.ask("PUT", "/v1/sandboxes/busy", {})).status == 201
    (quiet,) = (await server.ask("GET", "/v1/sandboxes")).json()["sandboxes"]
    (told,) = (await server.ask("GET", "/v1/sandboxes?usage=true")).json()["sandboxes"]
    assert quiet["use"] is None
    assert told["use"]["processes"] >= 1 and told["use"]["memory"] > 0


@asynccontextmanager
async def many(workshop: Workshop, box: Box) -> AsyncIterator[Roster]:
    """STOPPED that have ended, and COPIES of one that runs, each looked at as if it were itself."""
    original = workshop.record(box.live.id)
    copies = [msgspec.structs.replace(original, id=SandboxId(f"copy-{number:04}")) for number in range(COPIES)]
    all_of_them = [*copies, *map(record, range(STOPPED))]
    timeline = workshop.store.timeline
    try:
        for one in all_of_them:
            await workshop._records.begin(one)
            await workshop._records.commit(one.id)
        async with Roster(workshop, timeline) as roster:
            yield roster
    finally:
        for one in all_of_them:
            await workshop._records.forget(one.id)
        await timeline.retire_unrecorded()
        await workshop.adopt(box.live.id)  # the engine was told of each copy that it is let go of


async def turns_of(work: Awaitable[object]) -> list[float]:
    """How much of the processor each turn of the loop took until `work` was done; nobody else had it."""
    task, turns = asyncio.ensure_future(work), []
    gc.disable()  # it looks at everything that the tests before have left
    try:
        while not task.done():
            begin = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - begin)
    finally:
        gc.enable()
    await task
    return turns


@pytest.mark.parametrize("with_use", [False, True])
async def test_a_list_of_a_thousand_is_made_in_many_turns(workshop: Workshop, host_box: Box, with_use: bool) -> None:
    async with many(workshop, host_box) as roster:
        query = SandboxQuery(limit=MAX_SANDBOXES_PER_PAGE)
        assert len((await roster.list(query)).sandboxes) == MAX_SANDBOXES_PER_PAGE
        turns = await turns_of(roster.list(query, with_use=with_use))
    assert max(turns) < sum(turns) / 8  # one in forty, and a slow one is not that slow
