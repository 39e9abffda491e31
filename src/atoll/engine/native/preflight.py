"""Preflight: the bare needs of the native engine, asked before anything is made, without a side effect.

Each question returns what was found, or raises with a remedy. What can be learned only by trying is asked by
examination.py, which `atoll doctor` runs.
"""

from __future__ import annotations

import os
import platform
import re

from atoll.cpu.own import check_cpu
from atoll.protocol.errors import ErrorCode, error

MINIMUM_KERNEL = (5, 19)  # overlay mounts on idmapped layers


def check_machine() -> None:
    """Raise the first reason why no sandbox can be made here."""
    check_architecture(platform.system(), platform.machine())
    check_kernel(platform.release())
    check_root(os.geteuid())


def check_architecture(system: str, machine: str) -> str:
    if system != "Linux":
        raise error(
            ErrorCode.MACHINE_NOT_SUPPORTED,
            f"sandboxes need Linux; this is {system}",
            remedy="Run a server on Linux, and point ATOLL_URL at it.",
        )
    check_cpu(machine)
    return f"{system} on {machine}"


def check_kernel(release: str) -> str:
    if parse_kernel(release) < MINIMUM_KERNEL:
        raise error(
            ErrorCode.KERNEL_TOO_OLD,
            f"the kernel is {release}; overlay mounts on idmapped layers need {'.'.join(map(str, MINIMUM_KERNEL))}",
            remedy="Boot a newer kernel; Debian 12 and Ubuntu 24.04 have one.",
            release=release,
        )
    return release


def check_root(euid: int) -> str:
    if euid != 0:
        raise error(
            ErrorCode.NOT_ROOT,
            f"making sandboxes needs root; this process runs as uid {euid}",
            remedy="Run it with sudo, or point ATOLL_URL at a server that has root.",
            uid=euid,
        )
    return "uid 0"


def parse_kernel(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
