"""The workshop, in what it promises whichever engine it has: what it refuses, what it removes, what it leaves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.supervisor.estate import Inherited
from atoll.supervisor.workshop import Workshop
from tests import kept
from tests.making import create
from tests.native import run


@pytest.fixture
async def own(tmp_path: Path, busybox_root: Path) -> AsyncIterator[Workshop]:
    async with Workshop(tmp_path / "state", tmp_path / "run") as workshop:
        workshop.images.add("busybox", busybox_root)
        yield workshop


async def test_destroying_leaves_no_file_behind(own: Workshop, tmp_path: Path) -> None:
    live = await create(own, "one", image="busybox")
    await run(live, "sh", "-c", "mkdir -p /a/b; echo x >/a/b/c; ln -s /etc/passwd /a/link; chmod 000 /a/b")
    await own.destroy(live)
    await own.destroy(live)
    assert not kept.leftovers(tmp_path)
    assert Path("/etc/passwd").exists()
    live = await create(own, "one", image="busybox")
    assert await run(live, "ls", "/") and not await run(live, "ls", "/workspace")
    await own.destroy(live)


async def test_destroying_again_does_not_touch_the_next_of_that_name(own: Workshop) -> None:
    first = await create(own, "same", image="busybox")
    await own.destroy(first)
    second = await create(own, "same", image="busybox")
    await own.destroy(first)
    assert await run(second, "sh", "-c", "echo x >/f; cat /f") == b"x\n"
    assert own.record(second.id).generation == second.generation
    await own.destroy(second)


@pytest.mark.parametrize("stage", ["making", "created", "removing", "not a stage"])
async def test_a_damaged_record_is_named(tmp_path: Path, stage: str) -> None:
    async with Workshop(tmp_path / "state", tmp_path / "run"):
        pass
    kept.put(tmp_path / "state", "odd", stage, b"{}")
    async with Workshop(tmp_path / "state", tmp_path / "run") as own:
        assert own.inherited == Inherited(damaged=(SandboxId("odd"),))
        assert own.records() == []
        with pytest.raises(AtollError) as caught:
            await create(own, "odd", image="busybox")
        assert caught.value.code == ErrorCode.SANDBOX_EXISTS
        if stage not in ("making", "removing"):
            with pytest.raises(AtollError) as caught:
                own.record(SandboxId("odd"))
            assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE
            assert "'odd'" in caught.value.message and "DELETE FROM" in caught.value.remedy
    kept.remove(tmp_path / "state", "odd")


async def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AtollError) as caught:
        Workshop(tmp_path / "file/state", tmp_path / "run")
    assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE


# Bad input: typed, with a remedy, and nothing half-made.


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"sandbox_id": "No Good"}, ErrorCode.INVALID_SANDBOX_ID),
        ({"image": "nowhere"}, ErrorCode.IMAGE_NOT_FOUND),
        ({"image": "../../etc"}, ErrorCode.INVALID_IMAGE_NAME),
        ({"limits": "gigantic"}, ErrorCode.INVALID_LIMITS),
        ({"limits": {"memory": "1KB"}}, ErrorCode.INVALID_LIMITS),
        ({"env": {"BIG": "x" * 300_000}}, ErrorCode.INVALID_ENVIRONMENT),
        ({"env": {"A=B": "x"}}, ErrorCode.INVALID_ENVIRONMENT),
        ({"env": {"A": "\0"}}, ErrorCode.INVALID_ENVIRONMENT),
        ({"env": {"A": 1}}, ErrorCode.INVALID_ENVIRONMENT),
        ({"env": {"A": "\udc80"}}, ErrorCode.INVALID_ENVIRONMENT),
    ],
)
async def test_bad_input_is_refused_before_anything_is_made(
    own: Workshop, tmp_path: Path, arguments: dict[str, object], code: ErrorCode
) -> None:
    with pytest.raises(AtollError) as caught:
        await create(own, **({"sandbox_id": "fine", "image": "busybox"} | arguments))  # type: ignore[arg-type]
    assert caught.value.code == code
    assert caught.value.remedy
    assert not kept.leftovers(tmp_path)


async def test_an_unknown_image_lists_the_known(own: Workshop) -> None:
    with pytest.raises(LookupError, match="host, busybox"):
        await create(own, "x", image="nowhere")


async def test_an_id_that_is_taken_is_refused_and_the_first_is_not_harmed(own: Workshop) -> None:
    live = await create(own, "one", image="busybox")
    with pytest.raises(FileExistsError):
        await create(own, "one", image="busybox")
    assert await run(live, "echo", "x") == b"x\n"
    await own.destroy(live)
