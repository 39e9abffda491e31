"""Disks that were set aside: they are told of, taken back and removed, and nothing takes their place."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atoll.client.lost import adopt_lost_sandbox_async, list_lost_sandboxes_async, remove_lost_sandbox_async
from atoll.client.sandbox import get_async_sandbox, list_sandboxes_async
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.storage.directory import DirectoryStorage
from atoll.store.choose import open_store
from atoll.supervisor import lost
from atoll.supervisor.actor import Caller
from atoll.supervisor.info import describe
from atoll.supervisor.lost import LONGEST_STEP_SECONDS, Note, decode_note, first_note, looked_at
from atoll.supervisor.plans import Plan
from atoll.supervisor.roster import Roster
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.making import create
from tests.native import native, run
from tests.system.conftest import serving
from tests.system.serving import RunningServer

HANG_SECONDS = 120.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def lose(directory: Path, busybox_root: Path, *, without_record: str) -> None:
    """Two sandboxes of which no row is left; on one disk nothing says what it was, the other says it was being made."""
    async with Workshop(directory / "state", directory / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
        for name in ("one", "two"):
            live = await create(workshop, name, image="busybox")
            await run(live, "sh", "-c", f"echo {name} >/f")
            await workshop.engine.stop(live)
        disks = {name: workshop.storage.find(SandboxId(name)) for name in ("one", "two")}
        os.removexattr(disks[without_record], "user.atoll.record")
        (other,) = {*disks} - {without_record}
        as_made_in_another_boot(disks[other])
    for name in ("one", "two"):
        kept.remove(directory / "state", name)


def as_made_in_another_boot(disk: Path) -> None:
    carried = json.loads(os.getxattr(disk, "user.atoll.record")[1:])
    carried |= {"mark": "making", "boot_id": "another"}
    os.setxattr(disk, "user.atoll.record", b"0" + json.dumps(carried).encode())


class Cli:
    def __init__(self, server: RunningServer) -> None:
        directories = {"ATOLL_STATE_DIR": server.state, "ATOLL_RUNTIME_DIR": server.state.parent / "run"}
        self._environment = os.environ | {name: str(path) for name, path in directories.items()}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "atoll.cli", *words]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True)

    def document(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").stdout)


async def test_lost_disks_are_told_of_taken_back_and_removed(tmp_path: Path, busybox_root: Path) -> None:
    await lose(tmp_path, busybox_root, without_record="one")
    async with serving(tmp_path) as server:
        await use_lost_disks(server)
        await get_async_sandbox("any", url=server.unix_url).aclose()


async def use_lost_disks(server: RunningServer) -> None:
    cli, url = Cli(server), server.unix_url
    assert await list_sandboxes_async(url=url) == []
    listed = {disk["name"]: disk for disk in cli.document("ls", "--lost")["lost"]}
    assert {name: disk["image"] for name, disk in listed.items()} == {"one": None, "two": "busybox"}
    assert "power failed" in listed["two"]["reason"] and listed["two"]["id"] == "two"
    assert "atoll adopt" in cli("ls", "--lost").stderr and "the disk one is no sandbox's" in server.log.read_text()
    report = json.loads(cli("doctor", "--json", "--no-trial").stdout)
    (finding,) = [finding for finding in report["findings"] if finding["name"] == "lost disks"]
    assert finding["status"] == "warning" and "one, two" in finding["found"] and "atoll adopt" in finding["remedy"]

    await server.ask("PUT", "/v1/sandboxes/two", {"image": "busybox"})  # as if nothing had been there
    taken = cli("adopt", "two")
    assert taken.returncode and "SANDBOX_EXISTS" in taken.stderr and "another id" in taken.stderr
    assert cli("adopt", "two", "--as", "again").stdout == "again\n"
    assert (await server.sandbox("again").exec("cat /f")).stdout == "two\n"
    assert (await adopt_lost_sandbox_async("one", image="busybox", url=url)).id == "one"
    assert (await server.sandbox("one").exec("cat /f")).stdout == "one\n"
    assert await list_lost_sandboxes_async(url=url) == []
    for refused in (adopt_lost_sandbox_async("one", url=url), remove_lost_sandbox_async("Not one", url=url)):
        with pytest.raises(AtollError) as caught:
            await refused
        assert caught.value.code == ErrorCode.SANDBOX_NOT_FOUND


async def test_what_runs_on_a_disk_that_is_set_aside_is_ended_before_another_can_be_on_it(
    tmp_path: Path, busybox_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, runtime = tmp_path / "state", tmp_path / "run"
    async with Workshop(state, runtime) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox")
        os.removexattr(workshop.storage.find(SandboxId("one")), "user.atoll.record")
        first = os.pidfd_open(native(live).process.pid)
        await workshop.engine.release(live)
    kept.remove(state, "one")
    async with Workshop(state, runtime) as workshop:
        assert workshop.inherited.set_aside == ("one",)
        assert select.select([first], [], [], HANG_SECONDS)[0]
        assert "nobody knows any more" in caplog.text
        assert not list((runtime / "agents").iterdir())
    os.close(first)


async def test_a_lost_disk_is_removed_when_asked_or_after_a_long_time(tmp_path: Path, busybox_root: Path) -> None:
    await lose(tmp_path, busybox_root, without_record="two")
    state, runtime = tmp_path / "state", tmp_path / "run"
    async with Workshop(state, runtime) as workshop:
        assert workshop.inherited.set_aside == ("one", "two")
        await workshop.engine.release(await create(workshop, "one", image="busybox"))
        workshop.storage.set_aside(SandboxId("one"), first_note("a test", datetime.now(UTC)))
        assert workshop.storage.lost.names() == ["one", "one.2", "two"]
        await workshop.lost.remove("one")
        await workshop.remove("one")
        assert lost.remove_expired(workshop.storage, lost.KEEP_SECONDS) == ([], [])
        assert (state / "lost").read_text().split() == ["one.2", "two"]
    async with Workshop(state, runtime, keep_lost=0) as workshop:
        await workshop.lost.look()
        assert workshop.storage.lost.names() == [] and workshop.lost.all() == []
    assert not (state / "lost").exists()


def test_plain_directories_are_set_aside_and_taken_back(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "disks")
    one = SandboxId("one")
    (storage.create(one, 0, b"record") / "f").write_text("x")
    assert storage.set_aside(one, b"note") == "one" and storage.names() == set()
    assert (storage.lost.note("one"), storage.record(".lost/one")) == (b"note", b"record")
    storage.create(one, 0)
    assert storage.set_aside(one, b"note") == "one.2"
    long = b"long" * 50_000  # more than an ext4 takes
    storage.take_back("one", one, long)
    assert storage.record("one") == long and (storage.find(one) / "f").read_text() == "x"
    storage.replace_record(one, b"short")
    assert storage.record("one") == b"short"
    storage.remove_lost("one.2")
    storage.remove(one)
    assert storage.names() == set() and storage.lost.names() == []


def test_half_a_removal_of_a_plain_directory_is_finished(tmp_path: Path) -> None:
    (tmp_path / "disks/.removing-one/root").mkdir(parents=True)
    assert DirectoryStorage(tmp_path / "disks").names() == set()
    assert not list((tmp_path / "disks").iterdir())


def test_time_counts_as_far_as_it_is_plausible() -> None:
    note = decode_note(first_note("reason", NOW), NOW)
    for passed, counted in ((60.0, 60.0), (-1e9, 0.0), (1e9, LONGEST_STEP_SECONDS)):
        seen = looked_at(note, NOW + timedelta(seconds=passed))
        assert seen.kept_seconds == counted and seen.since == NOW
    assert isinstance(decode_note(b"nonsense", NOW), Note)
    assert msgspec.json.decode(first_note("reason", NOW), type=Note).reason == "reason"


async def test_whoever_destroys_one_whose_disk_goes_later_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        with closing(open_store(server.state)) as store:  # as it is noted while disks cannot be written
            for what, cause in (("removed_later", "the pool\x1b[31m takes nothing"), ("destroyed", "it was asked for")):
                await store.timeline.add(SandboxId("later"), what, cause=cause, by="me")
            await store.timeline.add(SandboxId("gone"), "destroyed", cause="it was asked for", by="me")
        atoll = Cli(server)
        for name, said in (("gone", ""), ("never", ""), ("later", "later is gone, and its disk goes as soon as")):
            ended = await asyncio.to_thread(atoll, "rm", name)
            assert ended.returncode == 0 and ended.stderr.startswith(said) and bool(ended.stderr) == bool(said), ended
        assert "takes nothing" in ended.stderr and "\x1b" not in ended.stderr


async def test_who_makes_one_whose_id_a_lost_disk_has_is_told(
    tmp_path: Path, busybox_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await lose(tmp_path, busybox_root, without_record="one")
    async with (
        Workshop(tmp_path / "state", tmp_path / "run") as workshop,
        Roster(workshop, workshop.store.timeline) as roster,
    ):
        me, options = Caller("me"), Plan(image="busybox")
        for name in ("one", "other"):
            await roster.actor(name).ensure(options, me)
        (told,) = await roster.actor("one").events(0)
        assert told.cause.endswith("`atoll ls --lost` has a disk of an earlier one: one")
        assert describe(roster.actor("one")).cause == told.cause
        assert "sandbox one is made anew and empty, while a disk of that id is set aside" in caplog.text
        (untold,) = await roster.actor("other").events(0)
        assert untold.cause == "its id was used for the first time"
        for name in ("one", "other"):
            await roster.actor(name).destroy(me)
        await workshop.lost.remove("one")
        await roster.actor("one").ensure(options, me)
        assert "lost" not in (await roster.actor("one").events(0))[-1].cause
        await roster.actor("one").destroy(me)


async def test_the_timeline_says_that_a_record_was_made_anew(tmp_path: Path, busybox_root: Path) -> None:
    state, runtime, one = tmp_path / "state", tmp_path / "run", SandboxId("one")
    async with Workshop(state, runtime) as workshop, Roster(workshop, workshop.store.timeline) as roster:
        workshop.images.add("busybox", busybox_root)
        await roster.actor(one).ensure(Plan(image="busybox"), Caller("me"))
        await roster.actor(one).sleep(Caller("me"), stop=True)
    for forget_events, said in ((False, "restored"), (True, "created")):
        kept.remove(state, "one")
        if forget_events:
            with kept.opened(state) as database:
                database.execute("DELETE FROM events")
        async with Workshop(state, runtime) as workshop, Roster(workshop, workshop.store.timeline) as roster:
            assert workshop.inherited.restored == (one,)
            (event,) = (
                event for event in await roster.actor(one).events(0) if "made anew from its disk" in event.cause
            )
            assert (event.what, event.by) == (said, "atoll")
            if forget_events:
                await roster.actor(one).destroy(Caller("me"))
