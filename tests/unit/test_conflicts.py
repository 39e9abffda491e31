"""Options that a sandbox which exists has otherwise."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from atoll.protocol.ids import SandboxId
from atoll.protocol.limits import Limits
from atoll.protocol.sandboxes import SandboxOptions
from atoll.supervisor.conflicts import differences
from atoll.supervisor.plans import Upkeep
from atoll.supervisor.records import SandboxRecord

RECORD = SandboxRecord(
    id=SandboxId("user-123"),
    image="busybox",
    image_state="1",
    limits=Limits(memory="1GiB"),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    env={"A": "secret", "B": None},
    upkeep=Upkeep(labels={"team": "red"}, sleep_after=60.0, ttl=3600.0),
)
SAME = {
    "nothing": SandboxOptions(),
    "what it has": SandboxOptions(
        image="busybox",
        limits={"memory": "1024MiB"},
        env={"A": "secret"},
        labels={"team": "red"},
        sleep_after="1m",
        keep_alive=False,
        ttl="1h",
    ),
    "all of its limits": SandboxOptions(limits={"cpus": 2, "memory": 2**30, "disk": "4GiB", "pids": 1024}),
}
DIFFERENT = {
    "an image, though it is the usual one": (SandboxOptions(image="host"), {"image": "it is 'busybox', not 'host'"}),
    "one limit": (SandboxOptions(limits={"pids": 9, "cpus": 2}), {"limits.pids": "it is 1024, not 9"}),
    "a variable": (SandboxOptions(env={"A": "1"}), {"env.A": "it has another value"}),
    "one that was taken away": (SandboxOptions(env={"B": "1"}), {"env.B": "it is not set"}),
    "a label": (SandboxOptions(labels={"team": "blue"}), {"labels.team": "it is 'red', not 'blue'"}),
    "times": (
        SandboxOptions(sleep_after=1, keep_alive=True, stop_after=2, ttl=3),
        {
            "sleep_after": "it is 60.0, not 1.0",
            "keep_alive": "it is False, not True",
            "stop_after": "it is None, not 2.0",
            "ttl": "it is 3600.0, not 3.0",
        },
    ),
}


@pytest.mark.parametrize("options", SAME.values(), ids=SAME.keys())
def test_what_is_so_or_was_not_asked_for_does_not_differ(options: SandboxOptions) -> None:
    assert differences(options, RECORD) == {}


@pytest.mark.parametrize(("options", "told"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_each_option_that_differs_is_told_with_what_it_is(options: SandboxOptions, told: dict[str, str]) -> None:
    assert differences(options, RECORD) == told


def test_a_size_is_compared_limit_by_limit() -> None:
    assert differences(SandboxOptions(limits="basic"), RECORD).keys() == {"limits.cpus", "limits.disk"}
