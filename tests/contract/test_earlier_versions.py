"""Sandboxes that a server of an earlier version made and left running: found, adopted, and gone on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atoll.store.moments import boot_id
from atoll.supervisor.estate import Inherited
from tests import kept
from tests.contract.test_state_directory import ONE, open_workshop
from tests.kept import leftovers
from tests.making import create
from tests.native import native, run


def as_before_handles(record: dict[str, Any]) -> dict[str, Any]:
    """The native engine's part stood in three fields of the record."""
    handle = msgspec.json.decode(record["handle"])
    others = {
        name: value for name, value in record.items() if name not in ("engine", "handle", "generation", "boot_id")
    }
    return others | {name: handle[name] for name in ("process", "uid_base", "agent_socket")}


def as_before_engines(record: dict[str, Any]) -> dict[str, Any]:
    """There was one only, so nothing said which."""
    return {name: value for name, value in record.items() if name != "engine"}


async def left_by_an_earlier_version(
    directory: Path, busybox_root: Path, as_before: Callable[[dict[str, Any]], dict[str, Any]] = as_before_handles
) -> bytes:
    """One that runs; its row and its disk say so as they did before. What its row says."""
    async with open_workshop(directory) as workshop:
        workshop.images.add("busybox", busybox_root)
        live = await create(workshop, "one", image="busybox", env={"COLOUR": "blue"})
        await run(live, "sh", "-c", "echo kept >/f")
        row = msgspec.json.encode(as_before(kept.record(directory / "state", "one")))
        on_disk = {"version": 1, "mark": "created", "boot_id": boot_id(), "record": msgspec.Raw(row)}
        workshop.storage.replace_record(ONE, msgspec.json.encode(on_disk))
    kept.put(directory / "state", "one", "created", row)
    return row


@pytest.mark.parametrize("as_before", [as_before_handles, as_before_engines])
async def test_one_that_runs_is_adopted_with_what_is_in_it(
    tmp_path: Path, busybox_root: Path, as_before: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    await left_by_an_earlier_version(tmp_path, busybox_root, as_before)
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(running=(ONE,))
        live = await workshop.adopt("one")
        assert await run(live, "cat", "/f") == b"kept\n"
        assert (await workshop.engine.usage(live)).processes >= 1
        await workshop.stop(live)
        again = await workshop.start(ONE)
        assert native(again).process != native(live).process and again.generation != live.generation
        assert await run(again, "sh", "-c", "cat /f; echo $COLOUR") == b"kept\nblue\n"
    assert not set(kept.record(tmp_path / "state", "one")) & {"process", "uid_base", "agent_socket"}
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(running=(ONE,))
        await workshop.remove("one")
        assert not leftovers(tmp_path)


@pytest.mark.parametrize("row", ["damaged", "lost"])
async def test_one_whose_row_is_gone_is_adopted_by_what_its_disk_says(
    tmp_path: Path, busybox_root: Path, row: str
) -> None:
    content = await left_by_an_earlier_version(tmp_path, busybox_root)
    if row == "lost":
        kept.remove(tmp_path / "state", "one")
    else:
        kept.put(tmp_path / "state", "one", "created", content[:40])
    async with open_workshop(tmp_path) as workshop:
        assert workshop.inherited == Inherited(running=(ONE,), restored=(ONE,))
        live = await workshop.adopt("one")
        assert await run(live, "cat", "/f") == b"kept\n"
        await workshop.destroy(live)
        assert not leftovers(tmp_path)


@pytest.mark.parametrize("stage", ["making", "removing"])
async def test_one_that_was_half_made_or_half_removed_is_ended(tmp_path: Path, busybox_root: Path, stage: str) -> None:
    content = await left_by_an_earlier_version(tmp_path, busybox_root)
    kept.put(tmp_path / "state", "one", stage, content)
    async with open_workshop(tmp_path) as workshop:
        if stage == "making":  # its disk says that it was created
            assert workshop.inherited == Inherited(running=(ONE,), restored=(ONE,))
            await workshop.remove("one")
        else:
            assert workshop.inherited == Inherited(removed=(ONE,))
        assert not leftovers(tmp_path)
