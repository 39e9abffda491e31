"""What is left in a state directory, and what that means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.supervisor.disk_records import Disk, DiskRecord, Mark
from atoll.supervisor.reconcile import (
    DESTROYED,
    OTHER,
    UNKNOWN,
    UNREPORTED,
    Ground,
    Inscribe,
    Restore,
    SetAside,
    Undo,
    decide,
)
from atoll.supervisor.records import Row, SandboxRecord, Stage

ONE, TWO = SandboxId("one"), SandboxId("two")
THIS, EARLIER = "this boot", "an earlier boot"
MADE = datetime(2026, 1, 1, tzinfo=UTC)
GROUND = Ground(boot_id=THIS, destroyed_at=lambda _: None, was_removed=lambda _: False)


def record(sandbox: SandboxId = ONE, *, boot: str = THIS, revision: int = 0, after: float = 0) -> SandboxRecord:
    return SandboxRecord(
        id=sandbox,
        image="host",
        image_state="host",
        limits=Limits(),
        created_at=MADE + timedelta(seconds=after),
        handle="somewhere",
        generation="first",
        boot_id=boot,
        revision=revision,
    )


def row(stage: Stage, kept: SandboxRecord | None = None, *, is_damaged: bool = False) -> Row:
    return Row(id=ONE, stage=stage, record=None if is_damaged else kept or record())


def disk(mark: Mark, kept: SandboxRecord | None = None, boot: str = THIS, name: str = ONE) -> Disk:
    return Disk(name=name, kept=DiskRecord(mark=mark, boot_id=boot, record=kept or record()))


MAKING, CREATED, REMOVING = map(row, Stage)
BARE, EMPTY = Disk(name=ONE), Disk(name=ONE, is_empty=True)
BOOTS = [THIS, EARLIER]


@pytest.mark.parametrize("disks", [[], [disk(Mark.CREATED)]])
def test_what_was_reported_as_created_stays_with_or_without_its_disk(disks: list[Disk]) -> None:
    assert decide([CREATED], disks, GROUND) == []


@pytest.mark.parametrize("left", [BARE, EMPTY, disk(Mark.MAKING)])
def test_a_disk_that_does_not_say_what_its_row_says_is_told(left: Disk) -> None:
    assert decide([CREATED], [left], GROUND) == [Inscribe(id=ONE, record=record())]


@pytest.mark.parametrize("stage", Stage)
def test_a_damaged_record_keeps_a_disk_that_carries_none(stage: Stage) -> None:
    assert decide([row(stage, is_damaged=True)], [BARE], GROUND) == []


@pytest.mark.parametrize("stage", [Stage.CREATED, Stage.MAKING])
def test_a_damaged_record_is_made_anew_from_the_disk(stage: Stage) -> None:
    left = disk(Mark.CREATED)
    assert decide([row(stage, is_damaged=True)], [left], GROUND) == [Restore(id=ONE, record=record())]


@pytest.mark.parametrize("boot", BOOTS)
def test_a_disk_that_says_it_was_created_gets_its_row_back(boot: str) -> None:
    for rows in ([], [MAKING], [row(Stage.MAKING, record(boot=EARLIER))]):
        assert decide(rows, [disk(Mark.CREATED, boot=boot)], GROUND) == [Restore(id=ONE, record=record())]


def test_the_later_of_two_records_counts() -> None:
    older, newer = record(), record(revision=1)
    assert decide([row(Stage.CREATED, older)], [disk(Mark.CREATED, newer)], GROUND) == [Restore(id=ONE, record=newer)]
    assert decide([row(Stage.CREATED, newer)], [disk(Mark.CREATED, older)], GROUND) == [Inscribe(id=ONE, record=newer)]


def test_a_row_of_an_earlier_sandbox_of_the_id_makes_room_for_that_of_its_disk() -> None:
    earlier, later = record(revision=9), record(after=60)
    assert decide([row(Stage.CREATED, earlier)], [disk(Mark.CREATED, later)], GROUND) == [Restore(id=ONE, record=later)]


@pytest.mark.parametrize("left", [disk(Mark.CREATED, record(after=-60)), disk(Mark.MAKING, record(after=60))])
def test_a_disk_of_another_sandbox_than_its_row_is_set_aside(left: Disk) -> None:
    assert decide([CREATED], [left], GROUND) == [SetAside(id=ONE, reason=OTHER)]


def test_a_creation_that_was_killed_within_this_boot_goes() -> None:
    for left in (disk(Mark.MAKING), EMPTY):
        assert decide([], [left], GROUND) == [Undo(id=ONE, has_disk=True)]


def test_one_that_a_power_failure_ended_is_set_aside() -> None:
    left = disk(Mark.MAKING, boot=EARLIER)
    for rows in ([], [row(Stage.MAKING, record(boot=EARLIER))]):
        assert decide(rows, [left], GROUND) == [SetAside(id=ONE, reason=UNREPORTED)]


def test_a_disk_that_says_nothing_is_set_aside() -> None:
    for left in (BARE, disk(Mark.CREATED, record(TWO))):
        assert decide([CREATED], [left], GROUND)[0] == Inscribe(id=ONE, record=record())
        assert decide([], [left], GROUND) == [SetAside(id=ONE, reason=UNKNOWN)]


def test_a_disk_of_a_sandbox_that_was_destroyed_is_set_aside() -> None:
    ground = msgspec.structs.replace(GROUND, destroyed_at=lambda _: MADE + timedelta(seconds=1))
    assert decide([], [disk(Mark.CREATED)], ground) == [SetAside(id=ONE, reason=DESTROYED)]
    later = record(after=60)
    assert decide([], [disk(Mark.CREATED, later)], ground) == [Restore(id=ONE, record=later)]


def test_a_row_whose_disk_was_removed_goes() -> None:
    ground = msgspec.structs.replace(GROUND, was_removed=lambda of: of == record())
    assert decide([CREATED], [], ground) == [Undo(id=ONE, record=record())]
    assert decide([CREATED], [disk(Mark.CREATED)], ground) == []
    assert decide([row(Stage.CREATED, record(after=60))], [], ground) == []


def test_a_directory_that_no_sandbox_could_have_is_not_ours() -> None:
    assert decide([], [Disk(name=name) for name in ("lost+found", ".hidden", "Two", "")], GROUND) == []


@pytest.mark.parametrize("left", [MAKING, REMOVING])
@pytest.mark.parametrize("disks", [[], [BARE], [disk(Mark.MAKING)]])
def test_what_was_not_reported_or_shall_go_goes_whole(left: Row, disks: list[Disk]) -> None:
    assert decide([left], disks, GROUND) == [Undo(id=ONE, record=record(), has_disk=bool(disks))]


def test_a_removal_that_was_begun_goes_on_whatever_the_disk_says() -> None:
    for left in (disk(Mark.CREATED), disk(Mark.CREATED, record(revision=9)), BARE):
        assert decide([REMOVING], [left], GROUND) == [Undo(id=ONE, record=record(), has_disk=True)]


records = st.builds(
    lambda boot, revision, after: record(boot=boot, revision=revision, after=after),
    st.sampled_from(BOOTS),
    st.integers(0, 2),
    st.sampled_from([-60, 0, 60]),
)
disks = st.one_of(
    st.sampled_from([BARE, EMPTY]), st.builds(disk, st.sampled_from(Mark), records, st.sampled_from(BOOTS))
)
rows = st.builds(row, st.sampled_from(Stage), records, is_damaged=st.booleans())


@given(st.none() | rows, st.none() | disks, st.sampled_from([None, -90, -30, 30, 90]))
def test_nothing_that_may_be_somebodys_is_removed(
    found: Row | None, left: Disk | None, destroyed: float | None
) -> None:
    moment = None if destroyed is None else MADE + timedelta(seconds=destroyed)
    ground = msgspec.structs.replace(GROUND, destroyed_at=lambda _: moment)
    decisions = decide([found] if found else [], [left] if left else [], ground)
    assert len(decisions) < 2
    for decision in decisions:
        if isinstance(decision, Undo) and decision.has_disk:
            assert left is not None
            was_asked_for = found is not None and found.stage is Stage.REMOVING
            assert was_asked_for or left.is_empty or was_unreported(found, left)
        if isinstance(decision, Restore):
            assert left and left.kept and decision.record == left.kept.record
            assert left.kept.mark is Mark.CREATED
        if isinstance(decision, SetAside):
            assert left is not None


def was_unreported(found: Row | None, left: Disk) -> bool:
    """For certain: said within this boot, which loses nothing."""
    if found is None:
        return left.kept is not None and left.kept.mark is Mark.MAKING and left.kept.boot_id == THIS
    is_making = found.stage is Stage.MAKING and found.record is not None and found.record.boot_id == THIS
    return is_making and not (left.kept and left.kept.mark is Mark.CREATED)


def test_what_a_disk_carries_is_read_only_if_it_is_known() -> None:
    from atoll.supervisor.disk_records import decode, encode

    content = encode(record(), Mark.CREATED, THIS)
    assert decode(content) == disk(Mark.CREATED).kept
    assert decode(content.replace(b'"version":1', b'"version":2')) is None
    for unreadable in (None, b"", b"{}", b"\xff", content[:40], msgspec.json.encode([1])):
        assert decode(unreadable) is None
