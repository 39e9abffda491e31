"""A process that uses the engine, to be killed: does what it reads on its input, and says what came of it.

    create ID  ->  made ID, then wrote ID once a file in it holds its id; or: failed ID CODE
    remove ID  ->  removed ID
    sync ID    ->  synced ID, once that file is on the disk
    read ID    ->  holds ID CONTENT, of one that had ended and is started for that
    quit

It begins with a line for each sandbox that an earlier one left, `running ID CONTENT`, `ended ID`, `swept ID` or `aside
NAME`, and `ready`. Run as `maker.py DIRECTORY NURSERY...`; with a nursery that has a trap (dying_nursery.py) it stops
at its own points too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.engine.base import LiveSandbox
from atoll.engine.native.engine import NativeEngine
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError
from atoll.protocol.ids import SandboxId
from atoll.supervisor.workshop import Workshop
from tests import making
from tests.contract.dying_nursery import Trap
from tests.native import linked

CREATE_POINTS = ("disk made", "on record", "kept", "created on disk", "created")
REMOVE_POINTS = ("removal begun", "stopped", "disk removed", "removed")


def say(*words: str) -> None:
    os.write(1, f"{' '.join(words)}\n".encode())  # at once: half a line is no report


async def run(live: LiveSandbox, script: str) -> str:
    async with linked(live) as link:
        return (await link.run(Exec(argv=["sh", "-c", script]))).stdout.decode().strip()


async def create(workshop: Workshop, name: str) -> None:
    try:
        live = await making.create(workshop, name, image="busybox", limits={"disk": "256MiB"})
    except AtollError as error:
        say("failed", name, error.code)
        return
    say("made", name)
    try:
        await run(live, f"echo {name} >/kept")
        say("wrote", name)
    except AtollError as error:
        say("failed", name, error.code)
    await workshop.engine.release(live)


async def remove(workshop: Workshop, name: str) -> None:
    await workshop.remove(name)
    say("removed", name)


async def sync(workshop: Workshop, name: str) -> None:
    live = await workshop.adopt(name)
    assert await run(live, "sync /kept && echo done") == "done"
    await workshop.engine.release(live)
    say("synced", name)


async def read(workshop: Workshop, name: str) -> None:
    live = await workshop.start(workshop.record(SandboxId(name)).id)
    say("holds", name, await run(live, "cat /kept"))
    await workshop.engine.release(live)


VERBS = {"create": create, "remove": remove, "sync": sync, "read": read}


async def tell_what_is_there(workshop: Workshop) -> None:
    for name in workshop.inherited.running:
        live = await workshop.adopt(name)
        # A command that was cut off may have made the file and written nothing.
        say("running", name, await run(live, "grep . /kept 2>/dev/null || echo nothing"))
        await workshop.engine.release(live)
    for name in workshop.inherited.ended:
        say("ended", name)
    for name in workshop.inherited.removed:
        say("swept", name)
    for disk in workshop.inherited.set_aside:
        say("aside", disk)
    say("ready")


def stop_at_points(workshop: Workshop, trap: Trap) -> None:
    after(workshop.storage, "create", lambda: trap.at("disk made"))
    after_async(workshop._records, "begin", lambda: trap.at("on record"))
    after_async(workshop.engine, "keep", lambda: trap.at("kept"))
    after(workshop.storage, "replace_record", lambda: trap.at("created on disk"))
    after_async(workshop._records, "commit", lambda: trap.at("created"))
    after_async(workshop._records, "begin_removal", lambda: trap.at("removal begun"))
    after_async(workshop.engine, "stop", lambda: trap.at("stopped"))
    after(workshop.storage, "remove", lambda: trap.at("disk removed"))
    after_async(workshop._records, "forget", lambda: trap.at("removed"))


def after(owner: Any, name: str, then: Callable[[], None]) -> None:
    function = getattr(owner, name)

    def both(*arguments: Any) -> Any:
        result = function(*arguments)
        then()
        return result

    setattr(owner, name, both)


def after_async(owner: Any, name: str, then: Callable[[], None]) -> None:
    function = getattr(owner, name)

    async def both(*arguments: Any) -> Any:
        result = await function(*arguments)
        then()
        return result

    setattr(owner, name, both)


async def main() -> None:
    directory, nursery = Path(sys.argv[1]), tuple(sys.argv[2:])
    state, runtime = directory / "state", directory / "run"
    embryos = {"embryos": 0, "nursery": nursery} if nursery else {}
    engine = NativeEngine(state, runtime, **embryos)  # type: ignore[arg-type]
    async with Workshop(state, runtime, engine=engine) as workshop:
        if nursery:
            stop_at_points(workshop, Trap(Path(nursery[-1])))
        await tell_what_is_there(workshop)
        tasks = set()
        while line := await asyncio.to_thread(sys.stdin.readline):
            match line.split():
                case ["quit"]:
                    break
                case [verb, name]:
                    tasks.add(asyncio.create_task(VERBS[verb](workshop, name)))
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main())
