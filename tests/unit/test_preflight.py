"""What the engine says of machines it cannot work on."""

from collections.abc import Callable

import pytest

from atoll.engine.native.preflight import check_architecture, check_kernel, check_machine, check_root, parse_kernel
from atoll.protocol.errors import AtollError, ErrorCode


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: check_kernel("5.10.0-28-amd64"), ErrorCode.KERNEL_TOO_OLD),
        (lambda: check_kernel("5.18.19"), ErrorCode.KERNEL_TOO_OLD),
        (lambda: check_kernel("unknown"), ErrorCode.KERNEL_TOO_OLD),
        (lambda: check_architecture("Linux", "riscv64"), ErrorCode.MACHINE_NOT_SUPPORTED),
        (lambda: check_architecture("Darwin", "x86_64"), ErrorCode.MACHINE_NOT_SUPPORTED),
        (lambda: check_root(1000), ErrorCode.NOT_ROOT),
    ],
)
def test_a_machine_that_will_not_do_is_named_with_a_remedy(ask: Callable[[], str], code: ErrorCode) -> None:
    with pytest.raises(AtollError) as caught:
        ask()
    assert caught.value.code == code
    assert caught.value.remedy


@pytest.mark.parametrize("release", ["5.19.0", "6.1.0-13-amd64", "6.18.44-custom", "10.0"])
def test_newer_kernels_are_fine(release: str) -> None:
    assert check_kernel(release) == release


def test_this_machine_is_fine() -> None:
    check_machine()


def test_kernel_versions_compare_as_numbers() -> None:
    assert parse_kernel("5.9.1") < parse_kernel("5.19.0") < parse_kernel("6.1.0")
