"""A plan: options checked once, in the types that a sandbox keeps."""

from __future__ import annotations

import pytest

from atoll.protocol.errors import AtollError, ErrorCode
from atoll.protocol.limits import MIN_DISK, SIZES, Limits
from atoll.protocol.sandboxes import SandboxOptions
from atoll.supervisor.plans import Plan, Upkeep, make_plan

REFUSED = {
    "limits": (SandboxOptions(limits="nonsense"), ErrorCode.INVALID_LIMITS),
    "one limit": (SandboxOptions(limits={"cpus": 0}), ErrorCode.INVALID_LIMITS),
    "an unknown limit": (SandboxOptions(limits={"gpus": 1}), ErrorCode.INVALID_LIMITS),
    "a variable": (SandboxOptions(env={"A=B": "c"}), ErrorCode.INVALID_ENVIRONMENT),
    "a variable that is not for shells": (SandboxOptions(env={"a.b": "c"}), ErrorCode.INVALID_ENVIRONMENT),
    "variables": (SandboxOptions(env={"A": "b" * 200_000}), ErrorCode.INVALID_ENVIRONMENT),
    "a label": (SandboxOptions(labels={"": "b"}), ErrorCode.INVALID_REQUEST),
    "a time": (SandboxOptions(sleep_after="soon"), ErrorCode.INVALID_REQUEST),
    "a time to be stopped": (SandboxOptions(stop_after="later"), ErrorCode.INVALID_REQUEST),
    "a life of no time": (SandboxOptions(ttl=0), ErrorCode.INVALID_REQUEST),
    "a life without end": (SandboxOptions(ttl=10**9), ErrorCode.INVALID_REQUEST),
}


@pytest.mark.parametrize(("options", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_options_that_make_no_sense_are_refused(options: SandboxOptions, code: ErrorCode) -> None:
    with pytest.raises(AtollError) as caught:
        make_plan(options)
    assert caught.value.code is code


def test_a_plan_has_what_was_asked_for_as_it_is_kept() -> None:
    asked = SandboxOptions(
        image="busybox",
        limits="lite",
        env={"A": "b"},
        labels={"c": "d"},
        sleep_after="5m",
        keep_alive=True,
        stop_after="1h",
        ttl="2d",
    )
    assert make_plan(asked) == Plan(
        image="busybox",
        limits=SIZES["lite"],
        has_usual_disk=False,
        env={"A": "b"},
        upkeep=Upkeep(labels={"c": "d"}, sleep_after=300.0, keep_alive=True, stop_after=3600.0, ttl=172800.0),
    )


def test_nothing_asked_for_is_the_usual() -> None:
    assert make_plan(SandboxOptions()) == Plan()


def test_a_disk_that_nobody_gave_a_size_is_no_larger_than_disks_can_be() -> None:
    usual, most = Limits(), Limits().disk // 2
    assert make_plan(SandboxOptions()).limits_where(usual.disk) == usual
    assert make_plan(SandboxOptions()).limits_where(most).disk == most
    assert make_plan(SandboxOptions(limits={"cpus": 1})).limits_where(most) == Limits(cpus=1, disk=most)
    assert make_plan(SandboxOptions()).limits_where(0).disk == MIN_DISK


def test_a_disk_of_a_size_that_was_asked_for_is_not_made_smaller() -> None:
    for limits in ("lite", {"disk": "2GB"}):
        assert make_plan(SandboxOptions(limits=limits)).limits_where(1).disk == 2 * 10**9
