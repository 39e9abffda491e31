"""The trial: a sandbox made in a state directory of its own, and `true` run in it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from atoll.engine.base import Engine, EngineSettings, SandboxSpec
from atoll.engine.choose import chosen_engine
from atoll.images.catalog import ImageCatalog
from atoll.protocol.commands import Exec
from atoll.protocol.errors import AtollError
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.storage.base import Storage
from atoll.storage.examination import temporary_state
from atoll.storage.mounting import MIN_POOL
from atoll.storage.pool import open_storage
from atoll.supervisor.agent_link import link_to
from atoll.supervisor.usual_variables import ENV
from atoll.telemetry.findings import Area, Check, Outcome, missing, ok

COMMAND_SECONDS = 30.0


def check(ground: Path) -> Check:
    """`ground` is where the state directory is, or would be made."""
    return Check(Area.TRIAL, "a sandbox", lambda: try_sandbox(ground), needs_root=True)


def try_sandbox(ground: Path) -> Outcome:
    with temporary_state(ground) as state:
        try:
            return asyncio.run(_try(state))
        except AtollError:
            raise
        except Exception as cause:  # here what is not proven is missing
            what = f"{type(cause).__name__}: {cause}"
            return missing(f"no sandbox could be made: {what}", "This is a mistake in Atoll: report it.")


async def _try(state: Path) -> Outcome:
    settings = EngineSettings(state=state, runtime=state / "run", keep_host_settings=True)
    engine = chosen_engine().open(settings)
    storage, images = open_storage(state, MIN_POOL), ImageCatalog(state / "images")
    try:
        started = time.perf_counter()
        exit_codes = [await _run_true(engine, storage, images, "first")]
        first, started = time.perf_counter() - started, time.perf_counter()
        exit_codes.append(await _run_true(engine, storage, images, "second"))
        second = time.perf_counter() - started
    finally:
        await engine.close()
        storage.close()
    if any(exit_codes):
        return missing(f"`true` ended with {exit_codes}", "Look at what /usr/bin/true is on this machine.")
    return ok(f"made, used and gone in {second * 1e3:.0f} ms; the very first in {first * 1e3:.0f} ms")


async def _run_true(engine: Engine, storage: Storage, images: ImageCatalog, name: str) -> int:
    sandbox_id, limits, rootfs = SandboxId(name), Limits(memory="64MiB", disk="16MiB"), images.resolve("host")
    disk = storage.create(sandbox_id, limits.disk)
    spec = SandboxSpec(id=sandbox_id, generation=name, rootfs=rootfs, disk=disk, limits=limits, env=ENV)
    # Never told to live on: if this process is killed, the sandbox goes with it.
    sandbox = await engine.start(spec)
    try:
        async with link_to(engine, sandbox) as link:
            output = await link.run(Exec(argv=["true"], timeout=COMMAND_SECONDS))
    finally:
        await engine.stop(sandbox)
        storage.remove(sandbox_id)
    return output.done.exit_code
