"""What is left in a state directory, and what that means."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from atoll.engine.base import ProcessIdentity
from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.supervisor.reconcile import Undo, decide
from atoll.supervisor.records import RecordFile, Records, SandboxRecord, Stage

ONE, TWO = SandboxId("one"), SandboxId("two")


def record(sandbox: SandboxId, pid: int = 7) -> SandboxRecord:
    return SandboxRecord(
        id=sandbox,
        image="host",
        image_state="host",
        limits=Limits(),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        process=ProcessIdentity(pid=pid, start_time=1, boot_id="this"),
        uid_base=0x7000_0000,
        agent_socket="/run/atoll/agents/x.sock",
    )


def file(stage: Stage, *, is_damaged: bool = False, pid: int = 7) -> RecordFile:
    return RecordFile(id=ONE, stage=stage, record=None if is_damaged else record(ONE, pid))


MAKING, CREATED, REMOVING = file(Stage.MAKING), file(Stage.CREATED), file(Stage.REMOVING)


@pytest.mark.parametrize("disks", [[], ["one"]])
def test_what_was_reported_as_created_stays_with_or_without_its_disk(disks: list[str]) -> None:
    assert decide([CREATED], disks) == []


def test_a_damaged_record_keeps_its_disk() -> None:
    assert decide([file(Stage.CREATED, is_damaged=True)], ["one"]) == []
    assert decide([file(Stage.REMOVING, is_damaged=True)], ["one"]) == []


def test_a_disk_without_a_record_goes() -> None:
    assert decide([CREATED], ["one", "two"]) == [Undo(id=TWO, has_disk=True)]


def test_a_directory_that_no_sandbox_could_have_is_not_ours_to_remove() -> None:
    assert decide([], ["lost+found", ".hidden", "Two", ""]) == []


@pytest.mark.parametrize("left", [MAKING, REMOVING])
@pytest.mark.parametrize("disks", [[], ["one"]])
def test_what_was_not_reported_or_shall_go_goes_whole(left: RecordFile, disks: list[str]) -> None:
    expected = Undo(id=ONE, processes=(record(ONE),), has_disk=bool(disks), files=(left.stage,))
    assert decide([left], disks) == [expected]


def test_half_a_record_is_of_a_creation_that_was_not_reported() -> None:
    expected = Undo(id=ONE, has_disk=True, files=(Stage.MAKING,))
    assert decide([file(Stage.MAKING, is_damaged=True)], ["one"]) == [expected]


@pytest.mark.parametrize("stage", [Stage.MAKING, Stage.REMOVING])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_older_attempt_does_not_cost_the_one_that_was_created_its_disk(stage: Stage, is_damaged: bool) -> None:
    (undo,) = decide([CREATED, file(stage, is_damaged=is_damaged, pid=8)], ["one"])
    assert (undo.has_disk, undo.files) == (False, (stage,))
    assert [process.process.pid for process in undo.processes] == ([] if is_damaged else [8])


def test_records_go_from_stage_to_stage(tmp_path: Path) -> None:
    records = Records(tmp_path / "records", has_disks=False)
    records.begin(record(ONE))
    assert [found.stage for found in records.files()] == [Stage.MAKING]
    assert not records.exists(ONE) and records.created() == []
    records.commit(ONE)
    assert records.read(ONE) == records.read_to_remove(ONE) == record(ONE)
    records.begin_removal(ONE)
    records.begin_removal(ONE)
    assert records.read_to_remove(ONE) == record(ONE)
    with pytest.raises(FileNotFoundError):
        records.read(ONE)
    records.forget(ONE)
    records.forget(ONE)
    assert records.files() == []


def test_a_record_under_another_name_is_damaged(tmp_path: Path) -> None:
    records = Records(tmp_path / "records", has_disks=False)
    records.begin(record(ONE))
    records.commit(ONE)
    records.path(ONE, Stage.CREATED).rename(records.path(TWO, Stage.CREATED))
    assert records.files() == [RecordFile(id=TWO, stage=Stage.CREATED, record=None)]
    with pytest.raises(AtollError) as caught:
        records.read(TWO)
    assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE


def test_other_files_are_nobodys_record(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    for name in ("README", "one.json.bak", "Not an id.json", ".json"):
        (tmp_path / "records" / name).touch()
    assert Records(tmp_path / "records", has_disks=True).files() == []


def test_disks_without_a_directory_of_records_are_not_taken_for_leftovers(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(AtollError) as caught:
            Records(tmp_path / "records", has_disks=True)
        assert caught.value.code == ErrorCode.STATE_DIRECTORY_UNUSABLE
    assert not (tmp_path / "records").exists()
