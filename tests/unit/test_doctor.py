"""What `atoll doctor` makes of its findings."""

from __future__ import annotations

import pytest

from atoll.cli.verbs.doctor import is_fit, summarise
from atoll.telemetry.findings import Area, Finding, Status


def found(status: Status, name: str = "thing", area: Area = Area.MACHINE) -> Finding:
    return Finding(area=area, name=name, status=status, found="")


def test_only_what_is_missing_makes_a_machine_unfit() -> None:
    assert is_fit([found(Status.OK), found(Status.WARNING), found(Status.UNKNOWN)])
    assert not is_fit([found(Status.OK), found(Status.MISSING)])


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ([found(Status.OK)], "This machine can run sandboxes."),
        ([found(Status.WARNING, "inotify")], "This machine can run sandboxes. Worth a look: inotify."),
        (
            [found(Status.MISSING, "root"), found(Status.WARNING), found(Status.MISSING, "seccomp")],
            "This machine cannot run sandboxes yet. See to this first: root. Then: seccomp.",
        ),
        ([found(Status.UNKNOWN, "pool")], "Nothing is known to be missing. Not examined: pool."),
        ([found(Status.UNKNOWN, "pool"), found(Status.OK, area=Area.TRIAL)], "This machine can run sandboxes."),
    ],
)
def test_the_closing_sentence(findings: list[Finding], said: str) -> None:
    assert summarise(findings) == said
