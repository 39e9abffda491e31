"""Lists of many sandboxes: in pages, and at nobody's cost.

A thousand real ones would take a minute. Here most are records alone: those of sandboxes that have ended need nothing
else, and those of `copies` all name one sandbox that runs, so that each costs a look what a real one costs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec
import pytest

from atoll.client.sandbox import AsyncSandbox
from atoll.engine.base import ProcessIdentity
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.store.database import open_database
from atoll.supervisor.records import Records, SandboxRecord, Upkeep
from tests.system.serving import RunningServer

STOPPED, COPIES = 700, 300
TURNS, COMMANDS = 12, 10
LIST_FOR_EVER = """
import sys
from atoll import list_sandboxes
while True:
    found = list_sandboxes(url=sys.argv[1])
    print(len(found), flush=True)
"""


def record(number: int) -> SandboxRecord:
    """Of one that ended long ago."""
    return SandboxRecord(
        id=SandboxId(f"stopped-{number:04}"),
        image="host",
        image_state="none",
        limits=Limits(),
        created_at=datetime.now(UTC),
        process=ProcessIdentity(pid=1, start_time=0, boot_id="another"),
        uid_base=0,
        agent_socket="/none",
        env={"A": "1"},
        upkeep=Upkeep(labels={"third": "yes"} if number % 3 == 0 else {}),
    )


def put_on_record(state: Path, records: list[SandboxRecord]) -> None:
    with closing(open_database(state)) as database:
        kept = Records(database, has_disks=False)
        with database.transaction():
            for one in records:
                kept.begin(one)
                kept.commit(one.id)


def find_record(state: Path, sandbox: str) -> SandboxRecord:
    with closing(open_database(state)) as database:
        found = Records(database, has_disks=False).find(SandboxId(sandbox))
        assert found
        return found


def forget(state: Path, pattern: str) -> None:
    with closing(open_database(state)) as database:
        database.execute("DELETE FROM sandboxes WHERE id GLOB ?", (pattern,))


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
async def many(server: RunningServer) -> AsyncIterator[None]:
    """STOPPED that have ended, and COPIES of one that runs, each looked at as if it were itself."""
    await server.sandbox("original").exec("true")
    await server.end()
    original = find_record(server.state, "original")
    copies = [msgspec.structs.replace(original, id=SandboxId(f"copy-{number:04}")) for number in range(COPIES)]
    put_on_record(server.state, [*copies, *map(record, range(STOPPED))])
    await server.start()
    try:
        yield
    finally:
        await server.end()
        forget(server.state, "copy-*")
        forget(server.state, "stopped-*")
        await server.start()


async def exec_seconds(sandbox: AsyncSandbox) -> list[float]:
    """How long commands of one client take."""
    taken = []
    for _ in range(COMMANDS):
        begin = time.perf_counter()
        await sandbox.exec(["true"])
        taken.append(time.perf_counter() - begin)
    return taken


@asynccontextmanager
async def listing(server: RunningServer) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A client, a process of its own, that lists all there are again and again."""
    with subprocess.Popen([sys.executable, "-c", LIST_FOR_EVER, server.unix_url], stdout=subprocess.PIPE) as client:
        try:
            os.setpriority(os.PRIO_PROCESS, client.pid, 19)  # as if it were on a machine of its own
            assert client.stdout
            assert int(await asyncio.to_thread(client.stdout.readline)) == STOPPED + COPIES + 2
            yield client
        finally:
            client.kill()


@pytest.mark.alone
async def test_whoever_lists_a_thousand_in_a_loop_slows_nobody_down(own_server: RunningServer) -> None:
    """In turns, and the best turns count: what else this machine does makes some worse, and none better."""
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    async with many(own_server), own_server.sandbox("neighbour") as neighbour:
        await exec_seconds(neighbour)
        async with listing(own_server) as client:
            for _ in range(TURNS):
                client.send_signal(signal.SIGSTOP)
                alone.append(await exec_seconds(neighbour))
                client.send_signal(signal.SIGCONT)
                beside.append(await exec_seconds(neighbour))
    assert min(map(median, beside)) < 2 * min(map(median, alone))
    # The slowest of a turn came at a bad moment: it waited for a part of a page, not for a whole list.
    assert min(map(max, beside)) < 3 * min(map(max, alone))
