"""Every attack on record is contained; and succeeds without its defences, so that none is a check that cannot fail."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from atoll.attacks.catalog import ATTACKS
from atoll.attacks.record import BREACH, HELD, READY, Attack, Defence, Evidence, Family
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AgentLostError
from atoll.protocol.frames import FrameKind
from atoll.supervisor.agent_connection import AgentConnection
from atoll.supervisor.workshop import Workshop
from tests.conftest import Box
from tests.hostile.conftest import WeakenedWorkshops, sandbox
from tests.native import native

SERIES, SAMPLES = 3, 21
PREPARED = f"{READY} to hoard\n"
SLOWER = 3.0  # than when all is quiet: what a neighbour has to put up with

HEAVY = [attack for attack in ATTACKS if attack.family is Family.RESOURCES]
BEHIND_GATEWAY = [attack for attack in ATTACKS if attack.family is Family.NETWORK]  # in test_network_attacks.py
LIGHT = [attack for attack in ATTACKS if attack not in HEAVY + BEHIND_GATEWAY]
BY_DEFENCES = sorted(HEAVY + LIGHT, key=lambda attack: attack.defences)  # as each set of them costs a nursery
LAST_LINES = [
    (attack, remaining) for attack in BY_DEFENCES if len(attack.defences) > 1 for remaining in attack.defences
]


@pytest.mark.parametrize("attack", LIGHT, ids=lambda attack: attack.name)
async def test_an_attack_is_contained(attack: Attack, workshop: Workshop, neighbour: Box) -> None:
    async with sandbox(workshop, attack.limits) as box:
        async with victim(neighbour, attack.victim), launched(attack, box) as verdict:
            assert verdict.startswith(HELD), verdict
        await settle(box)
        await answers(box)
    await answers(neighbour)


@pytest.mark.parametrize("attack", HEAVY, ids=lambda attack: attack.name)
async def test_an_attack_on_resources_is_contained(attack: Attack, workshop: Workshop, neighbour: Box) -> None:
    async with sandbox(workshop, attack.limits) as box:
        before = await pace(neighbour)
        async with launched(attack, box) as verdict:
            assert is_held(attack, verdict), verdict
            during = await pace(neighbour)
            for _ in range(3):  # others come and go on this machine; an attack stays
                if during >= SLOWER * before:
                    during = min(during, await pace(neighbour))
            subprocess.run(["true"], check=True)
            async with sandbox(workshop) as another:
                await answers(another)
        await settle(box)
        await answers(box)
        assert during < SLOWER * max(before, await pace(neighbour))


@pytest.mark.parametrize("attack", BY_DEFENCES, ids=lambda attack: attack.name)
async def test_without_its_defences_the_attack_succeeds(attack: Attack, weakened: WeakenedWorkshops) -> None:
    workshop = await weakened.without(attack.defences)
    async with sandbox(workshop, attack.limits) as box, sandbox(workshop) as other:
        if attack.evidence is Evidence.AGENT_LOST:
            with pytest.raises(AgentLostError):
                await box.run(*python(attack.payload).argv)
        else:
            async with victim(other, attack.victim), launched(attack, box) as verdict:
                assert verdict.removeprefix(PREPARED).startswith(BREACH), verdict


@pytest.mark.parametrize(("attack", "last"), LAST_LINES, ids=lambda value: getattr(value, "name", value))
async def test_each_of_its_defences_is_enough(attack: Attack, last: Defence, weakened: WeakenedWorkshops) -> None:
    workshop = await weakened.without(tuple(defence for defence in attack.defences if defence is not last))
    async with (
        sandbox(workshop, attack.limits) as box,
        sandbox(workshop) as other,
        victim(other, attack.victim),
        launched(attack, box) as verdict,
    ):
        assert is_held(attack, verdict), verdict
        await answers(box)


def test_every_defence_is_attacked_and_every_name_is_unique() -> None:
    assert {defence for attack in ATTACKS for defence in attack.defences} == set(Defence)
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


def is_held(attack: Attack, verdict: str) -> bool:
    match attack.evidence:
        case Evidence.AGENT_LOST:
            return True
        case Evidence.LIVES_ON:
            return verdict == PREPARED or verdict.startswith(HELD)
        case Evidence.VERDICT:
            return verdict.startswith(HELD)


def python(script: str, *, stdin: bool = False) -> Exec:
    return Exec(argv=["python3", "-I", "-c", script], stdin=stdin)


@asynccontextmanager
async def launched(attack: Attack, box: Box) -> AsyncIterator[str]:
    """The verdict on an attack, which then goes on for as long as the block lasts."""
    async with box.link.operation(python(attack.payload)) as connection:
        if attack.bait:
            await hear(connection, READY)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(box.run(attack.bait))
                yield await hear(connection, BREACH, HELD)
        elif attack.witness:
            yield (await box.run(*python(attack.witness).argv)).stdout.decode()
        else:
            yield await hear(connection, BREACH, HELD)


@asynccontextmanager
async def victim(box: Box, script: str | None) -> AsyncIterator[None]:
    """What a neighbour does meanwhile."""
    if script is None:
        yield
        return
    async with box.link.operation(python(script, stdin=True)) as connection:
        await hear(connection, READY)
        yield
        await connection.send_input(b"")
        async for _ in connection.frames():
            pass


async def hear(connection: AgentConnection, *words: str) -> str:
    """What a command writes, until it has said one of the words or has ended."""
    text = ""
    while not any(word in text for word in words):
        frame = await connection.next_frame()
        if frame.kind is FrameKind.DONE:
            break
        text += frame.payload.decode(errors="replace")
    return text


async def pace(box: Box) -> float:
    """Seconds that a command takes: the best of some medians, as others on this machine come and go."""
    return min([statistics.median([await timed_answer(box) for _ in range(SAMPLES)]) for _ in range(SERIES)])


async def timed_answer(box: Box) -> float:
    began = time.perf_counter()
    await answers(box)
    return time.perf_counter() - began


async def answers(box: Box) -> None:
    assert (await box.run("echo", "alive")).stdout == b"alive\n"


async def settle(box: Box) -> None:
    """Return when nothing runs in the sandbox but its agent, which inherits whatever lost its parent."""
    while any(path.read_text() for path in Path(f"/proc/{native(box.live).process.pid}/task").glob("*/children")):
        await asyncio.sleep(0.01)
