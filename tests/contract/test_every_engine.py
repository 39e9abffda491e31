"""What every engine promises, native or not: to who asks it, and to the workshop and the roster that stand above it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from atoll.engine.base import Capability, Engine, Event, EventKind, LiveSandbox, require
from atoll.engine.native.engine import NativeEngine
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.protocol.sandboxes import SandboxEvent, SandboxState, UpkeepChanges
from atoll.supervisor.actor import Caller, SandboxActor
from atoll.supervisor.agent_link import AgentLink, link_to
from atoll.supervisor.estate import Inherited
from atoll.supervisor.info import describe
from atoll.supervisor.plans import Plan
from atoll.supervisor.roster import Roster
from atoll.supervisor.upkeep import set_upkeep
from atoll.supervisor.workshop import Workshop
from tests.contract.plain_engine import PlainEngine
from tests.making import create

SO_ORIGINAL_DST = 80
ONE = SandboxId("one")
ME = Caller("me")
HANG_SECONDS = 60.0

ENGINES: dict[str, Callable[[Path], Engine]] = {
    "native": lambda place: NativeEngine(place / "state", place / "run"),
    "plain": lambda place: PlainEngine(place / "run"),
}
Open = Callable[[], Workshop]


@pytest.fixture(params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path: Path, busybox_root: Path) -> Open:
    """A workshop on a directory, again and again."""

    def open_workshop() -> Workshop:
        workshop = Workshop(tmp_path / "state", tmp_path / "run", engine=ENGINES[request.param](tmp_path))
        with suppress(FileExistsError):
            workshop.images.add("busybox", busybox_root)
        return workshop

    return open_workshop


@pytest.fixture
async def workshop(opened: Open) -> AsyncIterator[Workshop]:
    async with opened() as workshop:
        yield workshop


async def make(workshop: Workshop, name: str = "one") -> LiveSandbox:
    return await create(workshop, name, image="busybox", env={"COLOUR": "blue"})


async def run(workshop: Workshop, live: LiveSandbox, script: str) -> str:
    async with link_to(workshop.engine, live) as link:
        return (await link.run(Exec(argv=["sh", "-c", script]))).stdout.decode().strip()


async def test_a_started_sandbox_answers_and_a_stopped_one_does_not(workshop: Workshop) -> None:
    live = await make(workshop)
    assert await run(workshop, live, "echo $COLOUR") == "blue"
    assert await workshop.engine.is_running(live)
    await workshop.stop(live)
    await workshop.stop(live)
    assert not await workshop.engine.is_running(live)
    with pytest.raises(OSError):
        (await workshop.engine.connect(live)).close()
    async with link_to(workshop.engine, live) as link:
        with pytest.raises(AtollError) as caught:
            await link.ping()
        assert caught.value.code is ErrorCode.SANDBOX_NOT_RUNNING
    await workshop.destroy(live)


async def test_what_it_started_ends_with_it(workshop: Workshop) -> None:
    live = await make(workshop)
    assert (await workshop.engine.usage(live)).processes == 1
    await run(workshop, live, "setsid sleep 5555 >/dev/null 2>&1 & sleep 5555 >/dev/null 2>&1 & :")
    async with asyncio.timeout(HANG_SECONDS):
        while (await workshop.engine.usage(live)).processes != 3:
            await asyncio.sleep(0.01)
    namespace = os.readlink(f"/proc/{pid_of(live)}/ns/pid")
    assert len(processes_in(namespace)) == 3
    await workshop.destroy(live)
    assert not await workshop.engine.is_running(live)
    async with asyncio.timeout(HANG_SECONDS):
        while processes_in(namespace):
            await asyncio.sleep(0.01)


def processes_in(namespace: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    found.append(name)
            except OSError:
                continue
    return found


async def test_what_it_writes_is_on_its_disk_when_it_starts_again(workshop: Workshop) -> None:
    live = await make(workshop)
    await run(workshop, live, "mkdir -p /srv; echo kept >/srv/f")
    await workshop.stop(live)
    again = await workshop.start(ONE)
    assert again.generation != live.generation and again.handle != live.handle
    assert await run(workshop, again, "cat /srv/f") == "kept"
    await workshop.destroy(again)
    assert not workshop.storage.names()


async def test_whoever_waits_is_told_of_the_end(workshop: Workshop) -> None:
    live = await make(workshop)
    seen = asyncio.create_task(first_event(workshop.engine, live))
    waiting = [asyncio.create_task(workshop.engine.wait(live)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert not seen.done() and not any(task.done() for task in waiting)
    os.kill(pid_of(live), signal.SIGKILL)
    async with asyncio.timeout(HANG_SECONDS):
        await asyncio.gather(*waiting)
        assert await seen == Event(kind=EventKind.ENDED, oom_kills=0)
    await workshop.destroy(live)


async def first_event(engine: Engine, live: LiveSandbox) -> Event:
    async for event in engine.events(live):
        return event
    raise AssertionError("its end is an event")


def plain(workshop: Workshop) -> bool:
    return isinstance(workshop.engine, PlainEngine)


def pid_of(live: LiveSandbox) -> int:
    handle = msgspec.json.decode(live.handle)
    return int(handle.get("pid") or handle["process"]["pid"])


async def test_many_at_once_are_many(workshop: Workshop) -> None:
    lives = await asyncio.gather(*(make(workshop, f"many-{number}") for number in range(8)))
    assert len({live.handle for live in lives}) == len({live.generation for live in lives}) == 8
    answers = await asyncio.gather(*(run(workshop, live, f"echo {live.id}") for live in lives))
    assert answers == [live.id for live in lives]
    await asyncio.gather(*(workshop.destroy(live) for live in lives))


async def test_many_connections_are_made_at_once_and_some_given_up(workshop: Workshop) -> None:
    live = await make(workshop)
    tasks = [asyncio.create_task(workshop.engine.connect(live)) for _ in range(60)]
    for task in tasks[::3]:
        await asyncio.sleep(0)
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, socket.socket | asyncio.CancelledError)
        if isinstance(outcome, socket.socket):
            outcome.close()
    assert await run(workshop, live, "echo x") == "x"
    await workshop.destroy(live)


async def test_one_that_is_left_is_adopted_by_the_next_with_what_is_in_it(opened: Open) -> None:
    async with opened() as first:
        live = await make(first)
        await run(first, live, "mkdir -p /srv; echo kept >/srv/f")
    async with opened() as second:
        assert second.inherited == Inherited(running=(ONE,))
        again = await second.adopt("one")
        assert (again.handle, again.generation) == (live.handle, live.generation)
        assert await run(second, again, "cat /srv/f") == "kept"
        assert await second.engine.adopt(again) == again, "twice is the same"
        await second.engine.release(again)
        await second.engine.release(again)
        assert await second.engine.is_running(again)
        await second.destroy(await second.adopt("one"))
        assert await second.engine.adopt(again) is None


MAKER = """
import asyncio, sys
from pathlib import Path
from atoll.supervisor.workshop import Workshop
from tests.contract.test_every_engine import ENGINES
from tests.making import create
async def never_on_record(record):
    print("made", flush=True)
    sys.stdin.read()
async def main():
    place = Path(sys.argv[1])
    workshop = Workshop(place / "state", place / "run", engine=ENGINES[sys.argv[2]](place))
    if sys.argv[3] == "unrecorded":
        workshop._records.begin = never_on_record
    await create(workshop, "one", image="busybox")
    print("made", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["recorded", "unrecorded"])
async def test_one_whose_maker_is_killed_lives_on_if_it_is_on_record(opened: Open, tmp_path: Path, what: str) -> None:
    name = "plain" if plain(workshop := opened()) else "native"
    await workshop.close()
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, tmp_path, name, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert maker.stdout and maker.stdout.readline() == "made\n"
    maker.kill()
    maker.communicate()
    async with opened() as workshop:
        if what == "recorded":
            assert workshop.inherited == Inherited(running=(ONE,))
            live = await workshop.adopt("one")
            assert await run(workshop, live, "echo x") == "x"
            again = await workshop.adopt("one")
            assert (await workshop.engine.usage(again)).processes >= 1
            await workshop.engine.stop(live)
            await workshop.engine.wait(again)
            with pytest.raises(AtollError) as caught:
                await workshop.adopt("one")
            assert caught.value.code is ErrorCode.SANDBOX_NOT_RUNNING
        else:
            assert workshop.inherited == Inherited(removed=(ONE,))
            assert not list((tmp_path / "run").glob("agents/*"))
            with pytest.raises(LookupError):
                await workshop.adopt("one")
        await workshop.remove("one")
        with pytest.raises(LookupError):
            await workshop.adopt("one")
        assert not workshop.storage.names()


async def test_one_that_never_was_started_does_not_run(workshop: Workshop) -> None:
    never = LiveSandbox(id=ONE, engine="", handle="", generation="")
    assert workshop.engine.why_out_of_reach(never) is None
    assert await workshop.engine.adopt(never) is None and not await workshop.engine.is_running(never)


async def test_a_handle_that_it_cannot_read_says_nothing_of_whether_it_runs(workshop: Workshop) -> None:
    live = await make(workshop)
    others = [msgspec.structs.replace(live, handle=handle) for handle in ("pod/one", "{}", "\udc80", live.handle[:-5])]
    for other in (*others, msgspec.structs.replace(live, engine="pods")):
        assert workshop.engine.why_out_of_reach(other)
        for ask in (workshop.engine.adopt, workshop.engine.is_running):
            with pytest.raises(AtollError) as caught:
                await ask(other)
            assert caught.value.code is ErrorCode.SANDBOX_OUT_OF_REACH and caught.value.remedy
    await workshop.destroy(live)


async def test_settling_ends_nothing_that_one_of_an_unreadable_handle_may_be(opened: Open) -> None:
    async with opened() as first:
        live = await make(first)
    async with opened() as second:
        unreadable = msgspec.structs.replace(live, handle=live.handle[:-5])
        await second.engine.settle([unreadable], are_all=True)
        assert await second.engine.is_running(live)
        await second.destroy(await second.adopt("one"))


async def test_each_sandbox_is_adopted_once_by_the_server_that_comes_next(opened: Open) -> None:
    async with opened() as first:
        await make(first)
        await first.stop(await make(first, "two"))
    second = opened()
    adopted, adopt = [], second.engine.adopt

    async def adopt_and_note(left: LiveSandbox) -> LiveSandbox | None:
        adopted.append(left.id)
        return await adopt(left)

    second.engine.adopt = adopt_and_note  # type: ignore[method-assign]
    async with second, Roster(second, second.store.timeline) as roster:
        assert second.inherited == Inherited(running=(ONE,), ended=(SandboxId("two"),))
        await roster.actor("one").do(ME, AgentLink.ping)
        assert adopted == ["one", "two"]
        for name in ("one", "two"):
            await roster.actor(name).destroy(ME)


@pytest.mark.parametrize("started_by", ENGINES)
async def test_one_that_another_engine_started_is_left_alone_until_that_is_back(
    tmp_path: Path, busybox_root: Path, started_by: str
) -> None:
    other = next(name for name in ENGINES if name != started_by)

    def opened(engine: str) -> Workshop:
        return Workshop(tmp_path / "state", tmp_path / "run", engine=ENGINES[engine](tmp_path))

    async with opened(started_by) as first:
        first.images.add("busybox", busybox_root)
        live = await make(first)
        await run(first, live, "mkdir -p /srv; echo kept >/srv/f")
        record = first.record(ONE)
        await first.update(record, upkeep=msgspec.structs.replace(record.upkeep, ttl=0.0))
    async with opened(other) as second, Roster(second, second.store.timeline) as roster:
        assert second.inherited == Inherited(out_of_reach=(ONE,))
        actor = roster.actor("one")
        info = describe(actor)
        assert info.state is SandboxState.RUNNING and started_by in info.cause
        for refused in (
            actor.do(ME, AgentLink.ping),
            actor.ensure(Plan(image="busybox"), ME),
            actor.sleep(ME),
            actor.sleep(ME, stop=True),
            actor.destroy(ME),
        ):
            with pytest.raises(AtollError) as caught:
                await refused
            assert caught.value.code is ErrorCode.SANDBOX_OUT_OF_REACH and caught.value.context["sandbox"] == "one"
        assert not roster.is_needed, "though its life is over: nothing is due of what nobody may touch"
        assert [event.what for event in await actor.events(0)] == ["created"]
    async with opened(started_by) as third:
        assert third.inherited == Inherited(running=(ONE,))
        again = await third.adopt("one")
        assert again.handle == live.handle and await run(third, again, "cat /srv/f") == "kept"
        await third.destroy(again)
        assert not third.storage.names()


async def test_one_that_another_engine_started_has_ended_with_the_boot_it_was_started_in(workshop: Workshop) -> None:
    live = await make(workshop)
    await workshop.stop(live)
    await workshop.update(workshop.record(ONE), engine="pods", handle="pod/one", boot_id="another")
    again = await workshop.start(ONE)
    assert workshop.record(ONE).engine == again.engine == workshop.engine.name
    await workshop.destroy(again)


async def test_a_process_that_got_the_number_of_another_is_not_taken_for_it(workshop: Workshop) -> None:
    live = await make(workshop)
    other = msgspec.structs.replace(live, handle=live.handle.replace(f":{pid_of(live)},", f":{os.getpid()},"))
    assert other.handle != live.handle
    assert await workshop.engine.adopt(other) is None
    await workshop.destroy(live)


async def test_a_port_is_reached_and_one_that_is_none_is_named(workshop: Workshop) -> None:
    live = await make(workshop)
    engine = workshop.engine
    for port, code in ((0, ErrorCode.INVALID_PORT), (65_536, ErrorCode.INVALID_PORT), (1, ErrorCode.PORT_NOT_OPEN)):
        with pytest.raises(AtollError) as caught:
            await engine.open_port(live, port)
        assert caught.value.code is code and caught.value.remedy
    port = 20_000 + os.getpid() % 20_000
    async with link_to(engine, live) as link:
        served = asyncio.create_task(
            link.run(Exec(argv=["busybox", "nc", "-l", "-p", str(port), "-e", "echo", "hello"]))
        )
        peer = await until_open(engine, live, port)
        with peer:
            assert await asyncio.get_running_loop().sock_recv(peer, 100) == b"hello\n"
        await served
    await workshop.stop(live)
    with pytest.raises(AtollError) as caught:
        await engine.open_port(live, port)
    assert caught.value.code is ErrorCode.SANDBOX_NOT_RUNNING
    await workshop.destroy(live)


async def until_open(engine: Engine, live: LiveSandbox, port: int) -> socket.socket:
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            try:
                return await engine.open_port(live, port)
            except AtollError as problem:
                assert problem.code is ErrorCode.PORT_NOT_OPEN
                await asyncio.sleep(0.01)


async def test_it_leads_connections_to_a_gateway_or_says_that_it_cannot(workshop: Workshop) -> None:
    live, engine = await make(workshop), workshop.engine
    if Capability.NETWORK not in engine.capabilities:
        with pytest.raises(AtollError) as caught:
            await engine.open_gateway(live)
        assert caught.value.code is ErrorCode.NOT_AVAILABLE_YET
        await workshop.destroy(live)
        return
    listeners = await engine.open_gateway(live)
    with listeners.tcp, listeners.dns:
        async with link_to(engine, live) as link:
            called = asyncio.create_task(link.run(Exec(argv=["busybox", "nc", "192.0.2.7", "8123"])))
            peer, _ = await asyncio.get_running_loop().sock_accept(listeners.tcp)
            with peer:
                meant = peer.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
                await asyncio.get_running_loop().sock_sendall(peer, b"hello")
            assert (await called).stdout == b"hello"
            assert (socket.inet_ntoa(meant[4:8]), int.from_bytes(meant[2:4])) == ("192.0.2.7", 8123)
    await workshop.stop(live)
    with pytest.raises(AtollError) as caught:
        await engine.open_gateway(live)
    assert caught.value.code is ErrorCode.SANDBOX_NOT_RUNNING
    await workshop.destroy(live)


async def test_it_freezes_or_says_that_it_cannot(workshop: Workshop) -> None:
    live, engine = await make(workshop), workshop.engine
    if Capability.FREEZE in engine.capabilities:
        for _ in range(2):
            await engine.freeze(live)
        assert engine.is_frozen(live)
    else:
        with pytest.raises(AtollError) as caught:
            await engine.freeze(live)
        assert caught.value.code is ErrorCode.NOT_AVAILABLE_YET
    await engine.thaw(live)
    assert not engine.is_frozen(live)
    assert await run(workshop, live, "echo on") == "on"
    await workshop.destroy(live)


async def test_it_sets_limits_of_one_that_runs_or_says_that_it_cannot(workshop: Workshop) -> None:
    live, engine = await make(workshop), workshop.engine
    limits = Limits(cpus=1, memory="64MiB", pids=32)
    if Capability.SET_LIMITS in engine.capabilities:
        for _ in range(2):
            await engine.set_limits(live, limits)
    else:
        with pytest.raises(AtollError) as caught:
            await engine.set_limits(live, limits)
        assert caught.value.code is ErrorCode.NOT_AVAILABLE_YET
    assert await run(workshop, live, "echo on") == "on"
    await workshop.destroy(live)


async def test_nothing_is_started_while_it_is_at_rest_and_all_goes_on(workshop: Workshop) -> None:
    live = await make(workshop)
    async with workshop.engine.at_rest():
        assert await run(workshop, live, "echo x") == "x"
    assert workshop.engine.isolation
    await workshop.destroy(live)


async def test_one_that_nobody_uses_is_frozen_or_else_stopped_and_its_files_are_kept(workshop: Workshop) -> None:
    can_freeze = Capability.FREEZE in workshop.engine.capabilities
    async with Roster(workshop, workshop.store.timeline) as roster:
        actor = roster.actor("one")
        await actor.ensure(Plan(image="busybox"), ME)
        write = Exec(argv=["sh", "-c", "mkdir -p /srv; echo kept >/srv/f"])
        await actor.do(ME, lambda link: link.run(write))
        asleep = next_event(actor, "frozen" if can_freeze else "stopped")
        await set_upkeep(actor, UpkeepChanges(sleep_after=0.01), ME)
        assert "nobody used it" in (await asleep).cause
        assert describe(actor).state is (SandboxState.FROZEN if can_freeze else SandboxState.STOPPED)
        found = await actor.do(ME, lambda link: link.run(Exec(argv=["cat", "/srv/f"])))
        assert found.stdout == b"kept\n"
        await actor.destroy(ME)


def next_event(actor: SandboxActor, what: str) -> asyncio.Task[SandboxEvent]:
    async def wait() -> SandboxEvent:
        async for event in actor.follow(0):
            if event.what == what:
                return event
        raise AssertionError(f"it ended without {what}")

    return asyncio.create_task(wait())


async def test_whoever_asks_for_sleep_is_told_if_the_engine_can_only_stop(workshop: Workshop) -> None:
    async with Roster(workshop, workshop.store.timeline) as roster:
        actor = roster.actor("one")
        await actor.ensure(Plan(image="busybox"), ME)
        if Capability.FREEZE in workshop.engine.capabilities:
            await actor.sleep(ME)
            assert describe(actor).state is SandboxState.FROZEN
        else:
            with pytest.raises(AtollError) as caught:
                await actor.sleep(ME)
            assert caught.value.code is ErrorCode.NOT_AVAILABLE_YET and "sleep(stop=True)" in caught.value.remedy
            assert describe(actor).state is SandboxState.RUNNING, "nothing is lost by asking"
        await actor.sleep(ME, stop=True)
        await actor.sleep(ME)
        assert describe(actor).state is SandboxState.STOPPED
        await actor.destroy(ME)


async def test_what_an_engine_cannot_do_is_a_typed_error(workshop: Workshop) -> None:
    for capability in set(Capability) - workshop.engine.capabilities:
        with pytest.raises(AtollError) as caught:
            require(workshop.engine, capability)
        assert caught.value.code is ErrorCode.NOT_AVAILABLE_YET and caught.value.remedy


async def test_the_roster_works_with_it(workshop: Workshop) -> None:
    async with Roster(workshop, workshop.store.timeline) as roster:
        actor = roster.actor("one")
        await actor.ensure(Plan(image="busybox"), ME)
        assert (await actor.do(ME, AgentLink.ping)).commands_running == 0
        info = describe(actor)
        assert info.state is SandboxState.RUNNING and info.isolation == workshop.engine.isolation
        await actor.sleep(ME, stop=True)
        assert describe(actor).state is SandboxState.STOPPED
        await actor.do(ME, AgentLink.ping)
        await actor.destroy(ME)
