"""What the engine says of machines it cannot work on."""

import pytest

from atoll.engine.native.preflight import find_problem, parse_kernel
from atoll.protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("machine", "code"),
    [
        ((0, "Linux", "5.10.0-28-amd64", "x86_64"), ErrorCode.KERNEL_TOO_OLD),
        ((0, "Linux", "5.18.19", "x86_64"), ErrorCode.KERNEL_TOO_OLD),
        ((0, "Linux", "unknown", "x86_64"), ErrorCode.KERNEL_TOO_OLD),
        ((0, "Linux", "6.1.0", "aarch64"), ErrorCode.MACHINE_NOT_SUPPORTED),
        ((0, "Darwin", "23.1.0", "x86_64"), ErrorCode.MACHINE_NOT_SUPPORTED),
        ((1000, "Linux", "6.1.0", "x86_64"), ErrorCode.NOT_ROOT),
    ],
)
def test_a_machine_that_will_not_do_is_named_with_a_remedy(machine: tuple[int, str, str, str], code: ErrorCode) -> None:
    problem = find_problem(*machine)
    assert problem is not None
    assert problem.code == code
    assert problem.remedy


@pytest.mark.parametrize("release", ["5.19.0", "6.1.0-13-amd64", "6.18.44-custom", "10.0"])
def test_newer_kernels_are_fine(release: str) -> None:
    assert find_problem(0, "Linux", release, "x86_64") is None


def test_kernel_versions_compare_as_numbers() -> None:
    assert parse_kernel("5.9.1") < parse_kernel("5.19.0") < parse_kernel("6.1.0")
