"""What is left in a state directory, and what that means."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from atoll.engine.base import ProcessIdentity
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.supervisor.reconcile import Undo, decide
from atoll.supervisor.records import Row, SandboxRecord, Stage

ONE, TWO = SandboxId("one"), SandboxId("two")


def record(sandbox: SandboxId) -> SandboxRecord:
    return SandboxRecord(
        id=sandbox,
        image="host",
        image_state="host",
        limits=Limits(),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        process=ProcessIdentity(pid=7, start_time=1, boot_id="this"),
        uid_base=0x7000_0000,
        agent_socket="/run/atoll/agents/x.sock",
    )


def row(stage: Stage, *, is_damaged: bool = False) -> Row:
    return Row(id=ONE, stage=stage, record=None if is_damaged else record(ONE))


MAKING, CREATED, REMOVING = map(row, Stage)


@pytest.mark.parametrize("disks", [[], ["one"]])
def test_what_was_reported_as_created_stays_with_or_without_its_disk(disks: list[str]) -> None:
    assert decide([CREATED], disks) == []


@pytest.mark.parametrize("stage", Stage)
def test_a_damaged_record_keeps_its_disk(stage: Stage) -> None:
    assert decide([row(stage, is_damaged=True)], ["one"]) == []


def test_a_disk_without_a_record_goes() -> None:
    assert decide([CREATED], ["one", "two"]) == [Undo(id=TWO, has_disk=True)]


def test_a_directory_that_no_sandbox_could_have_is_not_ours_to_remove() -> None:
    assert decide([], ["lost+found", ".hidden", "Two", ""]) == []


@pytest.mark.parametrize("left", [MAKING, REMOVING])
@pytest.mark.parametrize("disks", [[], ["one"]])
def test_what_was_not_reported_or_shall_go_goes_whole(left: Row, disks: list[str]) -> None:
    assert decide([left], disks) == [Undo(id=ONE, record=record(ONE), has_disk=bool(disks))]
